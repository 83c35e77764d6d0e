"""Constrained Diffusion Implicit Models."""

import pytest
import torch

from feasibly import Ancestral, Linear
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.network import Evaluations, Network
from feasibly.oracles import Gaussian
from feasibly.samplers import CDIM
from feasibly.schedules import VP, Cosine, LogLogit, Rectified

pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)
SCHEDULES = pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plane(m, D=5):
    return Linear(normal(m, D), normal(m, seed=1), tolerance=1e-6)


def correlated(schedule, D=5):
    half = normal(D, D, seed=2)
    return Gaussian(torch.zeros(D), half @ half.T / D + torch.eye(D) / 5, schedule)


@SCHEDULES
def test_the_limit_is_that_of_a_feasible_samples_residual_under_noise(schedule):
    """Against 200,000 draws. The mean's standard error is sd / 450; the variance's, with a
    kurtosis below 15 (a chi-square of one), is below 1% of it. At six standard errors each the
    false-alarm rate is 1e-8."""
    constraint, n = plane(3), 200_000
    sampler = CDIM(correlated(schedule), constraint)
    limits = [
        CDIM(correlated(schedule), constraint, c=c).limit(S, normal(1)).item() for c in (0.0, 1.0)
    ]
    alpha, sigma = schedule(S)
    x_0 = constraint.projection(normal(1, 5, seed=3))
    x_s = alpha * x_0 + sigma * normal(n, 5, seed=4)
    size = constraint.violation(x_s)
    assert abs(size.mean().item() - limits[0]) < 6 * size.std().item() / n**0.5
    std = limits[1] - limits[0]
    assert std**2 == pytest.approx(size.var().item(), rel=0.06)
    # and c counts standard deviations
    assert sampler.limit(S, normal(1)).item() == pytest.approx(limits[0] + 0.1 * std)


def test_the_limit_does_not_depend_on_which_feasible_sample_it_was():
    """A x_0 = y is all that enters."""
    constraint = plane(2)
    alpha, sigma = Cosine()(S)
    x_0 = constraint.projection(10 * normal(2, 5, seed=3))
    z = sigma * normal(1, 5, seed=4)
    size = constraint.violation(alpha * x_0 + z)
    torch.testing.assert_close(size[0], size[1])


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), VP()], ids=repr)
def test_with_one_residual_a_limit_that_can_be_reached_is_met_exactly(schedule):
    """For one row, A g is a positive multiple of the estimate's residual: it leads to the limit
    if that has the sign of the state's own, and away from it otherwise."""
    prior, constraint = correlated(schedule), plane(1)
    sampler = CDIM(prior, constraint, iterations=1)
    x = 8 * normal(40, 5, seed=5)
    limit = sampler.limit(S, x)
    outside = constraint.violation(x) > limit
    r, r_0 = constraint.residual(x)[:, 0], constraint.residual(prior(x, S).mean)[:, 0]
    reachable = outside & (r * r_0 > 0)
    assert reachable.sum() > 0
    assert (~outside).sum() > 0
    found = sampler.correct(x, S)
    reached = constraint.violation(found)[reachable]
    torch.testing.assert_close(reached, limit.expand_as(reached), rtol=1e-9, atol=0)
    # states that are plausible already, or led away, stay as they are
    assert torch.equal(found[~reachable], x[~reachable])


@SCHEDULES
def test_the_step_is_the_least_along_the_gradient_that_meets_the_limit(schedule):
    """Along A^T's image under the denoiser's Jacobian; every shorter step misses."""
    prior, constraint = correlated(schedule), plane(3)
    sampler = CDIM(prior, constraint, iterations=1, c=3.0)
    x = 5 * normal(60, 5, seed=5)
    limit = sampler.limit(S, x)
    found = sampler.correct(x, S)
    inner = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(constraint.violation(prior(inner, S).mean).sum(), inner)
    step = x - found
    length = (step * g).sum(dim=1) / g.square().sum(dim=1)
    torch.testing.assert_close(step, length[:, None] * g, rtol=1e-6, atol=1e-9)
    assert (length >= 0).all()

    after = constraint.violation(found)
    met = (after - limit).abs() < 1e-8 * limit
    moved = length > 0
    assert (met & moved).any()
    for share in (0.5, 0.9, 0.999):
        short = constraint.violation(x - share * step)
        assert (short > limit)[met & moved].all()
    # those who cannot meet it come as close as the gradient leads
    best = torch.stack(
        [constraint.violation(x - a * step) for a in torch.linspace(0, 3, 61).tolist()]
    )
    stuck = moved & ~met & (after > limit)
    assert (after <= best.min(dim=0).values * (1 + 1e-9))[stuck].all()


def test_a_limit_that_no_step_meets_is_approached():
    """Three residuals and a limit near zero: the gradient leads past it."""
    prior, constraint = correlated(LogLogit()), plane(3)
    t = torch.tensor(0.0, dtype=torch.float64)
    x = normal(20, 5, seed=5)
    found = CDIM(prior, constraint, iterations=1).correct(x, t)
    limit = CDIM(prior, constraint).limit(t, x)
    before, after = constraint.violation(x), constraint.violation(found)
    assert (after < before).all()
    assert (after > limit).all()
    # at the minimum along the line, A g is orthogonal to what is left
    A_g = (x - found) @ constraint.A.T
    cosine = torch.cosine_similarity(A_g, constraint.residual(found), dim=1)
    assert cosine.abs().max() < 1e-6
    # and more iterations come closer
    further = CDIM(prior, constraint, iterations=20).correct(x, t)
    assert (constraint.violation(further) < after).all()


@SCHEDULES
def test_without_corrections_it_is_ddim(schedule):
    prior = correlated(schedule)
    cdim = CDIM(prior, plane(2), steps=6, iterations=0).sample(4, (5,), seed=3)
    ddim = Ancestral(prior, steps=6, eta=0.0, order=1, spacing="time").sample(4, (5,), seed=3)
    assert torch.equal(cdim.samples, ddim.samples)


def test_plausible_states_cost_no_gradient():
    prior, constraint = correlated(LogLogit()), plane(1)
    sampler = CDIM(Network(prior, Evaluations()), constraint, c=1e6)
    x = normal(5, 5)
    found = sampler.step(x, T, S)
    ddim = Ancestral(prior, eta=0.0).step(x, T, S)
    assert torch.equal(found.x, ddim.x)
    assert torch.equal(found.x_0, ddim.x_0)
    spent = sampler.denoiser.evaluations
    assert (spent.forward, spent.backward) == (1, 0)


def test_states_end_at_the_edge_of_plausibility():
    """So the last noise level says how exact samples are."""
    prior, constraint = correlated(LogLogit()), plane(1)
    sampler = CDIM(prior, constraint, steps=20, output="state")
    result = sampler.sample(8, (5,), dtype=torch.float64)
    t = torch.tensor(0.0, dtype=torch.float64)
    assert (result.violation <= sampler.limit(t, result.samples) * (1 + 1e-6)).all()
    assert result.violation.max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_reachable_limit_takes_one_gradient_a_member(dtype):
    """A residual on the limit by rounding must not be stepped on again and again."""
    network = Network(correlated(LogLogit()), Evaluations())
    sampler = CDIM(network, plane(1), iterations=20)
    x = (8 * normal(200, 5, seed=5)).to(dtype)
    outside = sampler.constraint.violation(x) > sampler.limit(S.to(dtype), x)
    sampler.correct(x, S.to(dtype))
    # some may take another, from just outside
    assert network.evaluations.member_backward <= 2 * outside.sum()


def test_a_step_costs_a_gradient_an_iteration_at_most():
    sampler = CDIM(correlated(LogLogit()), plane(3), steps=5, iterations=4)
    spent = sampler.sample(3, (5,)).evaluations
    assert sampler.budget() == (26, 20)
    assert spent.forward <= 26
    assert 0 < spent.backward <= 20


def test_it_needs_a_linear_constraint(gaussian):
    with pytest.raises(ValueError, match=r"needs a Linear constraint.*got LevelSet.*use PPR"):
        CDIM(gaussian, LevelSet(GaussianRandomField(0)))


@pytest.mark.parametrize("c", [-0.1, float("nan")])
def test_a_bad_c_is_refused(c, gaussian):
    with pytest.raises(ValueError, match=r"c=.*negative"):
        CDIM(gaussian, plane(1, 2), c=c)


def test_negative_iterations_are_refused(gaussian):
    with pytest.raises(ValueError, match=r"iterations=.*whole number of at least 0, got -1"):
        CDIM(gaussian, plane(1, 2), iterations=-1)
