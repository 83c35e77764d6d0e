"""What unconditional samples show of the prior, and the test of members by the prior alone.

Samples have fixed seeds. Where a test is of a share, it says how far chance would take it.
"""

import math

import pytest
import torch
from feasibly.plausible import RATE, reference, tail_limit

from feasibly import members
from feasibly.constraints import Equality, Linear
from feasibly.denoisers import Denoiser
from feasibly.errors import DenoiserError, SamplingError
from feasibly.network import Evaluations, Network
from feasibly.oracles import Checkerboard, Empirical, Gaussian, GaussianMixture
from feasibly.problems.distributions import Checkerboard as Board
from feasibly.samplers import Ancestral, PostHoc
from feasibly.schedules import EDM, VE, VP, Flow, LogLogit
from tests.helpers import on, sampled

COV = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.2], [0.0, 0.2, 0.5]]).double()
MU = torch.tensor([1.0, -2.0, 0.5]).double()
FAST = {"size": 16, "steps": 8, "dtype": torch.float64}


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def auc(low, high):
    """The share of pairs in which `high` is larger."""
    return (high[:, None] > low).double().mean().item()


@pytest.mark.parametrize("schedule", [LogLogit(), VP(), Flow()], ids=repr)
def test_errors_of_a_gaussian_are_those_of_its_affine_denoiser(schedule):
    """As many orthogonal pairs of noises as elements give the exact expectation."""
    oracle = Gaussian(MU, COV, schedule)
    ref = reference(oracle, (3,), pairs=3, **FAST)
    x = MU + 3 * randn(5, 3)
    found = ref.assess(oracle, x, range(5)).errors
    for k, s in enumerate(ref.levels):
        K = COV @ torch.linalg.inv(COV + s**2 * torch.eye(3))
        bias = (x - MU) @ (K - torch.eye(3).double())
        exact = (bias.square().sum(dim=1) / s**2 + K.square().sum()) / 3
        torch.testing.assert_close(found[:, k], exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_statistic_does_not_depend_on_the_unit_of_the_data(scale):
    def at(unit):
        x_k = unit * randn(6, 2)
        schedule = VE(1e-3 * unit, 1e6 * unit)  # its states are hardly of unit data at any scale
        oracle = GaussianMixture(
            torch.ones(6), x_k, 0.01 * unit**2 * torch.eye(2).expand(6, 2, 2), schedule
        )
        ref = reference(oracle, (2,), dtype=torch.float64)
        return ref.assess(oracle, unit * randn(8, 2, seed=1), range(8)), ref

    (one, ref), (other, scaled) = at(1.0), at(scale)
    assert scaled.unit == pytest.approx(scale * ref.unit, rel=1e-4)
    torch.testing.assert_close(scaled.levels, scale * ref.levels, rtol=1e-4, atol=0)
    torch.testing.assert_close(one.statistic, other.statistic, rtol=1e-3, atol=1e-3)
    assert one.statistic.max() > 2


def test_the_unit_is_that_of_most_samples():
    """Not of a far mode with few of them, which would make fine structure vanish."""
    cov = torch.eye(2).expand(2, 2, 2)
    oracle = GaussianMixture(
        torch.tensor([0.9, 0.1]), torch.tensor([[0.0, 0.0], [50.0, 50.0]]), cov, LogLogit()
    )
    ref = reference(oracle, (2,))
    assert ref.samples.std(dim=0).min() > 5
    assert 0.7 < ref.unit < 1.2


def test_levels_are_of_the_schedule_and_none_is_taken_twice():
    oracle = Gaussian(MU, COV, VE(0.5, 100.0))
    levels = reference(oracle, (3,), levels=(0.01, 0.02, 1.0, 900.0, 1000.0), **FAST).levels
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
    ref = reference(oracle, (2,), **FAST | {"size": size})
    log_e = (ref.assess(oracle, ref.samples, range(size)).errors + 0.01).log()
    left_out = []
    for i in range(size):
        others = log_e[torch.arange(size) != i]
        scale = others.std(dim=0).clamp_min(0.15)
        left_out.append(((log_e[i] - others.mean(dim=0)) / scale).max())
    assert ref.limit == pytest.approx(tail_limit(torch.stack(left_out)), rel=1e-6)
    within = ((log_e - ref.location) / ref.scale).amax(dim=1)
    assert ref.limit > 1.03 * tail_limit(within)
    assert ref.limit > 2.2, "the least limit"


@pytest.mark.parametrize("std", [3.0, 11.6])
def test_a_gaussians_estimates_tell_a_residual_from_thrice_its_deviation_down(std):
    """They leave s^2 / (s^2 + std^2) of its variance open, and tell it below 0.9. Of 4096 samples
    the standard error of a share q is sqrt(q (1 - q)) / 32, at most 0.012, and no step of the
    survey is within 0.04 of 0.9: a false alarm is rarer than one in 1000."""
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])
    cov = torch.diag(torch.tensor([std**2, 0.01, 0.01]))
    oracle = Gaussian(MU, cov, VE(1e-3, 100.0))
    levels = [100.0 * 10 ** (-5 * k / 17) for k in range(18)]  # of a factor of at most exp(0.7)

    def highest(deviation):
        shares = {s: s**2 / (s**2 + deviation**2) for s in levels}
        assert min(abs(share - 0.9) for share in shares.values()) > 0.04
        return pytest.approx(max(s for s, share in shares.items() if share < 0.9), rel=1e-5)

    def informed(*rows):
        linear = Linear(torch.stack(rows), torch.zeros(len(rows)), tolerance=1e-6)
        return reference(oracle, (3,), linear, size=4096, levels=(0.01,)).informed

    assert informed(rows[0]) == highest(std)
    assert informed(rows[1]) == highest(0.1)
    assert informed(*rows) == highest(std), "one of several residuals suffices"
    assert reference(oracle, (3,), **FAST).informed == math.inf, "there is no constraint"


def test_two_estimates_of_a_sample_share_half_of_their_variance():
    """Of white data, at noise as large. False alarms: one in 10^8."""
    white = Gaussian(torch.zeros(200), torch.eye(200), LogLogit())
    one, other = reference(white, (200,), Equality(torch.sin, 1e-6), **FAST).estimates.double()
    assert one.shape == (16, 200)
    products = [(a * b).mean().item() for a, b in ((one, one), (other, other), (one, other))]
    assert products == pytest.approx([0.5, 0.5, 0.25], abs=0.08)
    linear = Linear(torch.ones(1, 200), torch.zeros(1), tolerance=1e-6)
    assert reference(white, (200,), linear, **FAST).estimates is None


@pytest.mark.parametrize("size", [16, 64])
def test_the_limit_is_exact_for_exponential_tails(size):
    """The standard error of the mean rate is at most 0.0003."""
    u = torch.rand(4096, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    limits = torch.tensor([tail_limit(v) for v in -u.log()])
    assert (-limits).exp().mean().item() == pytest.approx(RATE, abs=0.0012)


@pytest.mark.parametrize("name", ["board", "gaussian"])
def test_few_unconditional_samples_are_implausible(name):
    """A reference's rate has a mean of at most 0.01 and about that standard deviation, and 8 are
    taken: the mean exceeds 0.025 by chance in fewer than 1 of 10^4 cases."""
    cov = torch.eye(8) + 1.0
    oracle = {
        "board": Checkerboard(4, LogLogit()),
        "gaussian": Gaussian(torch.zeros(8), cov, EDM()),
    }[name]
    shape = (2,) if name == "board" else (8,)
    fresh = sampled(on(Ancestral(steps=24), oracle), 256, shape, seed=1).samples
    flagged = [
        1 - ref.assess(oracle, fresh, range(256)).plausible.double().mean()
        for ref in (reference(oracle, shape, seed=seed) for seed in range(8))
    ]
    assert sum(flagged) / 8 <= 0.025


def test_members_off_the_data_are_told_from_those_on_it():
    oracle, board = Checkerboard(4, LogLogit()), Board()
    circle = Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-8)
    x = sampled(on(PostHoc(steps=32), oracle, circle), 512, (2,), seed=0).samples
    on = board.in_support(x)
    assert 50 < (~on).sum() < 200
    found = reference(oracle, (2,)).assess(oracle, x, range(512))
    assert auc(found.statistic[on], found.statistic[~on]) >= 0.95
    assert found.plausible[on].double().mean() >= 0.98
    assert found.plausible[~on].double().mean() <= 0.3  # many are next to the board


def test_a_smooth_field_may_have_an_unlikely_value_and_may_not_be_torn_there():
    """Exact samples given one value, at 5 standard deviations, against that value put in."""
    u = torch.linspace(0, 1, 64, dtype=torch.float64)
    cov = torch.exp(-(u[:, None] - u).square() / 0.02) + 1e-6 * torch.eye(64).double()
    oracle = Gaussian(torch.zeros(64), cov, VP())
    ref = reference(oracle, (64,))
    x = randn(128, 64) @ torch.linalg.cholesky(cov).T
    given = x + (5 - x[:, 32:33]) * cov[32] / cov[32, 32]
    assert ref.assess(oracle, given.float(), range(128)).plausible.all()
    torn = x.clone()
    torn[:, 32] = 5
    assert not ref.assess(oracle, torn.float(), range(128)).plausible.any()


def test_a_smaller_error_is_plausible():
    """Between modes that are far apart the denoiser undoes nothing; at a mode it undoes most."""
    data = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    narrow = 1e-4 * torch.eye(2).expand(4, 2, 2)
    oracle = GaussianMixture(torch.ones(4), data, narrow, LogLogit())
    ref = reference(oracle, (2,))
    found = ref.assess(oracle, torch.cat((data, data + 0.1)), range(8))
    assert found.plausible.tolist() == [True] * 4 + [False] * 4
    assert (found.statistic[:4] < 0).all()


def test_of_a_finite_data_set_only_its_points_are_plausible():
    """All errors of unconditional samples vanish, and so have no logarithm."""
    data = randn(8, 2).float()
    oracle = Empirical(data, LogLogit())
    found = reference(oracle, (2,)).assess(oracle, torch.cat((data, data + 0.05)), range(16))
    assert found.plausible.tolist() == [True] * 8 + [False] * 8


def test_a_member_is_assessed_alike_alone_in_a_batch_and_in_chunks():
    oracle = Checkerboard(4, LogLogit())
    ref = reference(oracle, (2,), **FAST)
    x = randn(7, 2)
    whole = ref.assess(oracle, x, range(7))
    for chunk in (1, 3):
        parts = ref.assess(oracle, x, range(7), chunk)
        torch.testing.assert_close(parts.errors, whole.errors, rtol=1e-9, atol=0)
    alone = ref.assess(oracle, x[[5, 2]], [5, 2])
    torch.testing.assert_close(alone.statistic, whole.statistic[[5, 2]], rtol=1e-9, atol=0)
    chunked = reference(oracle, (2,), batch_size=5, **FAST)
    torch.testing.assert_close(ref.samples, chunked.samples, rtol=1e-9, atol=1e-9)
    assert ref.limit == pytest.approx(chunked.limit, rel=1e-6)


def test_members_that_are_not_finite_are_implausible_and_no_network_sees_them():
    class Strict(Gaussian):
        def mean(self, x, sigma):
            assert x.isfinite().all()
            return super().mean(x, sigma)

    oracle = Strict(MU, COV, LogLogit())
    ref = reference(oracle, (3,), **FAST)
    x = MU + randn(4, 3)
    expected = ref.assess(oracle, x, range(4)).statistic
    x[1, 0], x[2, 2] = torch.nan, torch.inf
    found = ref.assess(oracle, x, range(4))
    assert found.plausible.tolist() == [True, False, False, True]
    assert found.statistic[[1, 2]].tolist() == [torch.inf] * 2
    torch.testing.assert_close(found.statistic[[0, 3]], expected[[0, 3]], rtol=1e-9, atol=0)
    assert not ref.assess(oracle, x[1:3], [1, 2]).plausible.any()


class Breaks(Gaussian):
    """Fails for states to the right of an edge, as a network may, at low noise."""

    edge = 1.0

    def mean(self, x, sigma):
        bad = (x[:, :1] > self.edge) & (sigma < 0.1)
        return torch.where(bad, torch.nan, super().mean(x, sigma))


def test_where_the_denoiser_fails_members_are_implausible_and_samples_are_left_out():
    oracle = Breaks(torch.zeros(2), torch.eye(2), LogLogit())
    ref = reference(oracle, (2,), steps=16)
    assert 40 < len(ref.samples) < 64
    assert (ref.samples[:, 0] <= 1.01).all()
    assert all(math.isfinite(number) for _, number in ref.dimensions)
    found = ref.assess(oracle, torch.tensor([[0.0, 0.0], [3.0, 0.0]]), [0, 1])
    assert found.statistic[1] == torch.inf
    assert found.plausible.tolist() == [True, False]
    oracle.edge = -1.0
    with pytest.raises(SamplingError, match="of 64 unconditional samples are not finite"):
        reference(oracle, (2,), steps=16)
    with pytest.raises(ValueError, match="size"):
        reference(oracle, (2,), size=15)


def test_an_assessment_costs_what_is_said_and_a_longer_schedule_more():
    evaluations, counts = Evaluations(), []
    for highest in (1.0, 1e2):
        network = Network(Gaussian(MU, COV, VE(1e-3, highest)), evaluations)
        ref = reference(network, (3,), size=16)
        counts.append(evaluations.member_forward)
        evaluations.member_forward = 0
        ref.assess(network, randn(5, 3).float(), range(5))
        assert evaluations.member_forward == 5 * ref.cost
        evaluations.member_forward = 0
    assert evaluations.backward == 0
    assert counts[0] < counts[1]


class Conditional:
    """A Gaussian whose mean is a member's own."""

    schedule = LogLogit()

    def __init__(self, means):
        self.oracle = Gaussian(torch.zeros(2), 0.01 * torch.eye(2), self.schedule)
        self.means = torch.tensor(means).double()

    def __call__(self, x_t, t):
        mean = self.means[members.current()][:, None].to(x_t)
        return self.oracle(x_t - mean, t).mean + mean


def test_the_reference_is_under_the_condition_of_its_member():
    denoiser = Conditional([0.0, 3.0, 3.0, 0.0])
    ref = reference(denoiser, (2,), member=1, **FAST)
    torch.testing.assert_close(ref.samples.mean(), torch.tensor(3.0).double(), atol=0.2, rtol=0)
    x = 3 + 0.1 * randn(2, 2)
    assert ref.assess(denoiser, x, [1, 2]).plausible.all()
    for others in ([0, 3], [1, 0]):
        with pytest.raises(DenoiserError, match="conditions that differ from member to member"):
            ref.assess(denoiser, x, others)
    with pytest.raises(DenoiserError, match="conditions"):
        ref.assess(denoiser, x, [1, 0], chunk=1)


@pytest.mark.parametrize("far", [0.0, 3.0])
def test_estimates_are_linear_in_the_state_for_normal_data_only(far):
    normal = reference(Gaussian(MU, COV, LogLogit()), (3,), dtype=torch.float64).bent
    assert normal < 1e-12
    mu = torch.stack([MU - far, MU + far])
    pair = GaussianMixture(torch.ones(2) / 2, mu, torch.stack([COV, COV / 4]), LogLogit())
    parts = [reference(pair, (3,), dtype=torch.float64, batch_size=c).bent for c in (None, 5)]
    assert parts[0] > 0.01
    assert parts[0] == pytest.approx(parts[1])


def test_data_on_a_circle_are_thin_and_clusters_are_not():
    angle = torch.linspace(0, 2 * torch.pi, 65)[:-1]
    points = torch.stack([angle.cos(), angle.sin()], dim=1)
    circle = reference(Empirical(points, LogLogit()), (2,), dtype=torch.float64)
    pair = GaussianMixture(
        torch.ones(2) / 2, torch.stack([MU - 2, MU + 2]), COV.expand(2, 3, 3), LogLogit()
    )
    clusters = reference(pair, (3,), dtype=torch.float64)
    assert min(circle.bent, clusters.bent) > 0.01
    assert clusters.thin < 0.01 < 0.1 < circle.thin


def test_a_denoiser_is_affine_below_the_distance_of_its_modes():
    levels = {}
    for apart in (0.5, 2.0, 200.0):
        mu = torch.tensor([[-apart], [apart], [apart + 3.0]]).double()
        cov = torch.full((3, 1, 1), 0.01).double()
        pair = GaussianMixture(torch.tensor([0.45, 0.45, 0.1]), mu, cov, EDM(1e-4, 1e4))
        levels[apart] = reference(pair, (1,), dtype=torch.float64).affine
    assert levels[0.5] < levels[2.0] < levels[200.0] < 200.0
    points = torch.tensor([[-1.0], [0.0], [1.0]]).double()
    assert reference(Empirical(points, LogLogit()), (1,), dtype=torch.float64).affine > 0


@pytest.mark.parametrize("schedule", [LogLogit(), VP()], ids=repr)
def test_the_effective_dimension_of_normal_data_is_that_of_their_variances(schedule):
    """64 samples leave an error of some 3 %, and the long steps of a survey some 10 % more. The
    last levels are left out: samples keep a part of that noise."""
    variance = torch.tensor([25.0] * 2 + [1.0] * 6 + [1e-2] * 24).double()
    gaussian = Gaussian(torch.zeros(32).double(), torch.diag(variance), schedule)
    found = reference(gaussian, (32,), dtype=torch.float64).dimensions
    assert [level for level, _ in found] == sorted((level for level, _ in found), reverse=True)
    for level, number in found[:-2]:
        assert number == pytest.approx((variance / (variance + level**2)).sum().item(), rel=0.25)


def test_the_effective_dimension_of_a_large_sample_is_that_of_some_of_its_elements():
    """The first half of the elements does not vary."""

    class Half(Denoiser):
        def mean(self, x, sigma):
            return torch.cat([0 * x[:, :4500], x[:, 4500:] / (1 + sigma**2)], dim=1)

    found = reference(Half(LogLogit()), (9000,), size=16, dtype=torch.float64).dimensions
    level, number = found[8]
    assert number == pytest.approx(4500 / (1 + level**2), rel=0.15)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_estimates_drift_where_the_network_is_told_another_noise_level(factor):
    """In one dimension of unit variance, d(x) = g x with g = 1 / (1 + (factor sigma)^2)."""
    schedule = VE(1e-3, 50.0)

    class Told(Gaussian):
        def mean(self, x, sigma):
            return super().mean(x, factor * sigma)

    ref = reference(Told(torch.zeros(1), torch.eye(1), schedule), (1,), **FAST)
    high, low = 50.0**2, ref.unit**2
    first, last = (1 / (1 + factor**2 * square) for square in (high, low))
    mean = first + low / high * (1 - first)  # of the next state, in units of x
    expected = (last * mean / first - 1) ** 2
    assert ref.drift == pytest.approx(expected, rel=0.3, abs=1e-12)
