"""Constrained Posterior Sampling."""

import math
from itertools import pairwise

import pytest
import torch

from feasibly import Ancestral, Equality, Linear
from feasibly.minimizers import LBFGS, GaussNewton
from feasibly.oracles import Gaussian
from feasibly.samplers import CPS
from feasibly.schedules import VE, VP, Cosine, LogLogit

LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(schedule):
    return Gaussian(torch.zeros(6), torch.eye(6), schedule)


def at(level, schedule):
    """The time of a noise level, by bisection."""
    low, high = torch.zeros(2, dtype=torch.float64)
    high = high + 1
    for _ in range(60):
        t = (low + high) / 2
        alpha, sigma = schedule(t)
        low, high = (t, high) if sigma / alpha < level else (low, t)
    return t


@pytest.mark.parametrize("schedule", [VE(1e-2, 1e2), VP(), Cosine()], ids=repr)
def test_the_penalty_follows_the_noise_level(schedule):
    plane = Linear(normal(2, 6), normal(2), tolerance=1e-6)
    sampler = CPS(unit(schedule), plane)
    for level in (1.0, 0.5, 2.0, 50.0):
        gamma = math.exp(1 + level**-2)
        assert sampler.gamma(at(level, schedule)) == pytest.approx(gamma)
    assert sampler.gamma(at(0.05, schedule)) == 1e5


def test_the_penalty_grows_to_its_limit_and_no_further(gaussian):
    sampler = CPS(gaussian, LINE, gamma_max=300.0)
    penalties = [sampler.gamma(t) for t in torch.linspace(1, 0, 33)]
    assert all(a <= b for a, b in pairwise(penalties))
    assert penalties[0] == pytest.approx(math.e, rel=1e-3)
    assert penalties[-1] == 300.0


def test_without_a_limit_the_penalty_is_large_but_finite(gaussian):
    assert 1e100 < CPS(gaussian, LINE, gamma_max=math.inf).gamma(torch.tensor(0.0)) < math.inf


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_without_a_penalty_it_is_the_predictor(eta, checkerboard):
    options = {"steps": 10, "eta": eta, "output": "projected"}
    cps = CPS(checkerboard, LINE, gamma_max=0.0, **options).sample(6, (2,), seed=3)
    free = Ancestral(checkerboard, order=1, spacing="time", **options).sample(6, (2,), seed=3)
    assert torch.equal(cps.samples, free.samples)


@pytest.mark.parametrize(
    "minimize",
    [GaussNewton(steps=1, damping=0.0, max_distance=None), LBFGS(steps=60, max_step=None)],
    ids=["gauss-newton", "l-bfgs"],
)
@pytest.mark.parametrize("schedule", [LogLogit(), Cosine()], ids=repr)
def test_a_step_predicts_from_the_penalised_solution(minimize, schedule):
    """x_0 - A^T (A A^T + I / gamma_s)^-1 (A x_0 - y), and noise that is recomputed from it."""
    for times in ((0.95, 0.9), (0.6, 0.5), (0.3, 0.2)):
        check_step(minimize, schedule, *torch.tensor(times, dtype=torch.float64))


def check_step(minimize, schedule, t, s):
    prior = unit(schedule)
    plane = Linear(normal(2, 6), normal(2, seed=1), tolerance=1e-6)
    sampler = CPS(prior, plane, minimize=minimize)
    x = 2 * normal(4, 6, seed=2)
    x_s, x_0, _ = sampler.step(x, t, s)

    estimate = prior(x, t).mean
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
    gamma = min(math.exp(1 + min((alpha_s / sigma_s).item() ** 2, 100)), 1e5)
    gram = plane.A @ plane.A.T + torch.eye(2, dtype=torch.float64) / gamma
    moved = torch.linalg.solve(gram, (estimate @ plane.A.T - plane.y).T).T @ plane.A
    torch.testing.assert_close(x_0, estimate - moved, rtol=0, atol=1e-6)
    assert moved.norm(dim=1).min() > 0.1
    expected = alpha_s * x_0 + sigma_s * (x - alpha_t * x_0) / sigma_t
    torch.testing.assert_close(x_s, expected)


def test_the_last_penalty_makes_samples_feasible(gaussian):
    result = CPS(gaussian, LINE, steps=16).sample(16, (2,), dtype=torch.float64)
    assert result.feasible.all()
    # r = (gamma |A|^2 + 1)^-1 r(d), and the residual of an estimate is of order one
    r = LINE.residual(result.samples).abs()
    assert 0 < r.max() < 10 / (5e5 + 1)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_the_penalised_problem_asks_nothing_of_the_network(gaussian):
    unreachable = Equality(lambda x: x.square().sum(dim=1) + 1, tolerance=1e-6)
    sampler = CPS(gaussian, unreachable, steps=6)
    spent = sampler.sample(3, (2,)).evaluations
    assert (spent.forward, spent.backward) == (6, 0) == sampler.budget()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma_max": -1.0}, r"CPS\(gamma_max=.*negative, got -1"),
        ({"gamma_max": math.nan}, "gamma_max"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        CPS(gaussian, LINE, **options)
