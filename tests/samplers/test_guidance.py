"""DPS, DPS with a corrector, and CDIM: steps along the gradient of a residual."""

import pytest
import torch

from feasibly import Ancestral, Inequality
from feasibly.network import Evaluations, counted
from feasibly.oracles import Gaussian
from feasibly.samplers import CDIM, DPS, DPSPC
from feasibly.schedules import Cosine, LogLogit, Rectified
from tests.helpers import on
from tests.samplers.conftest import (
    CURVE,
    SCHEDULES,
    S,
    T,
    correlated,
    denoised,
    given,
    normal,
    plane,
)

UNITS = pytest.mark.parametrize("units", ["vp", "state"])


def gradient(prior, constraint, x, t):
    """That of the residual's norm, of a Gaussian and a linear constraint, and the estimate."""
    x_0, slope = denoised(prior, x, t)
    r = x_0 @ constraint.A.T - constraint.y
    return r / r.norm(dim=1, keepdim=True) @ constraint.A @ slope, x_0


@SCHEDULES
@UNITS
def test_guidance_is_the_gradient_of_the_residuals_norm(schedule, units):
    prior, constraint = correlated(schedule, 5), plane(2, 5)
    kernel = on(DPS(zeta=0.7, units=units), prior, constraint)
    x, z = normal(4, 5, seed=4), normal(4, 5, seed=5)
    x_s, x_0, _ = kernel.step(x, T, S, lambda like: z)
    g, estimate = gradient(prior, constraint, x, T)
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(T), schedule(S)
    zeta = 0.7
    if units == "vp":
        zeta *= ((alpha_t**2 + sigma_t**2) * (alpha_s**2 + sigma_s**2)).sqrt()
    free = on(Ancestral(), prior).step(x, T, S, lambda like: z).x
    torch.testing.assert_close(x_0, estimate)
    torch.testing.assert_close(x_s, free - zeta * g)


def test_guidance_goes_through_a_nonlinear_denoiser_and_constraint(checkerboard):
    """Against central differences."""
    kernel = on(DPS(units="state"), checkerboard, CURVE)
    x, h = normal(6, 2), 1e-5
    t, s = torch.tensor([0.5, 0.45], dtype=torch.float64)

    def norm(x):
        return CURVE.residual(checkerboard(x, t).mean).norm(dim=1)

    shifts = h * torch.eye(2, dtype=torch.float64)
    g = torch.stack([(norm(x + e) - norm(x - e)) / (2 * h) for e in shifts], dim=1)
    free = on(Ancestral(), checkerboard).step(x, t, s, torch.zeros_like).x
    guided = kernel.step(x, t, s, torch.zeros_like).x
    torch.testing.assert_close(free - guided, g, rtol=1e-5, atol=1e-7)
    assert g.norm(dim=1).min() > 1e-3


def test_a_sample_that_satisfies_the_constraint_is_not_guided(gaussian):
    """Where the norm has a kink; and its batch is guided all the same."""
    half_plane = Inequality(lambda x: x[:, :1], tolerance=1e-6)
    x = torch.tensor([[-1.0, -1.0], [1.0, 1.0]]).double()
    guided = on(DPS(), gaussian, half_plane).step(x, T, S, torch.zeros_like).x
    free = on(Ancestral(), gaussian).step(x, T, S, torch.zeros_like).x
    assert torch.equal(guided[0], free[0])
    assert guided[1, 0] < free[1, 0]


@pytest.mark.parametrize("schedule", [LogLogit(), Rectified()], ids=repr)
@UNITS
def test_the_correctors_guidance_is_scaled_with_its_noise(schedule, units):
    """From the end of DPS's step, sqrt(delta) zeta_s times the gradient at s."""
    prior, constraint = correlated(schedule, 4), plane(2, 4)
    options = {"zeta": 0.6, "units": units}
    kernel = on(DPSPC(corrections=1, delta=0.3, **options), prior, constraint)
    x, noise = normal(3, 4, seed=2), normal(2, 3, 4, seed=3)
    x_s, x_0, _ = kernel.step(x, T, S, given(noise))
    y = on(DPS(**options), prior, constraint).step(x, T, S, lambda like: noise[0]).x
    g, estimate = gradient(prior, constraint, y, S)
    alpha, sigma = schedule(S)
    unit = alpha**2 + sigma**2 if units == "vp" else 1.0
    langevin = alpha * estimate + 0.7**0.5 * (y - alpha * estimate)
    torch.testing.assert_close(x_s, langevin + 0.3**0.5 * (sigma * noise[1] - 0.6 * unit * g))
    torch.testing.assert_close(x_0, estimate)  # the latest


@SCHEDULES
def test_the_limit_is_that_of_a_feasible_samples_residual_under_noise(schedule):
    """Against 200,000 draws. The mean's standard error is sd / 450; the variance's, with a
    kurtosis below 15 (a chi-square of one), is below 1% of it. At six standard errors each the
    false-alarm rate is 1e-8."""
    constraint, n = plane(3, 5), 200_000
    prior = Gaussian(torch.zeros(5), torch.eye(5), schedule)
    mean, tenth, whole = (
        on(CDIM(c=c), prior, constraint).limit(S, normal(1)).item() for c in (0.0, 0.1, 1.0)
    )
    alpha, sigma = schedule(S)
    x_0 = constraint.projection(normal(1, 5, seed=3))
    size = constraint.violation(alpha * x_0 + sigma * normal(n, 5, seed=4))
    assert abs(size.mean().item() - mean) < 6 * size.std().item() / n**0.5
    assert (whole - mean) ** 2 == pytest.approx(size.var().item(), rel=0.06)
    assert tenth == pytest.approx(mean + 0.1 * (whole - mean))  # c counts standard deviations


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine()], ids=repr)
def test_with_one_residual_a_limit_that_can_be_reached_is_met_exactly(schedule):
    """For one row, A g is a positive multiple of the estimate's residual: it leads to the limit
    if that has the sign of the state's own, and away from it otherwise."""
    prior, constraint = correlated(schedule, 5), plane(1, 5)
    kernel = on(CDIM(iterations=1), prior, constraint)
    x = 8 * normal(40, 5, seed=5)
    limit = kernel.limit(S, x)
    outside = constraint.violation(x) > limit
    r, r_0 = constraint.residual(x)[:, 0], constraint.residual(prior(x, S).mean)[:, 0]
    reachable = outside & (r * r_0 > 0)
    assert reachable.sum() > 0
    assert (~outside).sum() > 0
    found = kernel.correct(x, S)
    reached = constraint.violation(found)[reachable]
    torch.testing.assert_close(reached, limit.expand_as(reached), rtol=1e-9, atol=0)
    # states that are plausible already, or led away, stay as they are
    assert torch.equal(found[~reachable], x[~reachable])


@SCHEDULES
def test_the_step_is_the_least_along_the_gradient_that_meets_the_limit(schedule):
    """Along A^T's image under the denoiser's Jacobian; every shorter step misses."""
    prior, constraint = correlated(schedule, 5), plane(3, 5)
    kernel = on(CDIM(iterations=1, c=3.0), prior, constraint)
    x = 5 * normal(60, 5, seed=5)
    limit = kernel.limit(S, x)
    step = x - kernel.correct(x, S)
    x_0, slope = denoised(prior, x, S)
    g = constraint.residual(x_0) @ constraint.A @ slope
    length = (step * g).sum(dim=1) / g.square().sum(dim=1)
    torch.testing.assert_close(step, length[:, None] * g, rtol=1e-6, atol=1e-9)
    assert (length >= 0).all()
    met = (constraint.violation(x - step) - limit).abs() < 1e-8 * limit
    moved = length > 0
    assert (met & moved).any()
    for share in (0.5, 0.9, 0.999):
        assert (constraint.violation(x - share * step) > limit)[met & moved].all()


def test_a_limit_that_no_step_meets_is_approached():
    """Three residuals and a limit near zero: the gradient leads past it."""
    prior, constraint = correlated(LogLogit(), 5), plane(3, 5)
    t = torch.tensor(0.0, dtype=torch.float64)
    x = normal(20, 5, seed=5)
    found = on(CDIM(iterations=1), prior, constraint).correct(x, t)
    before, after = constraint.violation(x), constraint.violation(found)
    assert (after < before).all()
    assert (after > on(CDIM(), prior, constraint).limit(t, x)).all()
    # at the minimum along the line, A g is orthogonal to what is left
    A_g = (x - found) @ constraint.A.T
    assert torch.cosine_similarity(A_g, constraint.residual(found), dim=1).abs().max() < 1e-6
    further = on(CDIM(iterations=20), prior, constraint).correct(x, t)
    assert (constraint.violation(further) < after).all()


def test_plausible_states_cost_no_gradient_and_reachable_limits_about_one():
    """A residual on the limit by rounding must not be stepped on again and again."""
    prior, spent = correlated(LogLogit(), 5), Evaluations()
    with counted(spent):
        on(CDIM(c=1e6), prior, plane(1, 5)).step(normal(5, 5), T, S)
    assert (spent.forward, spent.backward) == (1, 0)
    kernel = on(CDIM(iterations=20), prior, plane(1, 5))
    for dtype in (torch.float32, torch.float64):
        x, spent = (8 * normal(200, 5, seed=5)).to(dtype), Evaluations()
        outside = kernel.constraint.violation(x) > kernel.limit(S.to(dtype), x)
        with counted(spent):
            kernel.correct(x, S.to(dtype))
        # some may take another, from just outside
        assert 0 < spent.member_backward <= 2 * outside.sum()
