"""Methods that move the noisy state: predictor-corrector, PDM and proximal Langevin dynamics."""

import math
from itertools import pairwise

import pytest
import torch

from feasibly import Decoded
from feasibly.minimizers import LBFGS, GaussNewton
from feasibly.oracles import Gaussian
from feasibly.samplers import PDM, PredictorCorrector, ProximalLangevin
from feasibly.schedules import Cosine, LogLogit
from tests.helpers import on
from tests.samplers.conftest import (
    COV,
    CURVE,
    LINE,
    SCHEDULES,
    STEP,
    S,
    T,
    correlated,
    given,
    normal,
    plane,
    times,
)

LATE = torch.tensor(0.2, dtype=torch.float64)


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.5])
def test_correction_has_its_closed_form_stationary_variance(delta, gaussian):
    """On N(0, 1), x' = a x + sqrt(delta) sigma z with a = rho + sqrt(1 - delta) (1 - rho), so
    the variance is delta sigma^2 / (1 - a^2), which tends to 1 + sigma^2 with delta to zero."""
    kernel = on(PredictorCorrector(delta=delta), gaussian)
    direction = torch.tensor([[1.0, 1.0]], dtype=torch.float64) / 2**0.5  # of variance 1.6
    t = torch.tensor(0.55, dtype=torch.float64)
    sigma = gaussian.schedule(t)[1]
    rho = 1.6 / (1.6 + sigma**2)
    a = rho + (1 - delta) ** 0.5 * (1 - rho)
    moved, noisy = (
        kernel.correct(direction, gaussian(direction, t).mean, t, noise)
        for noise in (torch.zeros_like, torch.ones_like)
    )
    torch.testing.assert_close(moved, a * direction)
    torch.testing.assert_close(noisy - moved, torch.full_like(direction, 1.0) * sigma * delta**0.5)
    stationary = delta * sigma**2 / (1 - a**2)
    assert stationary.item() == pytest.approx((1.6 + sigma**2).item(), rel=delta)


@SCHEDULES
@pytest.mark.parametrize("where", ["x_t", "x_0"])
def test_a_step_of_pdm_is_the_recursion_in_units_of_the_signal(schedule, where):
    prior = Gaussian(torch.zeros(2), COV, schedule)
    kernel = on(PDM(repeats=3, kappa=0.4, where=where), prior, LINE)
    x, noise = normal(4, 2), normal(6, 4, 2, seed=1)
    x_s, x_0, _ = kernel.step(x, T, S, given(noise))

    (alpha_t, _), (alpha_s, sigma_s) = schedule(T), schedule(S)
    level, draws, u = sigma_s / alpha_s, iter(noise), x / alpha_t
    shrink = COV @ torch.linalg.inv(COV + level**2 * torch.eye(2))
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


def test_projections_of_pdm_are_in_closed_form_where_there_is_one(gaussian):
    known, unknown = on(PDM(), gaussian, LINE), on(PDM(), gaussian, CURVE)
    given = on(PDM(minimize=GaussNewton()), gaussian, LINE)
    x = normal(5, 2)
    assert torch.equal(known.project(x), LINE.projection(x))
    assert torch.equal(unknown.project(x), on(PDM(minimize=LBFGS()), gaussian, CURVE).project(x))
    assert not torch.equal(given.project(x), known.project(x))
    torch.testing.assert_close(given.project(x), known.project(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start", [0.0, 0.35, 0.9])
def test_before_its_start_the_proximal_method_is_the_predictor_corrector(start, gaussian):
    options = {"steps": 10, "corrections": 2}
    kernel = on(ProximalLangevin(start=start, minimize=STEP, **options), gaussian, LINE)
    free = on(PredictorCorrector(**options), gaussian)
    x, noise = normal(4, 2), normal(3, 4, 2, seed=1)
    for made, (t, s) in enumerate(pairwise(times(10)), start=1):
        a, b = (one.step(x, t, s, given(noise)) for one in (kernel, free))
        same = [torch.equal(a.x, b.x), torch.equal(a.x_0, b.x_0)]
        assert same == [made <= 10 * start] * 2
        if not same[0]:
            torch.testing.assert_close(a.x_0, a.x)  # of the state, where alpha is one
        x = a.x


@SCHEDULES
@pytest.mark.parametrize(
    "minimize", [STEP, LBFGS(steps=60, max_step=None)], ids=["gauss-newton", "l-bfgs"]
)
def test_the_proximal_map_of_a_linear_constraint_has_its_closed_form(schedule, minimize):
    """z' - A^T (A A^T + I / (2 lambda))^-1 (A z' - y), in the units of clean data."""
    prior, constraint = correlated(schedule, 5), plane(2, 5)
    x, (alpha, _) = normal(6, 5, seed=2), schedule(LATE)
    z, A = x / alpha, constraint.A
    for lmbda in (1e-3, 0.5, 20.0):
        kernel = on(ProximalLangevin(lmbda=lmbda, minimize=minimize), prior, constraint)
        gram = A @ A.T + torch.eye(2).double() / (2 * lmbda)
        moved = torch.linalg.solve(gram, constraint.residual(z).T).T @ A
        torch.testing.assert_close(kernel.prox(x, LATE), alpha * (z - moved), rtol=0, atol=1e-6)


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine()], ids=repr)
def test_without_a_proximity_term_states_are_feasible_as_they_are(schedule):
    prior = Gaussian(torch.zeros(2), torch.eye(2), schedule)
    kernel = on(ProximalLangevin(minimize=STEP), prior, LINE)
    x_s, x_0, _ = kernel.step(normal(6, 2), torch.tensor(0.3).double(), LATE)
    assert LINE.violation(x_0).max() < 1e-20
    torch.testing.assert_close(x_0, x_s / schedule(LATE)[0])


def test_without_a_proximity_term_a_sample_stops_at_the_tolerance(gaussian):
    """Nearly feasible ones are not moved; with the term they are, by their share."""
    x = LINE.projection(normal(6, 2)) + 1e-5
    free, near = (on(ProximalLangevin(lmbda=lmbda), gaussian, LINE) for lmbda in (math.inf, 1e3))
    assert torch.equal(free.prox(x, LATE), x)
    assert not torch.equal(near.prox(x, LATE), x)


def test_the_proximal_map_goes_through_a_nonlinear_decoder(gaussian):
    """At the minimum the gradient of |r(D(z))|^2 + |z - z'|^2 / (2 lambda) is zero."""

    def decode(z):
        return torch.stack((torch.sinh(z[:, 0]), z[:, 1] + z[:, 0] ** 2 / 2), dim=1)

    minimize = LBFGS(steps=80, max_step=None)
    kernel = on(ProximalLangevin(lmbda=0.7, minimize=minimize), gaussian, Decoded(LINE, decode))
    x = normal(6, 2)
    z = kernel.prox(x, LATE).requires_grad_()
    value = LINE.violation(decode(z)) + (z - x).square().sum(dim=1) / (2 * 0.7)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    assert gradient.abs().max() < 1e-5
    assert (z - x).norm(dim=1).max() > 0.1


def test_every_correction_is_followed_by_the_proximal_map():
    prior = Gaussian(torch.zeros(2), COV, Cosine())
    options = {"corrections": 2, "delta": 0.3}
    kernel = on(ProximalLangevin(lmbda=0.5, minimize=STEP, **options), prior, LINE)
    x, noise, t = normal(4, 2), normal(3, 4, 2, seed=1), torch.tensor(0.3).double()
    x_s = kernel.step(x, t, LATE, given(noise)).x
    free = on(PredictorCorrector(delta=0.3), prior)
    y = free.predict(x, prior(x, t).mean, t, LATE, lambda like: noise[0])
    y = kernel.prox(y, LATE)
    for z in noise[1:]:
        y = free.correct(y, prior(y, LATE).mean, LATE, lambda like, z=z: z)
        y = kernel.prox(y, LATE)
    torch.testing.assert_close(x_s, y)
