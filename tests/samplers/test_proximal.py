"""Proximal Langevin dynamics."""

import math
from itertools import pairwise

import pytest
import torch

from feasibly import Decoded, Linear, PredictorCorrector
from feasibly.minimizers import LBFGS, GaussNewton
from feasibly.oracles import Gaussian
from feasibly.samplers import ProximalLangevin
from feasibly.schedules import Cosine, LogLogit, Rectified

EXACT = GaussNewton(steps=1, damping=0.0, max_distance=None)
LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
LATE = torch.tensor(0.2, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def decode(z):
    return torch.stack((torch.sinh(z[:, 0]), z[:, 1] + z[:, 0] ** 2 / 2), dim=1)


@pytest.mark.parametrize("start", [0.0, 0.35, 0.5, 0.9])
def test_before_its_start_it_is_the_predictor_corrector(start, gaussian):
    options = {"steps": 10, "corrections": 2}
    sampler = ProximalLangevin(gaussian, LINE, start=start, minimize=EXACT, **options)
    free = PredictorCorrector(gaussian, **options)
    x, noise = normal(4, 2), normal(3, 4, 2, seed=1)
    times = torch.linspace(1, 0, 11, dtype=torch.float64)
    for made, (t, s) in enumerate(pairwise(times), start=1):
        draws = iter(noise)
        a = sampler.step(x, t, s, lambda like, draws=draws: next(draws))
        draws = iter(noise)
        b = free.step(x, t, s, lambda like, draws=draws: next(draws))
        same = [torch.equal(a.x, b.x), torch.equal(a.x_0, b.x_0)]
        assert same == [made <= 10 * start] * 2
        x = a.x


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)
@pytest.mark.parametrize(
    "minimize", [EXACT, LBFGS(steps=60, max_step=None)], ids=["gauss-newton", "l-bfgs"]
)
def test_the_proximal_map_of_a_linear_constraint_has_its_closed_form(schedule, minimize):
    """z' - A^T (A A^T + I / (2 lambda))^-1 (A z' - y), in the units of clean data."""
    plane = Linear(normal(2, 5), normal(2, seed=1), tolerance=1e-6)
    prior = Gaussian(torch.zeros(5), torch.eye(5), schedule)
    x, (alpha, _) = normal(6, 5, seed=2), schedule(LATE)
    z = x / alpha
    for lmbda in (1e-3, 0.5, 20.0):
        sampler = ProximalLangevin(prior, plane, lmbda=lmbda, minimize=minimize)
        gram = plane.A @ plane.A.T + torch.eye(2, dtype=torch.float64) / (2 * lmbda)
        moved = torch.linalg.solve(gram, (z @ plane.A.T - plane.y).T).T @ plane.A
        torch.testing.assert_close(sampler.prox(x, LATE), alpha * (z - moved), rtol=0, atol=1e-6)


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine()], ids=repr)
def test_without_a_proximity_term_states_are_feasible_as_they_are(schedule):
    prior = Gaussian(torch.zeros(2), torch.eye(2), schedule)
    sampler = ProximalLangevin(prior, LINE, minimize=EXACT)
    x, (t, s) = normal(6, 2), torch.tensor([0.3, 0.2], dtype=torch.float64)
    x_s, x_0, _ = sampler.step(x, t, s)
    assert LINE.violation(x_s / schedule(s)[0]).max() < 1e-20
    torch.testing.assert_close(x_0, x_s / schedule(s)[0])


def test_without_a_proximity_term_a_sample_stops_at_the_tolerance(gaussian):
    """Nearly feasible ones are not moved; with the term they are, by their share."""
    x = LINE.projection(normal(6, 2)) + 1e-5
    free, near = (ProximalLangevin(gaussian, LINE, lmbda=lmbda) for lmbda in (math.inf, 1e3))
    assert torch.equal(free.prox(x, LATE), x)
    assert not torch.equal(near.prox(x, LATE), x)


def test_the_map_goes_through_a_nonlinear_decoder(gaussian):
    """At the minimum the gradient of |r(D(z))|^2 + |z - z'|^2 / (2 lambda) is zero."""
    sampler = ProximalLangevin(
        gaussian, Decoded(LINE, decode), lmbda=0.7, minimize=LBFGS(steps=80, max_step=None)
    )
    x = normal(6, 2)
    z = sampler.prox(x, LATE).requires_grad_()
    value = LINE.violation(decode(z)) + (z - x).square().sum(dim=1) / (2 * 0.7)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    assert gradient.abs().max() < 1e-5
    assert (z - x).norm(dim=1).max() > 0.1


@pytest.mark.parametrize("corrections", [0, 1])
def test_latents_are_sampled_that_decode_to_feasible_samples(corrections, gaussian):
    decoded = Decoded(LINE, decode)
    minimize = GaussNewton(steps=16, max_distance=None)
    options = {"steps": 12, "corrections": corrections, "minimize": minimize}
    result = ProximalLangevin(gaussian, decoded, **options).sample(16, (2,), dtype=torch.float64)
    assert result.feasible.all()
    assert (LINE.violation(decode(result.samples)) <= LINE.tolerance).all()


def test_every_correction_is_followed_by_the_map():
    prior = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), Cosine())
    options = {"corrections": 2, "delta": 0.3}
    sampler = ProximalLangevin(prior, LINE, lmbda=0.5, minimize=EXACT, **options)
    x, noise = normal(4, 2), normal(3, 4, 2, seed=1)
    t, s = torch.tensor([0.3, 0.2], dtype=torch.float64)
    draws = iter(noise)
    x_s = sampler.step(x, t, s, lambda like: next(draws)).x

    free = PredictorCorrector(prior, delta=0.3)
    y = free.predict(x, prior(x, t).mean, t, s, lambda like: noise[0])
    y = sampler.prox(y, s)
    for z in noise[1:]:
        y = sampler.prox(free.correct(y, prior(y, s).mean, s, lambda like, z=z: z), s)
    torch.testing.assert_close(x_s, y)


def test_the_map_asks_nothing_of_the_network(gaussian):
    sampler = ProximalLangevin(gaussian, LINE, steps=6, corrections=2)
    spent = sampler.sample(3, (2,)).evaluations
    assert (spent.forward, spent.backward) == (18, 0) == sampler.budget()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lmbda": 0.0}, r"ProximalLangevin\(lmbda=.*positive, got 0"),
        ({"lmbda": math.nan}, "lmbda"),
        ({"start": -0.1}, r"start=.*\[0, 1\), got -0.1"),
        ({"start": 1.0}, r"start=.*\[0, 1\)"),
        ({"corrections": -1}, "corrections"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        ProximalLangevin(gaussian, LINE, **options)
