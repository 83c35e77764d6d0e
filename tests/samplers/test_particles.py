"""Particles: their parts against closed forms, and ensembles against exact conditionals.

Statistical tests have fixed seeds. Bars of four standard errors of an exact share fail by chance
in 6 of 100,000 cases.
"""

import itertools
import math

import pytest
import torch
from scipy import integrate, stats

from feasibly.constraints import Bounds, Composite, Equality, Inequality, Linear
from feasibly.constraints.base import Intervals
from feasibly.minimizers import GaussNewton
from feasibly.network import Evaluations, Network
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.samplers import PPR, CalibratedPPR, Particles
from feasibly.samplers.particles import (
    MOST,
    choose,
    inside,
    resampled,
    truncated,
    urgent,
)
from feasibly.schedules import VE, VP, LogLogit

INF = math.inf
LAST = GaussNewton(steps=50, max_distance=None)
pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.CalibrationWarning")


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def interval(a, b):
    """The log-probability of an interval and the mean there, by quadrature from its likeliest
    point, so that no tail underflows."""
    peak = min(max(a, 0.0), b)
    low, high = max(a, peak - 40), min(b, peak + 40)

    def density(z):
        return math.exp((peak**2 - z**2) / 2)

    def moment(f):
        width = 1 / (1 + abs(peak))
        edges = sorted({low, high, peak, *(peak + k * width for k in (-20, -5, -1, 1, 5, 20))})
        edges = [e for e in edges if low <= e <= high]
        return sum(
            integrate.quad(f, u, v, epsabs=0, epsrel=1e-12)[0]
            for u, v in itertools.pairwise(edges)
        )

    mass = moment(density)
    mean = peak + moment(lambda z: (z - peak) * density(z)) / mass
    return math.log(mass) - peak**2 / 2 - math.log(2 * math.pi) / 2, mean


INTERVALS = [(-INF, 0.5), (0.5, INF), (-1, 2), (2, 2.5), (-2.5, -2), (-0.1, 8), (10, INF)]
TAILS = [(-INF, -10), (30, INF), (-INF, -30), (30, 31), (-31, -30), (30, 30.001), (-30, 0.2)]


@pytest.mark.parametrize(("a", "b"), [*INTERVALS, *TAILS, (1, 1 + 1e-7)])
def test_a_normal_in_an_interval_has_its_mass_and_mean_out_to_30_standard_deviations(a, b):
    log_p, mean, _ = truncated(double([a]), double([b]))
    expected, centre = interval(a, b)
    assert log_p.item() == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert mean.item() == pytest.approx(centre, rel=1e-7, abs=1e-7)


def test_a_normal_without_bounds_is_left_alone():
    log_p, mean, _ = truncated(double([-INF]), double([INF]))
    assert (log_p.item(), mean.item()) == (0.0, 0.0)


@pytest.mark.parametrize("at", [-40.0, -3.0, 0.0, 3.0, 40.0])
@pytest.mark.parametrize("width", [1e-6, 1e-9, 1e-13])
def test_a_short_interval_has_its_mean_inside_and_the_mass_of_its_length(at, width):
    a, b = double([at]), double([at]) + width
    log_p, mean, _ = truncated(a, b)
    assert a <= mean <= b
    size = (b - a).log() - a.square() / 2 - math.log(2 * math.pi) / 2
    torch.testing.assert_close(log_p, size, rtol=0, atol=1e-4)


COV = double([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]])


def test_values_with_equal_bounds_are_conditioned_on():
    mean, at = double([[0.3, -1.0, 2.0]]), double([[1.0, 0.0, 1.5]])
    log_h, wanted = inside(mean, COV[None], at, at)
    expected = stats.multivariate_normal(mean[0], COV).logpdf(at[0])
    assert log_h.item() + math.log(2 * math.pi) * -1.5 == pytest.approx(expected)
    assert torch.equal(wanted, at)


def test_an_interval_is_taken_given_the_equality():
    """Of two values the first is known, and the second has its conditional normal."""
    mean, S = double([[0.3, -1.0]]), COV[None, :2, :2]
    log_h, wanted = inside(mean, S, double([[1.0, 0.4]]), double([[1.0, INF]]))
    m = -1.0 + 0.6 / 2.0 * 0.7
    s = math.sqrt(1.0 - 0.36 / 2.0)
    log_p, z = interval((0.4 - m) / s, INF)
    density = stats.norm(0.3, math.sqrt(2.0)).logpdf(1.0) + math.log(2 * math.pi) / 2
    assert log_h.item() == pytest.approx(density + log_p)
    assert wanted[0].tolist() == pytest.approx([1.0, m + s * z])


def test_independent_intervals_have_the_product_of_their_probabilities():
    mean, S = double([[0.3, -1.0]]), torch.diag(double([2.0, 0.5]))[None]
    log_h, wanted = inside(mean, S, double([[1.0, -INF]]), double([[2.0, -1.5]]))
    s = [math.sqrt(2.0), math.sqrt(0.5)]
    one = interval(0.7 / s[0], 1.7 / s[0])
    two = interval(-INF, -0.5 / s[1])
    assert log_h.item() == pytest.approx(one[0] + two[0])
    assert wanted[0].tolist() == pytest.approx([0.3 + s[0] * one[1], -1.0 + s[1] * two[1]])


@pytest.mark.parametrize("weights", [[0.7, 0.1, 0.1, 0.1], [0.0, 0.05, 0.9, 0.05]], ids=str)
def test_resampling_keeps_each_particle_as_often_as_its_weight_on_average(weights):
    """Over evenly spaced numbers the average is exact, and no count is off by one or more."""
    w = double(weights)
    u = (torch.arange(1000).double() + 0.5) / 1000
    chosen, log_w = resampled(w.log()[:, None].expand(4, 1000), u)
    counts = torch.stack([(chosen == k).sum(dim=0) for k in range(4)]).double()
    torch.testing.assert_close(counts.mean(dim=1), 4 * w, rtol=0, atol=0.005)
    assert ((counts - 4 * w[:, None]).abs() < 1).all()
    assert torch.equal(log_w, torch.zeros(4, 1000).double())


def test_particles_that_all_matter_are_not_resampled():
    log_w = double([[0.3, -5.0], [0.2, 0.0], [0.25, 0.0], [0.25, 0.0]]).clamp_min(1e-300).log()
    chosen, after = resampled(log_w[:, :1], double([0.9]))
    assert chosen.squeeze(1).tolist() == [0, 1, 2, 3]
    assert torch.equal(after, log_w[:, :1])
    nothing = torch.full((4, 1), -INF).double()
    chosen, _ = resampled(nothing, double([0.9]))
    assert chosen.squeeze(1).tolist() == [0, 1, 2, 3]


def test_one_particle_is_chosen_in_proportion_to_its_weight():
    w = double([0.5, 0.0, 0.2, 0.3])
    u = (torch.arange(1000).double() + 0.5) / 1000
    kept = choose(w.log()[:, None].expand(4, 1000), u)
    assert torch.bincount(kept, minlength=4).tolist() == [500, 0, 200, 300]
    assert choose(torch.full((4, 2), -INF).double(), double([0.1, 0.9])).tolist() == [0, 3]


def test_the_values_nearest_to_a_bound_are_urgent_and_equalities_always_are():
    values = torch.linspace(0.0, 19.0, 20).double()[None]
    lower, upper = torch.full_like(values, -INF), torch.full_like(values, 30.0)
    one = torch.ones_like(values)
    assert sorted(urgent(Intervals(values, lower, upper), one)[0].tolist()) == list(range(8, 20))
    # in units of its scale the first is near
    scale = one.clone()
    scale[0, 0] = 100.0
    assert 0 in urgent(Intervals(values, lower, upper), scale)[0].tolist()
    fixed = lower.clone()
    fixed[0, 3] = upper[0, 3]
    assert 3 in urgent(Intervals(values, fixed, upper), one)[0].tolist()
    equal = Intervals(values, upper, upper)
    assert len(urgent(equal, one)[0]) == 20


PRIOR = Gaussian(double([0.5, -1.0, 0.2]), COV, LogLogit())
PLANE = Linear(double([[1.0, -2.0, 0.5]]), double([1.5]), tolerance=1e-12)


@pytest.mark.parametrize("shift", [0.1, 50.0])
def test_a_moves_weight_is_the_ratio_of_two_normals(shift):
    sampler = Particles(PRIOR, PLANE)
    t, s = sampler.times()[12:14]
    x_t, x_0, move = randn(5, 3), randn(5, 3, seed=1), shift * randn(5, 3, seed=2)
    x_s, ratio = sampler.moved(x_t, x_0, move, t, s, lambda x: randn(*x.shape, seed=3))
    mean, std = sampler.transition(x_t, x_0, t, s)
    target = sampler.transition(x_t, x_0 + move, t, s)[0]
    if shift == 50.0:  # no particle is moved farther than ten standard deviations of a step
        assert (target - mean).norm(dim=1).min() > 10 * std
        target = mean + 10 * std * (target - mean) / (target - mean).norm(dim=1, keepdim=True)
    p, q = (torch.distributions.Normal(m, std).log_prob(x_s).sum(dim=1) for m in (mean, target))
    torch.testing.assert_close(x_s, target + std * randn(5, 3, seed=3))
    torch.testing.assert_close(ratio, p - q)


def posterior(x_t, t, schedule):
    """The mean and the covariance of a clean sample given a noisy one, of PRIOR's data."""
    alpha, sigma = schedule(t)
    K = alpha * COV @ torch.linalg.inv(alpha**2 * COV + sigma**2 * torch.eye(3).double())
    mean = double([0.5, -1.0, 0.2]) + (x_t - alpha * double([0.5, -1.0, 0.2])) @ K.T
    return mean, COV - alpha * K @ COV


A = double([[1.0, -2.0, 0.5], [0.3, 0.1, 1.0]])
B = double([1.5, 0.4])
BOTH = Composite(
    [
        Linear(A[:1], B[:1], tolerance=1e-6),
        Inequality(lambda x: x @ A[1:].to(x).T - B[1:].to(x), tolerance=1e-6),
    ],
    weights=[1.0, 1.0],
)
BOTH.linear = True  # so that no curvature is estimated


@pytest.mark.parametrize("schedule", [LogLogit(), VP()], ids=repr)
def test_of_gaussian_data_and_linear_residuals_a_twist_is_exact(schedule):
    prior = Gaussian(double([0.5, -1.0, 0.2]), COV, schedule)
    sampler = Particles(prior, Linear(A, B, tolerance=1e-12))
    for level in (0.3, 2.0):
        t = min(sampler.times(), key=lambda t: abs(sampler.noise_level(t) - level))
        x_t = 2 * randn(6, 3)
        found = sampler.twist(x_t, t, randn)
        mean, V = posterior(x_t, t, schedule)
        r, S = mean @ A.T - B, A @ V @ A.T
        expected = [stats.multivariate_normal(cov=S).logpdf(row) for row in r.numpy()]
        gap = found.log_h - double(expected)
        torch.testing.assert_close(gap, gap[:1].expand(6))
        exact = mean - r @ torch.linalg.inv(S) @ A @ V
        torch.testing.assert_close(found.x_0, mean)
        torch.testing.assert_close(found.x_0 + found.move, exact)


def test_the_constant_of_a_twist_is_the_same_at_all_noise_levels():
    sampler = Particles(PRIOR, PLANE)
    gaps = []
    for t in sampler.times()[8:24:5]:
        x_t = randn(2, 3)
        mean, V = posterior(x_t, t, PRIOR.schedule)
        S = (A[:1] @ V @ A[:1].T).item()
        exact = stats.norm(0, math.sqrt(S)).logpdf((mean @ A[0] - 1.5).numpy())
        gaps += (sampler.twist(x_t, t, randn).log_h - torch.from_numpy(exact)).tolist()
    assert gaps == pytest.approx([gaps[0]] * len(gaps), abs=1e-6)


def test_an_equality_and_an_interval_together_are_exact_too():
    sampler = Particles(PRIOR, BOTH)
    t = min(sampler.times(), key=lambda t: abs(sampler.noise_level(t) - 0.5))
    x_t = 2 * randn(6, 3)
    found = sampler.twist(x_t, t, randn)
    mean, V = posterior(x_t, t, PRIOR.schedule)
    S, g = A @ V @ A.T, mean @ A.T - B
    m = g[:, 1] - S[0, 1] / S[0, 0] * g[:, 0]
    s = (S[1, 1] - S[0, 1] ** 2 / S[0, 0]).sqrt().item()
    parts = [interval(-INF, -v / s) for v in m.tolist()]
    log_h = -g[:, 0].square() / (2 * S[0, 0]) + double([log_p for log_p, _ in parts])
    gap = found.log_h - log_h
    torch.testing.assert_close(gap, gap[:1].expand(6))
    wanted = torch.stack([torch.zeros(6).double(), m + s * double([z for _, z in parts])], dim=1)
    exact = mean + (wanted - g) @ torch.linalg.inv(S) @ A @ V
    torch.testing.assert_close(found.x_0 + found.move, exact)


W = torch.tensor([0.5, 0.5])
MU = torch.tensor([[-2.0, -0.6], [2.0, 0.6]])
MIXTURE = GaussianMixture(W, MU, 0.25 * torch.eye(2).expand(2, 2, 2), LogLogit())
SEPARATES = Equality(lambda x: x[:, 1:] - 0.6, tolerance=1e-8)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")  # of the others
def test_modes_that_a_residual_tells_apart_have_their_weights_as_with_no_other_method():
    exact, n = 1 / (1 + math.exp(-(1.2**2) / 0.5)), 1024
    error = 4 * math.sqrt(exact * (1 - exact) / n)

    def right(sampler):
        result = sampler.sample(n, (2,))
        assert result.feasible.double().mean() > 0.9
        return (result.samples[:, 0] > 0).double().mean().item()  # of the second mode

    assert right(Particles(MIXTURE, SEPARATES, particles=16, last=LAST)) == pytest.approx(
        exact, abs=error
    )
    few = PPR(MIXTURE, SEPARATES, steps=32, repeats=1, sigma_max=0.75, minimize=GaussNewton())
    assert abs(right(few) - exact) > 2 * error
    assert abs(right(CalibratedPPR(MIXTURE, SEPARATES)) - exact) > 2 * error


def test_where_an_inequality_is_rare_members_are_spread_over_its_inside():
    """A normal beyond 1.96, of which 2.5 in 100 are. The standard error of a standard deviation
    is taken from the exact fourth moment."""
    n, edge = 512, 1.96
    rare = Inequality(lambda x: edge - x[:, :1], tolerance=1e-10)
    prior = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
    sampler = Particles(prior, rare, particles=32, branch=4.0, level=0.0, last=LAST)
    result = sampler.sample(n, (2,))
    assert result.feasible.all()
    x, free = result.samples.double().unbind(dim=1)
    exact = stats.truncnorm(edge, INF)
    mean, variance, _, kurtosis = exact.stats(moments="mvsk")
    assert x.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / n) + 0.01)
    error = math.sqrt((kurtosis + 2) / n) / 2
    assert x.std().item() == pytest.approx(math.sqrt(variance), rel=0.05 + 4 * error)
    assert free.std().item() == pytest.approx(1, rel=0.02 + 4 / math.sqrt(2 * n))
    near = exact.cdf(edge + 0.05)
    share = (x < edge + 0.05).double().mean().item()
    assert share == pytest.approx(near, abs=0.01 + 4 * math.sqrt(near * (1 - near) / n))
    assert (x < edge + 1e-4).double().mean() < 0.01, "none are gathered on the boundary"


def test_a_mean_far_from_the_data_is_met_by_all_with_the_exact_spread():
    """Three clusters of one width in four dimensions, and a mean at 5 standard deviations."""
    D, n, v, weights = 4, 512, 0.3, double([0.3, 0.3, 0.4])
    mu, row = 1.5 * randn(3, D), torch.full((1, D), 1 / D).double()
    prior = GaussianMixture(weights, mu, v * torch.eye(D).double().expand(3, D, D), LogLogit())
    centre = mu.mean(dim=1)
    middle = weights @ centre
    deviation = (v / D + weights @ (centre - middle).square()).sqrt()
    far = Linear(row, (middle + 5 * deviation)[None], tolerance=1e-8)
    result = Particles(prior, far, particles=32, branch=8.0, last=LAST).sample(n, (D,))
    assert result.feasible.all()
    gap = middle + 5 * deviation - centre
    w = (weights.log() - gap.square() * D / (2 * v)).softmax(dim=0)
    means = mu + gap[:, None]
    spread = w @ (means - w @ means).square() + v * (1 - 1 / D)
    error = 4 / math.sqrt(2 * n)  # of a normal's standard deviation, four standard errors
    found = result.samples.double().std(dim=0)
    torch.testing.assert_close(found, spread.sqrt(), rtol=0.05 + error, atol=0)


def test_data_in_other_units_has_the_same_samples_in_those_units():
    def run(unit):
        prior = GaussianMixture(
            W,
            unit * MU,
            unit**2 * 0.25 * torch.eye(2).expand(2, 2, 2),
            VE(1e-3 * unit, 1e4 * unit),
        )
        curve = Equality(
            lambda x: x.square().sum(dim=1) / unit - 4 * unit, tolerance=1e-10 * unit**2
        )
        units = {"branch": 4.0 * unit, "level": 0.05 * unit, "spread": 1.5 * unit}
        sampler = Particles(prior, curve, particles=4, **units)
        return sampler.sample(16, (2,), dtype=torch.float64).samples

    torch.testing.assert_close(run(100.0), 100 * run(1.0), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("equal", "gradients"), [(False, MOST), (True, 20)])
def test_a_weight_takes_a_gradient_for_twelve_values_or_for_every_equality(equal, gradients):
    evaluations = Evaluations()
    prior = Gaussian(torch.zeros(20), torch.eye(20), LogLogit())
    constraint = Bounds(0.0 if equal else -1.0, 0.0 if equal else 1.0, tolerance=1e-6)
    sampler = Particles(Network(prior, evaluations), constraint)
    sampler.twist(randn(3, 20).float(), double(0.5).float(), torch.randn_like)
    assert (evaluations.forward, evaluations.backward) == (1, gradients)
