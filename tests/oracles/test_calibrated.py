"""CalibratedPPR against exact conditional laws.

Statistics are of N samples with fixed seeds, so that a test is missed by a change of the code and
not by chance; bounds are five standard errors or more of what is exact, and so a fresh seed would
miss one in some 10^6.
"""

import math
import warnings
from itertools import pairwise

import pytest
import torch

from feasibly import CalibrationWarning, SamplingError, members
from feasibly.constraints import Bounds, Equality, Linear, log_volume
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.samplers import PPR, CalibratedPPR
from feasibly.schedules import VP, LogLogit, Rectified

D, N = 30, 2048


class Problem:
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
        self.law = Linear(A, y, tolerance=1e-6)
        schedule = schedule or LogLogit(1e-3, 1e2, spread=2.0)
        self.denoiser = Gaussian(torch.zeros(D, dtype=torch.float64), cov, schedule)

    def whitened(self, x):
        """Samples in the directions that are free, in units of their exact standard deviations."""
        values, vectors = torch.linalg.eigh(self.cov)
        free = values > 1e-9 * values.max()
        return (x - self.mean) @ vectors[:, free] / values[free].sqrt()

    def draw(self, method=CalibratedPPR, n=N, **options):
        sampler = method(self.denoiser, self.law, **options)
        return sampler.sample(n, (D,), dtype=torch.float64)


@pytest.mark.parametrize("condition", [1.0, 1e3])
@pytest.mark.parametrize("m", [1, 6])
def test_gaussian_and_linear_has_the_exact_mean_and_spread(condition, m):
    problem = Problem(condition, m)
    result = problem.draw()
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
    problem = Problem(1e3, m, schedule)
    sampler = CalibratedPPR(problem.denoiser, problem.law, products=0)
    times = torch.linspace(1, 0, sampler.steps + 1, dtype=torch.float64)
    x_t = x_0 = torch.zeros(1, D, dtype=torch.float64)
    for t, s in pairwise(times):
        x_t, x_0 = sampler.step(x_t, t, s, torch.zeros_like)
    assert (x_0[0] - problem.mean).norm() < 1e-3 * problem.mean.norm()


@pytest.mark.parametrize("m", [1, 6])
def test_it_takes_at_most_twice_the_calls_of_ppr(m):
    problem = Problem(1e3, m)
    mine = problem.draw(n=64).evaluations
    theirs = problem.draw(PPR, n=64).evaluations
    assert mine.forward + mine.backward <= 2 * (theirs.forward + theirs.backward)


@pytest.mark.parametrize("schedule", [None, Rectified()], ids=["exploding", "rectified"])
@pytest.mark.parametrize("steps", [2, 5])
def test_with_the_whole_square_root_it_is_exact_in_any_number_of_steps(steps, schedule):
    problem = Problem(10.0, 3, schedule)
    x = problem.whitened(problem.draw(steps=steps, products=D).samples)
    covariance = x.T @ x / N
    # the largest eigenvalue of such a sample covariance is (1 + sqrt(D / N))^2 = 1.25
    values = torch.linalg.eigvalsh(covariance)
    assert values.max() < 1.4
    assert values.min() > 0.68
    assert x.mean(dim=0).abs().max() < 5 / math.sqrt(N)


def test_without_draws_it_is_too_narrow():
    """What the draws are for."""
    problem = Problem(10.0, 3)
    x = problem.whitened(problem.draw(products=0).samples)
    assert x.std(dim=0).mean() < 0.93


MEANS = torch.tensor([[-1.5, 0.4], [0.0, -0.5], [1.5, 0.4]]).double()
WEIGHTS = torch.tensor([0.25, 0.5, 0.25]).double()
STD = 0.3
COVARIANCES = STD**2 * torch.eye(2).expand(3, 2, 2)
MIXTURE = GaussianMixture(WEIGHTS, MEANS, COVARIANCES, LogLogit())
NORMAL = torch.tensor([0.1, 1.0]).double()


def mixture_masses(offset):
    """The exact masses of the components on a line n . x = offset."""
    distance = (MEANS @ NORMAL - offset) / NORMAL.norm()
    return (WEIGHTS.log() - distance.square() / (2 * STD**2)).softmax(dim=0)


@pytest.mark.parametrize("offset", [0.0, 0.1])
def test_masses_of_a_mixture_on_a_line(offset):
    """Total variation 0.01 is the noise of N samples."""
    law = Equality(lambda x: (x @ NORMAL.to(x) - offset)[:, None], tolerance=1e-8)
    sampler = CalibratedPPR(MIXTURE, law, steps=48, sigma_max=0.1, tries=32)
    result = sampler.sample(N, (2,))
    assert result.feasible.all()
    nearest = (result.samples[:, None] - MEANS).norm(dim=-1).argmin(dim=1)
    shares = torch.bincount(nearest, minlength=3) / N
    assert (shares - mixture_masses(offset)).abs().sum() / 2 < 0.06


@pytest.mark.parametrize("schedule", [VP(), Rectified()], ids=repr)
@pytest.mark.parametrize("steps", [8, 96])
def test_masses_under_schedules_that_preserve_variance_or_have_few_low_levels(schedule, steps):
    """With 8 steps no level but the last is below `sigma_max`; the constraint acts all the same,
    and masses are those of a coarse unconditional sample."""
    law = Equality(lambda x: (x @ NORMAL.to(x))[:, None], tolerance=1e-8)
    prior = GaussianMixture(WEIGHTS, MEANS, COVARIANCES, schedule)
    result = CalibratedPPR(prior, law, steps=steps, sigma_max=0.1, tries=32).sample(N, (2,))
    assert result.feasible.double().mean() > 0.99
    nearest = (result.samples[:, None] - MEANS).norm(dim=-1).argmin(dim=1)
    shares = torch.bincount(nearest, minlength=3) / N
    assert (shares - mixture_masses(0.0)).abs().sum() / 2 < (0.06 if steps == 96 else 0.2)


ROUND = Gaussian(torch.tensor([0.6, 0.0]), torch.tensor([[1.0, 0.0], [0.0, 0.36]]), LogLogit())


def circle_density(theta):
    x, y = theta.cos(), theta.sin()
    return torch.exp(-((x - 0.6) ** 2) / 2 - y**2 / (2 * 0.36))


def mean_cosines(p, theta, n=3):
    p = p / p.sum()
    return torch.stack([(p * (k * theta).cos()).sum() for k in range(1, n + 1)])


def test_a_circle_under_a_gaussian_has_the_tube_s_law_and_the_surface_s_by_log_volume():
    """The residual is steep where x is large, so that the two laws differ."""

    def steep(x):
        return torch.exp(0.8 * x[:, :1]) * (x.norm(dim=1, keepdim=True) - 1)

    law = Equality(steep, tolerance=1e-8)
    # enough steps for the unconditional part, which DDPM makes, and tries for the rare draws
    sampler = CalibratedPPR(ROUND, law, sigma_max=0.1, steps=128, tries=64)
    result = sampler.sample(N, (2,))
    assert result.feasible.double().mean() > 0.995

    angle = torch.atan2(result.samples[:, 1], result.samples[:, 0]).double()
    theta = torch.arange(4096).double() / 4096 * 2 * math.pi
    surface = circle_density(theta)
    tube = surface / torch.exp(0.8 * theta.cos())
    even = torch.full_like(angle, 1 / len(angle))
    weights = log_volume(law, result.samples).double().softmax(dim=0)
    # the laws' first cosines differ by 0.46, and the standard errors are 0.016 and 0.02
    assert (mean_cosines(even, angle) - mean_cosines(tube, theta)).abs().max() < 0.07
    assert (mean_cosines(weights, angle) - mean_cosines(surface, theta)).abs().max() < 0.1
    assert (mean_cosines(tube, theta) - mean_cosines(surface, theta)).abs().max() > 0.4


def test_it_warns_of_members_that_were_kept_at_no_try():
    problem = Problem(1.0, 3)  # few samples of the prior are near three residuals at once
    with pytest.warns(CalibrationWarning, match=r"Of 64 members \d+ were kept at none of 4 tries"):
        problem.draw(n=64, sigma_max=0.1, tries=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        Problem(1.0, 1).draw(n=64, sigma_max=0.5)


def test_members_of_one_number_are_drawn_again_too():
    prior = GaussianMixture(
        torch.tensor([0.2, 0.8]),
        torch.tensor([[-1.0], [1.0]]),
        0.04 * torch.eye(1).expand(2, 1, 1),
        LogLogit(),
    )
    law = Equality(lambda x: x.square() - 1, tolerance=1e-8)
    x = CalibratedPPR(prior, law, sigma_max=0.1, steps=128).sample(N, (1,)).samples
    # the standard error of a share of 0.2 is 0.009
    assert (x > 0).double().mean().item() == pytest.approx(0.8, abs=0.045)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tries": 0}, r"tries=...\) must be at least 1"),
        ({"products": -1}, r"products=...\) must be at least 0"),
        ({"iterations": 0}, r"iterations=...\) must be at least 1"),
        ({"tries": 2.5}, r"a whole number, got 2.5"),
        ({"sigma_max": 1e-4}, r"above the schedule's last noise level, 0.00112"),
        ({"sigma_max": None}, r"sigma_max=None\) must be a number"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        CalibratedPPR(MIXTURE, Linear(NORMAL[None], NORMAL[:1], 1e-8), **options)


def test_it_warns_where_a_rare_mode_is_likelier_than_what_the_pilot_saw():
    """A cluster of mass 0.002 is rarely among 256 samples, and has the constraint to itself."""
    means = torch.tensor([[0.0, 0.0], [1.2, 0.0]]).double()
    prior = GaussianMixture(
        torch.tensor([0.998, 0.002]), means, 0.04 * torch.eye(2).expand(2, 2, 2), LogLogit()
    )
    law = Equality(lambda x: x[:, :1] - 1.2, tolerance=1e-8)
    sampler = CalibratedPPR(prior, law, steps=24, sigma_max=0.1, tries=256)
    with pytest.warns(CalibrationWarning, match="beyond the largest of 256 samples"):
        sampler.sample(64, (2,))


class Told(Gaussian):
    """A prior whose mean is each member's own condition."""

    def mean(self, x, sigma):
        shift = members.current().to(x)[:, None]
        return super().mean(x - shift, sigma) + shift


def test_members_with_conditions_of_their_own_are_refused_where_they_are_drawn_again():
    prior = Told(torch.zeros(2), torch.eye(2), LogLogit())
    law = Equality(lambda x: x[:, :1], tolerance=1e-8)
    with pytest.raises(SamplingError, match="one prior for all members"):
        CalibratedPPR(prior, law, sigma_max=0.1).sample(4, (2,))
    with pytest.raises(SamplingError, match="one prior for all members"):
        CalibratedPPR(prior, law, sigma_max=0.1).sample(4, (2,), chunk=1)
    found = CalibratedPPR(prior, law).sample(64, (2,))
    # of independent coordinates the constraint tells the other nothing
    shift = torch.arange(64)
    assert found.feasible.all()
    assert (found.samples[:, 1] - shift).abs().max() < 5.5


def test_the_pilot_keeps_to_the_chunk_and_is_counted():
    largest = 0

    class Watched(Gaussian):
        def mean(self, x, sigma):
            nonlocal largest
            largest = max(largest, len(x))
            return super().mean(x, sigma)

    law = Equality(lambda x: x[:, :1], tolerance=1e-8)
    sampler = CalibratedPPR(
        Watched(torch.zeros(2), torch.eye(2), LogLogit()), law, steps=8, sigma_max=0.5, tries=2
    )
    calls = sampler.sample(8, (2,), chunk=4).evaluations
    assert largest == 4
    above = sum(sampler.noise_level(t) > 0.5 for t in torch.linspace(1, 0, 9))
    assert calls.member_forward > 256 * (above + 1)
    forward, backward = sampler.budget()
    assert calls.forward <= 2 * forward
    assert calls.backward <= 2 * backward


def test_an_inequality_beside_an_equality_is_refused_too():
    thin = Bounds(torch.tensor([-0.5, 0.2]), torch.tensor([0.5, 0.2]), tolerance=1e-8)
    with pytest.raises(ValueError, match="for equalities"):
        CalibratedPPR(ROUND, thin).sample(4, (2,))


class Crooked(Gaussian):
    """A Gaussian's denoiser with an error at high noise, as learned ones have: small beside the
    noise, and enough for a Jacobian that is neither symmetric nor positive."""

    def mean(self, x, sigma):
        W = torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        error = 0.05 * torch.sin(x.double() @ W.T / (1 + sigma.double()))
        return super().mean(x, sigma) + error * sigma.double() / (1 + sigma.double())


def test_a_jacobian_that_is_not_positive_throws_no_draw_off():
    """Without the bounds, members leave the data by many orders of magnitude."""
    problem = Problem(1e3, 6)
    prior = problem.denoiser
    cov = (prior.vectors * prior.values) @ prior.vectors.T
    crooked = Crooked(prior.mu, cov, prior.schedule)
    result = CalibratedPPR(crooked, problem.law, retries=0).sample(256, (D,), dtype=torch.float64)
    assert result.feasible.all()
    assert (result.samples - problem.mean).abs().max() < 6
    std = (result.samples.var(dim=0).sum() / problem.cov.trace()).sqrt().item()
    assert 0.9 < std < 1.2
