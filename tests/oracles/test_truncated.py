"""Inequalities, against the prior truncated to them.

The plane is cut into 8 x 8 bins of side 0.69. Total variation is half the sum over bins of
|share of N = 4096 samples - exact share|, *without* taking off the noise of sampling, which alone
is 0.013 to 0.030 on average (half the sum of sqrt(2 p (1 - p) / pi N)). Its standard deviation
is below 0.004 and seeds are fixed, so that these tests are missed by a change of the code and
not by chance.
"""

import pytest
import torch

import feasibly
from feasibly.constraints import Bounds, Composite, Inequality, Linear
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.policy import Case
from feasibly.problem import Problem, inspect
from feasibly.run import run
from feasibly.samplers import PPR, TruncatedPPR, TunedPPR
from feasibly.schedules import LogLogit
from tests.helpers import on

N, BINS, HALF, FINE = 4096, 8, 2.75, 40
COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 1.0]]).double()
MEANS = torch.tensor([[-1.2, -0.6], [1.2, -0.6], [0.0, 1.2]]).double()
WEIGHTS = torch.tensor([0.3, 0.3, 0.4]).double()
NORMAL = torch.tensor([0.8, 0.6]).double()


def gaussian_density(x):
    return torch.exp(-(x @ torch.linalg.inv(COVARIANCE) * x).sum(dim=1) / 2)


def mixture_density(x):
    squares = (x[:, None] - MEANS).square().sum(dim=-1)
    return (WEIGHTS * torch.exp(-squares / (2 * 0.09))).sum(dim=1)


PRIORS = {
    "gaussian": (Gaussian(torch.zeros(2), COVARIANCE, LogLogit()), gaussian_density),
    "mixture": (
        GaussianMixture(WEIGHTS, MEANS, 0.09 * torch.eye(2).expand(3, 2, 2), LogLogit()),
        mixture_density,
    ),
}
CONSTRAINTS = {
    "half-plane": Inequality(lambda x: (x @ NORMAL.to(x))[:, None] + 0.25, 1e-12),
    "box": Bounds(torch.tensor([-0.9, -0.8]), torch.tensor([0.8, 0.7]), 1e-12),
}


def bins(x):
    """The bin of each point; those outside the square count in the nearest."""
    place = ((x.double() + HALF) / (2 * HALF) * BINS).floor().clamp(0, BINS - 1).long()
    return place[:, 0] * BINS + place[:, 1]


def truncated(density, constraint):
    """The shares of the bins, by the midpoint rule."""
    u = ((torch.arange(2 * BINS * FINE).double() + 0.5) / (BINS * FINE) * 2 - 2) * HALF
    x = torch.cartesian_prod(u, u)
    inside = density(x) * (constraint.violation(x) == 0)
    shares = torch.bincount(bins(x), inside, minlength=BINS**2)
    return shares / shares.sum()


def total_variation(x, exact):
    shares = torch.bincount(bins(x), minlength=BINS**2) / len(x)
    return (shares - exact).abs().sum().item() / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "constraint", "options", "largest"),
    [
        ("gaussian", "box", {}, 0.05),
        ("mixture", "half-plane", {}, 0.05),
        # what projection alone makes of it is not held to that bar
        ("gaussian", "half-plane", {"attempts": 2, "method": "ppr-tuned"}, 0.10),
    ],
)
def test_samples_follow_the_truncated_prior(prior, constraint, options, largest):
    denoiser, density = PRIORS[prior]
    exact = truncated(density, CONSTRAINTS[constraint])
    result = feasibly.sample(denoiser, CONSTRAINTS[constraint], N, (2,), **options)
    assert result.feasible.all()
    assert total_variation(result.samples, exact) <= largest


def test_the_kernel_leaves_members_inside_where_they_are():
    denoiser, _ = PRIORS["gaussian"]
    kernel = on(TruncatedPPR(minimize=GaussNewton()), denoiser, CONSTRAINTS["box"])
    t = torch.tensor(0.3)
    x_t = 1.5 * torch.randn((200, 2), generator=torch.Generator().manual_seed(0))
    inside = CONSTRAINTS["box"].is_feasible(denoiser(x_t, t).mean)
    found = kernel.kernel(x_t, t, 10.0, torch.zeros_like)
    assert 20 < inside.sum() < 180
    assert torch.equal((found.x == x_t).all(dim=1), inside)
    assert CONSTRAINTS["box"].is_feasible(found.x_0).all()
    # PPR's moves them all, and members outside just as far
    ppr = on(PPR(minimize=GaussNewton()), denoiser, CONSTRAINTS["box"])
    everywhere = ppr.kernel(x_t, t, 10.0, torch.zeros_like)
    assert (everywhere.x != x_t).any(dim=1).all()
    assert torch.equal(everywhere.x[~inside], found.x[~inside])


def test_a_prior_that_is_inside_is_sampled_as_it_is_and_for_free():
    denoiser, _ = PRIORS["gaussian"]
    loose = Bounds(-50.0, 50.0, 1e-12)
    for method, attempts in (("ppr-tuned", 1), ("ppr-tuned", 6), ("auto", 6)):
        result = feasibly.sample(denoiser, loose, 64, (2,), attempts=attempts, method=method)
        assert result.evaluations.backward == 0
        assert result.samples.std() > 0.8  # where renoising would leave it near 0.74


LINE = Linear(torch.tensor([[1.0, -0.5]]), torch.tensor([0.3]), 1e-8)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_mixed_constraints_truncate_what_the_equality_makes():
    """A member that the equality alone puts inside at once is the same under both."""
    half, method = Inequality(lambda x: x[:, 1:] - 0.2, 1e-8), TunedPPR()
    problem = Problem(PRIORS["gaussian"][0], Composite([LINE, half]), (2,), dtype=torch.float64)
    case = Case(problem, inspect(problem))
    both = run(case.projected_at_last(method, method), 256)
    line = run([method.bind(problem.but(constraint=LINE))], 256)
    assert both.feasible.all()
    at_once = line.feasible & half.is_feasible(line.samples)
    assert 100 < at_once.sum() < 200
    torch.testing.assert_close(both.samples[at_once], line.samples[at_once], rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "ppr-tuned"])
def test_mixed_constraints_that_the_prior_hardly_meets_are_met_by_all(method):
    denoiser, _ = PRIORS["gaussian"]
    corner = Composite([LINE, Inequality(lambda x: 2.5 - x[:, 1:], 1e-8)])  # 1 in 300
    result = feasibly.sample(denoiser, corner, 48, (2,), dtype=torch.float64, method=method)
    assert result.feasible.all()
    assert (result.samples[:, 1] >= 2.5 - 1e-4).all()
    assert (result.samples[:, 1] > 2.51).any()  # and not all on the edge
