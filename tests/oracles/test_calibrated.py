"""CalibratedPPR against exact conditional distributions.

Statistics are of N samples with fixed seeds, so that a test is missed by a change of the code and
not by chance; bounds are five standard errors or more of what is exact, and so a fresh seed would
miss one in some 10^6.
"""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import feasibly
from feasibly import CalibratedPPR
from feasibly.constraints import Bounds, Composite, Equality, Inequality, Linear, Observation
from feasibly.linalg import least_squares
from feasibly.minimizers import GaussNewton
from feasibly.network import Evaluations, counted
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.samplers import PPR
from feasibly.samplers.moments import toward
from feasibly.schedules import VP, LogLogit, Rectified
from tests.helpers import on, sampled
from tests.samplers.conftest import double
from tests.samplers.conftest import normal as randn

D, N = 30, 2048


class Known:
    """A Gaussian in 30 dimensions under m linear residuals, and its exact conditional."""

    def __init__(self, condition, m, schedule=None, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        U = torch.linalg.qr(normal(D, D)).Q
        cov = (U * torch.logspace(0, -math.log10(condition), D, dtype=torch.float64)) @ U.T
        A = normal(m, D) / math.sqrt(D)
        y = A @ torch.linalg.cholesky(cov) @ normal(D)
        gain = cov @ A.T @ torch.linalg.inv(A @ cov @ A.T)
        self.mean, self.cov = gain @ y, cov - gain @ A @ cov
        self.constraint = Linear(A, y, tolerance=1e-6)
        schedule = schedule or LogLogit(1e-3, 1e2, spread=2.0)
        self.denoiser = Gaussian(torch.zeros(D, dtype=torch.float64), cov, schedule)

    def whitened(self, x):
        """Samples in the directions that are free, in units of their exact standard deviations."""
        values, vectors = torch.linalg.eigh(self.cov)
        free = values > 1e-9 * values.max()
        return (x - self.mean) @ vectors[:, free] / values[free].sqrt()

    def sample(self, method="calibrated"):
        settings = {"method": method, "dtype": torch.float64}
        return feasibly.sample(self.denoiser, self.constraint, N, (D,), **settings)


@pytest.mark.parametrize(("condition", "m"), [(1.0, 1), (1e3, 6)])
def test_gaussian_and_linear_has_the_exact_mean_and_spread(condition, m):
    problem = Known(condition, m)
    result = problem.sample()
    assert result.feasible.all()
    x = problem.whitened(result.samples)
    std = (result.samples.var(dim=0).sum() / problem.cov.trace()).sqrt().item()
    assert abs(std - 1) < 0.02
    assert x.std(dim=0).sub(1).abs().max() < 0.06 + 5 / math.sqrt(2 * N)
    assert x.mean(dim=0).abs().max() < 5 / math.sqrt(N)


@pytest.mark.parametrize(
    "schedule", [LogLogit(1e-3, 1e2, spread=2.0), VP(), Rectified()], ids=repr
)
@pytest.mark.parametrize("m", [1, 6])
def test_without_noise_it_ends_at_the_exact_mean(schedule, m):
    """The chain is affine in its noise, so that its mean is where it goes without any."""
    problem = Known(1e3, m, schedule)
    kernel = on(CalibratedPPR(products=0), problem.denoiser, problem.constraint)
    x_t = x_0 = torch.zeros(1, D, dtype=torch.float64)
    for t, s in pairwise(kernel.times()):
        x_t, x_0, _ = kernel.step(x_t, t, s, torch.zeros_like)
    assert (x_0[0] - problem.mean).norm() < 1e-3 * problem.mean.norm()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "schedule"), [(5, None), (2, Rectified())], ids=["exploding", "rectified"]
)
def test_with_the_whole_square_root_it_is_exact_in_any_number_of_steps(steps, schedule):
    problem = Known(10.0, 3, schedule)
    x = problem.whitened(problem.sample(CalibratedPPR(steps=steps, products=D)).samples)
    covariance = x.T @ x / N
    # the largest eigenvalue of such a sample covariance is (1 + sqrt(D / N))^2 = 1.25
    values = torch.linalg.eigvalsh(covariance)
    assert values.max() < 1.4
    assert values.min() > 0.68
    assert x.mean(dim=0).abs().max() < 5 / math.sqrt(N)


@pytest.mark.slow
def test_the_default_is_exact_for_normal_data_in_few_steps():
    """With the floor of learned denoisers the means were off by 0.4."""
    problem = Known(1e3, 20)
    result = problem.sample("auto")
    assert result.feasible.all()
    x = problem.whitened(result.samples)
    assert x.mean(dim=0).abs().max() < 5 / math.sqrt(N)
    assert x.std(dim=0).sub(1).abs().max() < 0.12 + 5 / math.sqrt(2 * N)
    evaluations = result.evaluations
    assert evaluations.member_forward + 2 * evaluations.member_backward < 250 * N


def test_the_first_step_goes_to_the_top():
    gaussian = Known(1.0, 1).denoiser
    law = Linear(torch.eye(D)[:1], torch.zeros(1), tolerance=1e-6)
    kernel = on(CalibratedPPR(steps=4, spacing="noise", top=0.5), gaussian, law)
    levels = [kernel.noise_level(t) for t in kernel.times()]
    assert levels[1] == pytest.approx(0.5)
    assert len(levels) == 5
    ratios = [b / a for a, b in pairwise(levels[1:])]
    assert ratios == pytest.approx(ratios[:1] * 3)
    assert kernel.times()[[0, -1]].tolist() == [1.0, 0.0]
    whole = on(CalibratedPPR(steps=4, spacing="noise"), gaussian, law)
    for top in (200.0, 1e-5):  # above the highest level, and below the lowest
        assert torch.equal(replace(whole, top=top).times(), whole.times())


@pytest.mark.slow
def test_narrow_directions_of_a_smooth_field_tell_its_unknown_half():
    """Of a field on a circle, which has one of two amplitudes. The posterior mean is that of a
    Gaussian, whatever the amplitude. A solver that takes wide directions alone is off by 0.6."""
    angle = 2 * math.pi / 80 * torch.arange(80).double()
    apart = 2 * torch.sin((angle[:, None] - angle) / 2)
    cov = torch.exp(-apart.square() / 2) + 1e-3 * torch.eye(80).double()
    spread = torch.stack([cov, 1.69 * cov]).float()
    prior = GaussianMixture(torch.ones(2) / 2, torch.zeros(2, 80), spread, LogLogit())
    y = torch.linalg.cholesky(cov) @ randn(80)
    law = Linear(torch.eye(80)[:40], y[:40].float(), tolerance=1e-5)
    gain = torch.linalg.solve(cov[:40, :40], cov[:40, 40:]).T
    mean, left = gain @ y[:40], cov[40:, 40:] - gain @ cov[:40, 40:]
    x = feasibly.sample(prior, law, 128, (80,)).samples[:, 40:].double()
    off = (x.mean(dim=0) - mean) / left.diagonal().sqrt()
    assert off.square().mean().sqrt() < 0.3  # its standard deviation is 0.09


def test_the_solver_takes_no_more_products_than_data_have_dimensions():
    """Two of the steps are above the first level, and the rest below."""
    problem = Known(1000.0, 12)
    law, method = problem.constraint, CalibratedPPR(steps=8, spacing="noise", products=1)
    whole = on(method, problem.denoiser, law)
    levels = [whole.noise_level(t) for t in whole.times()[:-1]]
    kernel = replace(whole, dimensions=((levels[2], 2), (levels[5], 20)))
    assert [kernel.solves(t) for t in whole.times()[:-1]] == [1, 1, 2, 2, 2, 8, 8, 8]
    falling = replace(whole, dimensions=((levels[1], 0), (levels[2], 5), (levels[5], 3)))
    assert [falling.solves(t) for t in whole.times()[:-1]] == [1, 1, 5, 5, 5, 5, 5, 5]
    x_t = levels[0] * randn(4, D)
    for k, number in ((0, 1), (3, 2), (6, 8)):
        spent = Evaluations()
        with counted(spent):
            kernel.posterior(x_t, whole.times()[k], torch.randn_like)
        assert spent.backward == 1 + number
    last = kernel.minimize.cost(12)[1]
    assert kernel.budget(12)[1] == 8 * 1 + (2 * 1 + 3 * 2 + 3 * 8) + last


@pytest.mark.parametrize("top", [math.inf, 1.0])
def test_every_second_step_is_left_out_where_they_are_sparse(top):
    gaussian = Known(1.0, 1).denoiser
    law = Linear(torch.eye(D)[:1], torch.zeros(1), tolerance=1e-6)
    whole = on(CalibratedPPR(steps=30, spacing="noise", top=top), gaussian, law)
    kernel, times = replace(whole, sparse=0.1), whole.times()
    above = sum(whole.noise_level(t) > 0.1 for t in times)
    assert torch.equal(kernel.times(), times[[*range(above), *range(above, 30, 2), 30]])
    assert kernel.budget(1) < whole.budget(1)
    assert torch.equal(replace(whole, sparse=1e-5).times(), times), "below the lowest level"
    longer = replace(kernel, longer=7).times()
    assert torch.equal(longer, times[[*range(above), *range(above, 30, 7), 30]])


ELLIPSE = Equality(
    lambda x: ((x[:, 0] / 2).square() + x[:, 1].square() - 1)[:, None], tolerance=1e-8
)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_the_last_state_is_projected_through_the_denoiser(gaussian):
    """Without it, a linearised move is all that leads to a curved constraint in the end."""
    kernel = on(CalibratedPPR(steps=8), gaussian, ELLIPSE)
    result = sampled(kernel, 512, (2,))
    assert result.feasible.double().mean() > 0.99
    # the kernel of PPR, within the radius of the level before
    t, s = kernel.times()[-2:]
    x_t, *noise = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    given = iter(noise)
    found = kernel.step(kernel.scale(t) * x_t, t, s, lambda like: next(given))
    given = iter(noise)
    x_0 = kernel.posterior(kernel.scale(t) * x_t, t, lambda like: next(given))
    x_s = kernel.predict(kernel.scale(t) * x_t, x_0, t, s, lambda like: next(given))
    ppr = on(PPR(minimize=kernel.minimize), gaussian, ELLIPSE)
    expected = ppr.kernel(x_s, s, kernel.noise_level(t), lambda like: next(given))
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.x_0, expected.x_0)
    assert not ELLIPSE.is_feasible(x_0).all()


def correlated(n=24, rho=0.5):
    i = torch.arange(n)
    return rho ** (i[:, None] - i).abs().double()


def moved(function, x, goal, cov, **options):
    """Moves samples along a covariance to where a function of all values but the last is that of
    a goal."""
    observed = Equality(lambda x: function(x[:, :-1]) - function(goal[:-1]), tolerance=1e-12)

    def solve(S, b, iterations, rtol, least):
        return least_squares(S, b, iterations, rtol, 1e-2)

    return toward(observed, x, lambda v: v @ cov, 0.0, solve, 64, 1e-9, **options).x


def test_a_curved_residual_is_met_like_a_linear_one_if_it_is_linearised_on_the_constraint():
    """A function of each value by itself says the value. So the move is that of kriging."""
    cov = correlated()
    x, (goal,) = randn(5, 24), randn(1, 24, seed=1)
    near = torch.cat([goal[None, :-1], torch.ones(1, 1)], dim=1).expand(5, -1)
    gain = cov[:, :-1] @ torch.linalg.inv(cov[:-1, :-1])
    exact = x + (goal[:-1] - x[:, :-1]) @ gain.T
    for function in (lambda v: v, lambda v: v + v**3, torch.sinh):
        found = moved(function, x, goal, cov, near=near, width=torch.ones(5))
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-5)
    alone = moved(torch.sinh, x, goal, cov, width=torch.ones(5))
    assert (alone - exact).abs().max() > 0.1, "at the sample itself the slope is another"


def test_a_point_far_off_is_no_place_to_linearise_and_is_told_by_member():
    """Four widths from a sample is the farthest, and a point that is not finite is left out."""
    x, (goal,), cov = randn(3, 24), randn(1, 24, seed=1), correlated()
    near = goal.expand(3, -1).clone()
    near[1] += 30.0  # its exponential is 10^13
    near[2] = math.nan
    width = double([1.0, 0.5, 1.0])

    def found(near, rows=slice(None)):
        return moved(torch.exp, x[rows], goal, cov, near=near, width=width[rows])

    whole = found(near)
    torch.testing.assert_close(whole[:1], found(near[:1], slice(1)))
    torch.testing.assert_close(whole[1:2], found(x[1:2] + 2.0, slice(1, 2)))
    torch.testing.assert_close(whole[2:], found(None, slice(2, 3)))
    assert not torch.allclose(whole[:1], found(None, slice(1)))


@pytest.mark.slow
@pytest.mark.parametrize(("function", "noise"), [(torch.exp, None), (torch.tanh, 0.02)])
def test_many_curved_values_of_one_branch_have_the_exact_mean_and_spread(function, noise):
    """A run, of a chain of which 40 of 48 values are seen. Bounds are five standard errors of 256
    members for the mean of each of the free values, and 20 % for their spread."""
    cov = correlated(48, 0.8)
    seen = torch.arange(48) % 6 != 5
    prior = Gaussian(torch.zeros(48).double(), cov, LogLogit())
    x = torch.linalg.cholesky(cov) @ randn(48, 1, seed=3)[:, 0].clamp(-1.5, 1.5)
    kept, known = cov[seen][:, seen], function(x[seen])
    if noise is None:
        held = Equality(lambda v: function(v[:, seen]) - known.to(v), 40e-6)
        error = torch.zeros(40)
    else:
        held = Observation(lambda v: function(v[:, seen]), known.float(), noise=noise)
        (slope,) = torch.func.vjp(function, x[seen])[1](torch.ones(40).double())
        error = (noise / slope).square()
    gain = cov[~seen][:, seen] @ torch.linalg.inv(kept + torch.diag(error))
    mean = gain @ x[seen]
    std = (cov[~seen][:, ~seen] - gain @ cov[seen][:, ~seen]).diagonal().sqrt()
    kernel = on(CalibratedPPR(spacing="noise", steps=32, iterations=16), prior, held)
    result = sampled(kernel, 256, (48,), dtype=torch.float64)
    free = (result.samples[:, ~seen] - mean) / std
    assert noise is not None or result.feasible.all()
    assert free.mean(dim=0).abs().max() < 5 / 16
    assert abs(free.std(dim=0).mean() - 1) < 0.2


def test_flat_values_are_met_as_steep_ones_are_unless_they_are_flat_at_the_sample_alone():
    """Their slopes differ by 30, and singular values below a hundredth are bounded."""
    sizes = torch.logspace(0, 1.5, 23).double()
    (goal,), cov = randn(1, 24, seed=1), torch.eye(24).double()
    near = goal[None] + 1e-3
    met = moved(
        lambda v: sizes * v.sinh(), randn(1, 24), goal, cov, near=near, width=torch.ones(1)
    )
    torch.testing.assert_close(met[:, :-1], goal[None, :-1], rtol=0, atol=1e-4)
    blind = moved(lambda v: sizes * v.sinh(), randn(1, 24), goal, cov, near=near)
    assert (blind - goal)[:, :8].abs().max() > 0.1, "without a width, the bound leaves them out"
    flat = goal[None] + 0.1
    flat[:, 3] = 1e-6  # where a square has no slope, and Newton's step is 10^5
    assert moved(torch.square, flat, goal, cov, width=torch.ones(1)).abs().max() < 10


@pytest.mark.parametrize(
    "options",
    [
        {"products": -1},
        {"iterations": 0},
        {"floor": -0.1},
        {"floor": "a"},
        {"top": 0.0, "spacing": "noise"},
        {"top": 1.0},  # which needs spacing="noise"
        {"longer": 0},
        *({"dimensions": wrong} for wrong in (3, (1.0, 2), ((0.0, 2),), ((1.0, 2.5),))),
        {"dimensions": ((math.nan, 2),)},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options, gaussian):
    with pytest.raises(ValueError, match=rf"CalibratedPPR\({next(iter(options))}="):
        on(CalibratedPPR(**options), gaussian, ELLIPSE)


@pytest.mark.parametrize(
    "constraint",
    [
        Inequality(lambda x: x[:, :1], tolerance=1e-8),
        Composite([ELLIPSE, Inequality(lambda x: x[:, :1], tolerance=1e-8)]),
        Bounds(torch.tensor([-0.5, 0.2]), torch.tensor([0.5, 0.2]), tolerance=1e-8),
    ],
    ids=["inequality", "beside an equality", "equal bounds beside others"],
)
def test_inequalities_are_refused(constraint, gaussian):
    with pytest.raises(ValueError, match="CalibratedPPR is for equalities"):
        sampled(on(CalibratedPPR(), gaussian, constraint), 4, (2,))


class Crooked(Gaussian):
    """A Gaussian's denoiser with an error at high noise, as learned ones have: small beside the
    noise, and enough for a Jacobian that is neither symmetric nor positive."""

    def mean(self, x, sigma):
        W = torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        error = 0.05 * torch.sin(x.double() @ W.T / (1 + sigma.double()))
        return super().mean(x, sigma) + error * sigma.double() / (1 + sigma.double())


def test_a_jacobian_that_is_not_positive_throws_no_sample_off():
    """Without the bounds, members leave the data by many orders of magnitude."""
    problem = Known(1e3, 6)
    prior = problem.denoiser
    cov = (prior.vectors * prior.values) @ prior.vectors.T
    crooked = Crooked(prior.mu, cov, prior.schedule)
    kernel = on(CalibratedPPR(minimize=GaussNewton()), crooked, problem.constraint)
    result = sampled(kernel, 256, (D,), dtype=torch.float64)
    assert result.feasible.all()
    assert (result.samples - problem.mean).abs().max() < 6
    std = (result.samples.var(dim=0).sum() / problem.cov.trace()).sqrt().item()
    assert 0.9 < std < 1.2
