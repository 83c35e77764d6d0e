"""Physics-Constrained Flow Matching."""

import math

import pytest
import torch

from feasibly import Ancestral, Equality, Linear
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.samplers import ECI, PCFM
from feasibly.sampling import trajectory
from feasibly.schedules import Cosine, LogLogit, Rectified

EXACT = GaussNewton(steps=1, damping=0.0, max_distance=None)
T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)
SCHEDULES = pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plane(m=2, D=4):
    return Linear(normal(m, D), normal(m, seed=1), tolerance=1e-6)


def correlated(schedule, D=4):
    half = normal(D, D, seed=2)
    return Gaussian(torch.zeros(D), half @ half.T / D + torch.eye(D) / 5, schedule)


@SCHEDULES
def test_on_a_linear_constraint_it_is_eci(schedule):
    """Whose closed form is a Gauss-Newton step, and whose noise is the initial one."""
    prior, constraint = correlated(schedule), plane()
    pcfm = PCFM(prior, constraint, steps=8, minimize=EXACT)
    eci = ECI(prior, constraint, steps=8)
    a, b = (s.sample(6, (4,), seed=3, dtype=torch.float64).samples for s in (pcfm, eci))
    torch.testing.assert_close(a, b)


@SCHEDULES
def test_a_step_makes_one_gauss_newton_iteration_on_the_estimate(schedule):
    prior = correlated(schedule)
    A = normal(2, 4, seed=5)

    def h(x):
        return torch.sin(x @ A.T) + x[..., :2] ** 2 - 0.3

    x, z = normal(3, 4, seed=6), normal(3, 4, seed=7)
    sampler = PCFM(prior, Equality(h, 1e-6), minimize=EXACT)
    x_s, x_0, _ = sampler.step(x, T, S, lambda like: z)
    for i, d in enumerate(prior(x, T).mean):
        J = torch.func.jacrev(h)(d)
        step = d - J.T @ torch.linalg.solve(J @ J.T, h(d))
        # the iteration is kept if it is better
        better = h(step).square().sum() < h(d).square().sum()
        torch.testing.assert_close(x_0[i], step if better else d)
    assert (x_0 != prior(x, T).mean).any()
    alpha, sigma = schedule(S)
    torch.testing.assert_close(x_s, alpha * x_0 + sigma * z)


@SCHEDULES
@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_the_relaxation_is_twenty_gradient_steps(schedule, penalty):
    """On |x - x_s|^2 + lambda |r(x + delta)|^2: for a linear constraint, an affine iteration."""
    prior, constraint = correlated(schedule), plane()
    x, z = normal(3, 4, seed=6), normal(3, 4, seed=7)
    relaxed, x_0, _ = PCFM(prior, constraint, penalty=penalty, minimize=EXACT).step(
        x, T, S, lambda like: z
    )
    x_s, same, _ = PCFM(prior, constraint, minimize=EXACT).step(x, T, S, lambda like: z)
    torch.testing.assert_close(x_0, same)
    # delta leads from the end of the unconstrained step to its clean estimate
    end, estimate, _ = Ancestral(prior, eta=0.0).step(x, T, S)
    y = x_s
    for _ in range(20):
        r = (y + estimate - end) @ constraint.A.T - constraint.y
        y = y - 0.01 * 2 * (y - x_s + penalty * r @ constraint.A)
    torch.testing.assert_close(relaxed, y)
    assert (relaxed - x_s).norm(dim=1).min() > 1e-3


def test_a_relaxed_member_is_the_same_alone_as_in_a_batch():
    sampler = PCFM(correlated(LogLogit()), plane(), penalty=1.0, minimize=EXACT)
    x, delta = normal(5, 4), normal(5, 4, seed=1)
    together = sampler.relax(x, delta)
    torch.testing.assert_close(sampler.relax(x[2:3], delta[2:3]), together[2:3])
    x[0] = torch.nan
    assert torch.equal(sampler.relax(x, delta)[1:], together[1:])


def test_the_same_noise_serves_every_step():
    sampler = PCFM(correlated(Rectified()), plane(), steps=6)
    noise = MemberNoise(5, range(3), (4,), dtype=torch.float64)
    first = MemberNoise(5, range(3), (4,), dtype=torch.float64)()
    for k, s, step in trajectory(sampler, noise):
        if k:
            alpha, sigma = sampler.denoiser.schedule(s)
            found = (step.x - alpha * step.x_0) / sigma
            torch.testing.assert_close(found, first, rtol=0, atol=1e-8)


@pytest.mark.parametrize("output", ["state", "denoised", "projected"])
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_the_sample_is_projected_in_the_end(output, penalty, checkerboard):
    curve = LevelSet(GaussianRandomField(3))
    sampler = PCFM(checkerboard, curve, steps=8, penalty=penalty, output=output)
    result = sampler.sample(32, (2,), dtype=torch.float64)
    assert result.feasible.double().mean() > 0.9


def test_the_last_projection_is_the_one_given(gaussian):
    """A circle from afar: one Gauss-Newton iteration does not get there, many do."""
    circle = Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-8)
    x = 5 * torch.nn.functional.normalize(normal(4, 2))
    once = PCFM(gaussian, circle, last=EXACT).finish(x)
    assert not circle.is_feasible(once).any()
    torch.testing.assert_close(once, x * (5 + 1 / 5) / 2 / 5)  # Heron's iteration
    assert circle.is_feasible(PCFM(gaussian, circle).finish(x)).all()


def test_evaluations_are_those_of_the_estimates():
    sampler = PCFM(correlated(LogLogit()), plane(), steps=6, penalty=0.5)
    spent = sampler.sample(3, (4,)).evaluations
    assert (spent.forward, spent.backward) == (6, 0) == sampler.budget()


@pytest.mark.parametrize("penalty", [-1.0, math.nan])
def test_a_bad_penalty_is_refused(penalty, gaussian):
    with pytest.raises(ValueError, match=r"penalty=.*must not be negative"):
        PCFM(gaussian, plane(1, 2), penalty=penalty)
