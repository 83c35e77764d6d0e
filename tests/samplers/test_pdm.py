"""Projected Diffusion Models."""

import math

import pytest
import torch

from feasibly import Bounds, Linear
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.minimizers import LBFGS, GaussNewton
from feasibly.oracles import Gaussian
from feasibly.samplers import PDM
from feasibly.schedules import Cosine, LogLogit, Rectified

LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
CURVE = LevelSet(GaussianRandomField(3))
T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)
COV = torch.tensor([[1.0, 0.6], [0.6, 1.0]])


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("where", ["x_t", "x_0"])
@pytest.mark.parametrize("constraint", [LINE, Bounds(-0.2, 0.1, 1e-8)], ids=repr)
def test_final_samples_are_feasible(where, constraint, checkerboard):
    sampler = PDM(checkerboard, constraint, steps=8, repeats=2, where=where)
    assert sampler.sample(16, (2,), dtype=torch.float64).feasible.all()


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_final_samples_are_feasible_where_a_minimizer_projects(checkerboard):
    minimize = GaussNewton(steps=32, max_distance=None)
    sampler = PDM(checkerboard, CURVE, steps=8, repeats=2, minimize=minimize)
    result = sampler.sample(32, (2,), dtype=torch.float64)
    assert result.feasible.double().mean() > 0.9


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)
@pytest.mark.parametrize("where", ["x_t", "x_0"])
def test_a_step_is_the_recursion_in_units_of_the_signal(schedule, where):
    prior = Gaussian(torch.zeros(2), COV, schedule)
    sampler = PDM(prior, LINE, repeats=3, kappa=0.4, where=where)
    x, noise = normal(4, 2), normal(6, 4, 2, seed=1)
    draws = iter(noise)
    x_s, x_0, _ = sampler.step(x, T, S, lambda like: next(draws))

    (alpha_t, _), (alpha_s, sigma_s) = schedule(T), schedule(S)
    level, draws, u = sigma_s / alpha_s, iter(noise), x / alpha_t
    cov = COV.double()
    shrink = cov @ torch.linalg.inv(cov + level**2 * torch.eye(2))
    for _ in range(3):
        score = (u @ shrink - u) / level**2
        u = u + 0.4 / 2 * level**2 * score + 0.4**0.5 * level * next(draws)
        if where == "x_t":
            u = clean = LINE.projection(u)
        else:
            clean = LINE.projection(u @ shrink)
            u = clean + level * next(draws)
    torch.testing.assert_close(x_s / alpha_s, u)
    torch.testing.assert_close(x_0, clean)


@pytest.mark.parametrize("kappa", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("schedule", [LogLogit(), Cosine()], ids=repr)
def test_langevin_steps_leave_the_noisy_gaussian_almost_as_it_is(kappa, schedule):
    """Of N(0, v): x' = a x + b z, with stationary variance b^2 / (1 - a^2). With a = 1 - kappa / 2
    times a share in (0, 1), it exceeds alpha^2 v + sigma^2 by less than kappa / 3."""
    sampler = PDM(Gaussian(torch.zeros(2), COV, schedule), LINE, kappa=kappa)
    direction = torch.tensor([[1.0, 1.0]], dtype=torch.float64) / 2**0.5  # of variance 1.6
    a = sampler.langevin(direction, S, torch.zeros_like)
    b = (sampler.langevin(0 * direction, S, torch.ones_like)).norm() / 2**0.5
    torch.testing.assert_close(a, (a * direction).sum() * direction)
    a = (a * direction).sum()
    alpha, sigma = schedule(S)
    stationary, exact = b**2 / (1 - a**2), 1.6 * alpha**2 + sigma**2
    assert exact < stationary < exact * (1 + kappa / 3)


def test_projections_are_in_closed_form_where_there_is_one(gaussian):
    known, unknown = PDM(gaussian, LINE), PDM(gaussian, CURVE)
    given = PDM(gaussian, LINE, minimize=GaussNewton())
    x = normal(5, 2)
    assert torch.equal(known.project(x), LINE.projection(x))
    searched = PDM(gaussian, CURVE, minimize=LBFGS())
    assert torch.equal(unknown.project(x), searched.project(x))
    assert not torch.equal(given.project(x), known.project(x))
    torch.testing.assert_close(given.project(x), known.project(x), rtol=1e-5, atol=1e-5)


def test_there_is_no_eta(gaussian):
    with pytest.raises(TypeError, match="eta"):
        PDM(gaussian, LINE, eta=0.0)


def test_the_constraint_is_evaluated_on_noise(gaussian):
    """In x_t-space the state is feasible at every level, in x_0-space it is not."""
    x, z = normal(6, 2), normal(6, 2, seed=1)
    pinned = PDM(gaussian, LINE, repeats=1).step(x, T, S, lambda like: z).x
    renoised, x_0, _ = PDM(gaussian, LINE, repeats=1, where="x_0").step(x, T, S, lambda like: z)
    assert LINE.violation(pinned).max() < 1e-20
    assert LINE.violation(x_0).max() < 1e-20
    assert LINE.violation(renoised).min() > 1e-4


@pytest.mark.parametrize(("where", "forward"), [("x_t", 3), ("x_0", 6)])
def test_evaluations_are_those_of_the_scores(where, forward, gaussian):
    sampler = PDM(gaussian, LINE, steps=4, repeats=3, where=where)
    spent = sampler.sample(2, (2,)).evaluations
    assert (spent.forward, spent.backward) == (4 * forward, 0) == sampler.budget()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repeats": 0}, "repeats=.*whole number of at least 1, got 0"),
        ({"kappa": 0.0}, r"kappa=.*\(0, 1\], got 0"),
        ({"kappa": 1.5}, r"kappa=.*\(0, 1\]"),
        ({"kappa": math.nan}, "kappa"),
        ({"where": "pixels"}, "'x_t' or 'x_0', got 'pixels'"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        PDM(gaussian, LINE, **options)
