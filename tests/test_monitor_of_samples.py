"""The test of samples by the denoiser alone.

Samples have fixed seeds. Where a test is of a share, it says how far chance would take it.
"""

import math

import pytest
import torch

from feasibly import members
from feasibly.constraints import Equality
from feasibly.errors import DenoiserError
from feasibly.messages import RATE
from feasibly.monitor import LEVELS, Monitor, tail_limit
from feasibly.network import Evaluations, counted
from feasibly.oracles import Checkerboard, Empirical, Gaussian, GaussianMixture
from feasibly.problem import Problem
from feasibly.problems.distributions import Checkerboard as Board
from feasibly.samplers import Ancestral, PostHoc
from feasibly.schedules import EDM, VE, VP, Flow, LogLogit
from feasibly.survey import Survey, UnseenError
from tests.helpers import on, sampled

COV = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.2], [0.0, 0.2, 0.5]]).double()
MU = torch.tensor([1.0, -2.0, 0.5]).double()
FAST = {"size": 16, "steps": 8, "dtype": torch.float64}


def monitor_of(denoiser, shape, *, levels=LEVELS, dtype=torch.float32, batch_size=None, **options):
    """Returns the monitor of a denoiser's unconditional samples."""
    problem = Problem(denoiser, None, shape, dtype=dtype, batch_size=batch_size)
    return Monitor.of(Survey.of(problem, **options), levels=levels)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def auc(low, high):
    """The share of pairs in which `high` is larger."""
    return (high[:, None] > low).double().mean().item()


@pytest.mark.parametrize("schedule", [LogLogit(), VP(), Flow()], ids=repr)
def test_errors_of_a_gaussian_are_those_of_its_affine_denoiser(schedule):
    """As many orthogonal pairs of noises as elements give the exact expectation."""
    mu, cov = MU[:2], COV[:2, :2]
    monitor = monitor_of(Gaussian(mu, cov, schedule), (2,), **FAST)
    x = mu + 3 * randn(5, 2)
    found = monitor.assess(x, range(5)).errors
    for k, s in enumerate(monitor.levels):
        K = cov @ torch.linalg.inv(cov + s**2 * torch.eye(2))
        bias = (x - mu) @ (K - torch.eye(2).double())
        exact = (bias.square().sum(dim=1) / s**2 + K.square().sum()) / 2
        torch.testing.assert_close(found[:, k], exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_statistic_does_not_depend_on_the_unit_of_the_data(scale):
    def at(unit):
        x_k = unit * randn(6, 2)
        schedule = VE(1e-3 * unit, 1e6 * unit)  # its states are hardly of unit data at any scale
        oracle = GaussianMixture(
            torch.ones(6), x_k, 0.01 * unit**2 * torch.eye(2).expand(6, 2, 2), schedule
        )
        monitor = monitor_of(oracle, (2,), dtype=torch.float64)
        return monitor.assess(unit * randn(8, 2, seed=1), range(8)), monitor

    (one, monitor), (other, scaled) = at(1.0), at(scale)
    assert scaled.survey.scale == pytest.approx(scale * monitor.survey.scale, rel=1e-4)
    torch.testing.assert_close(scaled.levels, scale * monitor.levels, rtol=1e-4, atol=0)
    torch.testing.assert_close(one.statistic, other.statistic, rtol=1e-3, atol=1e-3)
    assert one.statistic.max() > 2


def test_levels_are_of_the_schedule_and_none_is_taken_twice():
    oracle = Gaussian(MU, COV, VE(0.5, 100.0))
    levels = monitor_of(oracle, (3,), levels=(0.01, 0.02, 1.0, 900.0, 1000.0), **FAST).levels
    assert len(levels) == 3
    assert levels[[0, 2]].tolist() == pytest.approx([0.5, 100.0])


class Heavy(Gaussian):
    """A Gaussian's, with an error at low noise that is large for few samples."""

    def mean(self, x, sigma):
        size = x[:, :1].double().square().exp().clamp_max(30) * (sigma < 0.05)
        return super().mean(x, sigma) + (sigma * size).expand(x.shape).to(x.dtype)


@pytest.mark.parametrize("size", [16, 64])
def test_the_limit_is_that_of_samples_that_are_left_out(size):
    """Each is standardised by all the others. With itself among them the limit is lower."""
    oracle = Heavy(torch.zeros(2), torch.eye(2), LogLogit())
    monitor = monitor_of(oracle, (2,), **FAST | {"size": size})
    log_e = (monitor.assess(monitor.survey.samples, range(size)).errors + 0.01).log()
    left_out = []
    for i in range(size):
        others = log_e[torch.arange(size) != i]
        scale = others.std(dim=0).clamp_min(0.15)
        left_out.append(((log_e[i] - others.mean(dim=0)) / scale).max())
    assert monitor.limit == pytest.approx(tail_limit(torch.stack(left_out)), rel=1e-6)
    within = ((log_e - monitor.location) / monitor.scale).amax(dim=1)
    assert monitor.limit > 1.03 * tail_limit(within)
    assert monitor.limit > 2.2, "the least limit"


@pytest.mark.parametrize("size", [16, 64])
def test_the_limit_is_exact_for_exponential_tails(size):
    """The standard error of the mean rate is at most 0.0003."""
    u = torch.rand(4096, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    limits = torch.tensor([tail_limit(v) for v in -u.log()])
    assert (-limits).exp().mean().item() == pytest.approx(RATE, abs=0.0012)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["board", "gaussian"])
def test_few_unconditional_samples_are_implausible(name):
    """A survey's rate has a mean of at most 0.01 and about that standard deviation, and 8 are
    taken: the mean exceeds 0.025 by chance in fewer than 1 of 10^4 cases."""
    cov = torch.eye(8) + 1.0
    oracle = {
        "board": Checkerboard(4, LogLogit()),
        "gaussian": Gaussian(torch.zeros(8), cov, EDM()),
    }[name]
    shape = (2,) if name == "board" else (8,)
    fresh = sampled(on(Ancestral(steps=24), oracle), 256, shape, seed=1).samples
    flagged = [
        1 - monitor.assess(fresh, range(256)).plausible.double().mean()
        for monitor in (monitor_of(oracle, shape, seed=seed) for seed in range(8))
    ]
    assert sum(flagged) / 8 <= 0.025


def test_members_off_the_data_are_told_from_those_on_it():
    oracle, board = Checkerboard(4, LogLogit()), Board()
    circle = Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-8)
    x = sampled(on(PostHoc(steps=32), oracle, circle), 512, (2,), seed=0).samples
    inside = board.in_support(x)
    assert 50 < (~inside).sum() < 200
    found = monitor_of(oracle, (2,)).assess(x, range(512))
    assert auc(found.statistic[inside], found.statistic[~inside]) >= 0.95
    assert found.plausible[inside].double().mean() >= 0.98
    assert found.plausible[~inside].double().mean() <= 0.3  # many are next to the board


def test_a_smooth_field_may_have_an_unlikely_value_and_may_not_be_torn_there():
    """Exact samples given one value, at 5 standard deviations, against that value put in."""
    u = torch.linspace(0, 1, 64, dtype=torch.float64)
    cov = torch.exp(-(u[:, None] - u).square() / 0.02) + 1e-6 * torch.eye(64).double()
    oracle = Gaussian(torch.zeros(64), cov, VP())
    monitor = monitor_of(oracle, (64,))
    x = randn(128, 64) @ torch.linalg.cholesky(cov).T
    given = x + (5 - x[:, 32:33]) * cov[32] / cov[32, 32]
    assert monitor.assess(given.float(), range(128)).plausible.all()
    torn = x.clone()
    torn[:, 32] = 5
    assert not monitor.assess(torn.float(), range(128)).plausible.any()


def test_a_smaller_error_is_plausible():
    """Between modes that are far apart the denoiser undoes nothing; at a mode it undoes most."""
    data = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    narrow = 1e-4 * torch.eye(2).expand(4, 2, 2)
    oracle = GaussianMixture(torch.ones(4), data, narrow, LogLogit())
    monitor = monitor_of(oracle, (2,))
    found = monitor.assess(torch.cat((data, data + 0.1)), range(8))
    assert found.plausible.tolist() == [True] * 4 + [False] * 4
    assert (found.statistic[:4] < 0).all()


def test_of_a_finite_data_set_only_its_points_are_plausible():
    """All errors of unconditional samples vanish, and so have no logarithm."""
    data = randn(8, 2).float()
    oracle = Empirical(data, LogLogit())
    found = monitor_of(oracle, (2,)).assess(torch.cat((data, data + 0.05)), range(16))
    assert found.plausible.tolist() == [True] * 8 + [False] * 8


def test_a_member_is_assessed_alike_alone_in_a_batch_and_in_parts():
    oracle = Checkerboard(4, LogLogit())
    monitor = monitor_of(oracle, (2,), **FAST)
    x = randn(7, 2)
    whole = monitor.assess(x, range(7))
    for batch_size in (1, 3):
        parts = monitor.assess(x, range(7), batch_size)
        torch.testing.assert_close(parts.errors, whole.errors, rtol=1e-9, atol=0)
    alone = monitor.assess(x[[5, 2]], [5, 2])
    torch.testing.assert_close(alone.statistic, whole.statistic[[5, 2]], rtol=1e-9, atol=0)
    by_parts = monitor_of(oracle, (2,), batch_size=5, **FAST)
    own, others = monitor.survey.samples, by_parts.survey.samples
    torch.testing.assert_close(own, others, rtol=1e-9, atol=1e-9)
    assert monitor.limit == pytest.approx(by_parts.limit, rel=1e-6)


def test_members_that_are_not_finite_are_implausible_and_no_network_sees_them():
    class Strict(Gaussian):
        def mean(self, x, sigma):
            assert x.isfinite().all()
            return super().mean(x, sigma)

    oracle = Strict(MU, COV, LogLogit())
    monitor = monitor_of(oracle, (3,), **FAST)
    x = MU + randn(4, 3)
    expected = monitor.assess(x, range(4)).statistic
    x[1, 0], x[2, 2] = torch.nan, torch.inf
    found = monitor.assess(x, range(4))
    assert found.plausible.tolist() == [True, False, False, True]
    assert found.statistic[[1, 2]].tolist() == [torch.inf] * 2
    torch.testing.assert_close(found.statistic[[0, 3]], expected[[0, 3]], rtol=1e-9, atol=0)
    assert not monitor.assess(x[1:3], [1, 2]).plausible.any()


class Breaks(Gaussian):
    """Fails for states to the right of an edge, as a network may, at low noise."""

    edge = 1.0

    def mean(self, x, sigma):
        bad = (x[:, :1] > self.edge) & (sigma < 0.1)
        return torch.where(bad, torch.nan, super().mean(x, sigma))


def test_where_the_denoiser_fails_members_are_implausible_and_samples_are_left_out():
    oracle = Breaks(torch.zeros(2), torch.eye(2), LogLogit())
    monitor = monitor_of(oracle, (2,), steps=16)
    assert 40 < len(monitor.survey.samples) < 64
    assert (monitor.survey.samples[:, 0] <= 1.01).all()
    assert all(math.isfinite(number) for _, number in monitor.survey.dimensions)
    found = monitor.assess(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), [0, 1])
    assert found.statistic[1] == torch.inf
    assert found.plausible.tolist() == [True, False]
    oracle.edge = -1.0
    with pytest.raises(UnseenError, match="of 64 unconditional samples are not finite"):
        monitor_of(oracle, (2,), steps=16)


def test_an_assessment_costs_what_is_said_and_a_longer_schedule_more():
    costs = []
    for highest in (1.0, 1e2):
        evaluations, tests = Evaluations(), Evaluations()
        with counted(evaluations):
            monitor = monitor_of(Gaussian(MU, COV, VE(1e-3, highest)), (3,), size=16)
        with counted(tests):
            monitor.assess(randn(5, 3).float(), range(5))
        assert tests.member_forward == 5 * monitor.cost
        assert evaluations.backward == tests.backward == 0
        costs.append(evaluations.member_forward)
    assert costs[0] < costs[1]


class Conditional:
    """A Gaussian whose mean is a member's own."""

    schedule = LogLogit()

    def __init__(self, means):
        self.oracle = Gaussian(torch.zeros(2), 0.01 * torch.eye(2), self.schedule)
        self.means = torch.tensor(means).double()

    def __call__(self, x_t, t):
        mean = self.means[members.current()][:, None].to(x_t)
        return self.oracle(x_t - mean, t).mean + mean


def test_a_survey_is_under_the_condition_of_sample_0():
    monitor = monitor_of(Conditional([3.0, 0.0, 3.0, 0.0]), (2,), **FAST)
    mean = monitor.survey.samples.mean()
    torch.testing.assert_close(mean, torch.tensor(3.0).double(), atol=0.2, rtol=0)
    x = 3 + 0.1 * randn(2, 2)
    assert monitor.assess(x, [0, 2]).plausible.all()
    for others in ([1, 3], [0, 1]):
        with pytest.raises(DenoiserError, match="conditions that differ between samples"):
            monitor.assess(x, others)
    with pytest.raises(DenoiserError, match="conditions"):
        monitor.assess(x, [0, 1], batch_size=1)
