"""What unconditional samples show of a problem.

Samples have fixed seeds. Where a test is of a share, it says how far chance would take it.
"""

import math
import re

import pytest
import torch

import feasibly
from feasibly.constraints import Linear
from feasibly.denoisers import Denoiser
from feasibly.oracles import Empirical, Gaussian, GaussianMixture
from feasibly.problem import Problem
from feasibly.schedules import EDM, VE, VP, Cosine, LogLogit, Rectified
from feasibly.survey import Survey

COV = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.2], [0.0, 0.2, 0.5]]).double()
MU = torch.tensor([1.0, -2.0, 0.5]).double()
FAST = {"size": 16, "steps": 8, "dtype": torch.float64}


def survey_of(
    denoiser, shape, constraint=None, *, dtype=torch.float32, batch_size=None, **options
):
    problem = Problem(denoiser, constraint, shape, dtype=dtype, batch_size=batch_size)
    return Survey.of(problem, **options)


def test_the_scale_is_that_of_most_samples():
    """Not of a far mode with few of them, which would make fine structure vanish."""
    cov = torch.eye(2).expand(2, 2, 2)
    oracle = GaussianMixture(
        torch.tensor([0.9, 0.1]), torch.tensor([[0.0, 0.0], [50.0, 50.0]]), cov, LogLogit()
    )
    survey = survey_of(oracle, (2,))
    assert survey.samples.std(dim=0).min() > 5
    assert 0.7 < survey.scale < 1.2


@pytest.mark.slow
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
        return survey_of(oracle, (3,), linear, size=4096).informed

    assert informed(rows[0]) == highest(std)
    assert informed(rows[1]) == highest(0.1)
    assert informed(*rows) == highest(std), "one of several residuals suffices"
    assert survey_of(oracle, (3,), **FAST).informed == math.inf, "there is no constraint"


@pytest.mark.parametrize("far", [0.0, 3.0])
def test_estimates_are_linear_in_the_state_for_normal_data_only(far):
    normal = survey_of(Gaussian(MU, COV, LogLogit()), (3,), dtype=torch.float64).nonlinearity
    assert normal < 1e-12
    mu = torch.stack([MU - far, MU + far])
    pair = GaussianMixture(torch.ones(2) / 2, mu, torch.stack([COV, COV / 4]), LogLogit())
    one, other = (survey_of(pair, (3,), dtype=torch.float64, batch_size=b) for b in (None, 5))
    assert one.nonlinearity > 0.01
    assert one.nonlinearity == pytest.approx(other.nonlinearity)


def test_data_on_a_circle_are_thin_and_clusters_are_not():
    angle = torch.linspace(0, 2 * torch.pi, 65)[:-1]
    points = torch.stack([angle.cos(), angle.sin()], dim=1)
    circle = survey_of(Empirical(points, LogLogit()), (2,), dtype=torch.float64)
    pair = GaussianMixture(
        torch.ones(2) / 2, torch.stack([MU - 2, MU + 2]), COV.expand(2, 3, 3), LogLogit()
    )
    clusters = survey_of(pair, (3,), dtype=torch.float64)
    assert min(circle.nonlinearity, clusters.nonlinearity) > 0.01
    assert clusters.nonlinearity_low < 0.01 < 0.1 < circle.nonlinearity_low


def test_a_denoiser_is_affine_below_the_distance_of_its_modes():
    levels = {}
    for apart in (0.5, 2.0, 200.0):
        mu = torch.tensor([[-apart], [apart], [apart + 3.0]]).double()
        cov = torch.full((3, 1, 1), 0.01).double()
        pair = GaussianMixture(torch.tensor([0.45, 0.45, 0.1]), mu, cov, EDM(1e-4, 1e4))
        levels[apart] = survey_of(pair, (1,), dtype=torch.float64).affine
    assert levels[0.5] < levels[2.0] < levels[200.0] < 200.0
    points = torch.tensor([[-1.0], [0.0], [1.0]]).double()
    assert survey_of(Empirical(points, LogLogit()), (1,), dtype=torch.float64).affine > 0


@pytest.mark.parametrize("schedule", [LogLogit(), VP()], ids=repr)
def test_the_effective_dimension_of_normal_data_is_that_of_their_variances(schedule):
    """64 samples leave an error of some 3 %, and the long steps of a survey some 10 % more. The
    last levels are left out: samples keep a part of that noise."""
    variance = torch.tensor([25.0] * 2 + [1.0] * 6 + [1e-2] * 24).double()
    gaussian = Gaussian(torch.zeros(32).double(), torch.diag(variance), schedule)
    found = survey_of(gaussian, (32,), dtype=torch.float64).dimensions
    assert [level for level, _ in found] == sorted((level for level, _ in found), reverse=True)
    for level, number in found[:-2]:
        assert number == pytest.approx((variance / (variance + level**2)).sum().item(), rel=0.25)


def test_the_effective_dimension_of_a_large_sample_is_that_of_some_of_its_elements():
    """The first half of the elements does not vary."""

    class Half(Denoiser):
        def mean(self, x, sigma):
            return torch.cat([0 * x[:, :4500], x[:, 4500:] / (1 + sigma**2)], dim=1)

    found = survey_of(Half(LogLogit()), (9000,), size=16, dtype=torch.float64).dimensions
    level, number = found[8]
    assert number == pytest.approx(4500 / (1 + level**2), rel=0.15)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_estimates_drift_where_the_network_is_told_another_noise_level(factor):
    """In one dimension of unit variance, d(x) = g x with g = 1 / (1 + (factor sigma)^2)."""
    schedule = VE(1e-3, 50.0)

    class Told(Gaussian):
        def mean(self, x, sigma):
            return super().mean(x, factor * sigma)

    survey = survey_of(Told(torch.zeros(1), torch.eye(1), schedule), (1,), **FAST)
    high, low = 50.0**2, survey.scale**2
    first, last = (1 / (1 + factor**2 * square) for square in (high, low))
    mean = first + low / high * (1 - first)  # of the next state, in units of x
    expected = (last * mean / first - 1) ** 2
    assert survey.drift == pytest.approx(expected, rel=0.3, abs=1e-12)


TWO = GaussianMixture(
    torch.tensor([0.5, 0.5]),
    torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]),
    0.04 * torch.eye(3).expand(2, 3, 3),
    VP(),
)


def noise(x, t):
    """The noise of states of two modes under VP."""
    alpha, sigma = (scale[:, None] for scale in VP()(t))
    return (x - alpha * TWO(x, t).mean) / sigma


@pytest.mark.parametrize(
    ("kind", "schedule", "told"),
    [
        ("eps", VP(), ""),
        ("eps", Cosine(), r"(?s)sigma = .*in scale.*kind, schedule, time.*wrap\(\.\.\., data="),
        ("eps", Rectified(), r"sigma = .*in scale"),
        ("v", VP(), r"(?s)sigma = .*as far off as a guess.*wrap\(\.\.\., data="),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_a_wrong_wrap_does_not_restore_its_own_samples(kind, schedule, told):
    """So that it is found without data. Chance has an allowance of three standard errors of 64
    samples at three levels, and the right wrap is at most a guess, from which the bar is 0.1."""
    found = survey_of(feasibly.wrap(noise, kind, schedule), (3,)).unrestored
    assert re.search(told, found) if told else not found


def test_the_network_sees_all_samples_in_states_of_its_schedule():
    """Under VP those of standard normal data are standard normal too. The mean square of 4096
    values has a standard error of 0.022."""
    seen = []

    def net(x, t):
        if len(x) == 64:
            seen.append(x.square().mean().item())
        alpha, _ = (scale[:, None] for scale in VP()(t))
        return alpha * x

    survey_of(feasibly.wrap(net, "x0", VP()), (64,))
    assert len(seen) >= 20
    assert seen == pytest.approx([1] * len(seen), abs=0.1)


def test_states_at_which_a_right_network_fails_tell_nothing():
    def fails(x, t):
        return torch.where(x[:, :1] > 1.5, torch.nan, noise(x, t))

    survey = survey_of(feasibly.wrap(fails, "eps", VP()), (3,))
    assert 16 <= len(survey.samples) < 64
    assert not survey.unrestored


def test_a_denoiser_of_a_single_point_is_refused():
    one = feasibly.wrap(lambda x, t: 0 * x + 1, "x0", VP())
    with pytest.raises(feasibly.DenoiserError, match="All 64 unconditional samples are equal"):
        survey_of(one, (3,))


def test_a_channel_that_is_always_zero_is_a_constant():
    """In float32 unconditional samples of it vary by rounding."""
    cov = torch.diag(torch.cat([torch.ones(64), torch.zeros(64)])).double()
    prior = Gaussian(torch.zeros(128), cov, VP())
    net = feasibly.wrap(
        lambda x, t: prior(x.flatten(1), t).mean.view_as(x) + 1e-10 * x, "x0", VP()
    )
    survey = survey_of(net, (2, 64))
    assert 0 < survey.samples[:, 1].std() < 1e-6
    assert not any(survey.misfits())


def test_a_wrap_that_knows_its_data_is_not_told_to_pass_them():
    net = feasibly.wrap(noise, "eps", Cosine(), mean=torch.zeros(3), scale=torch.ones(3))
    assert "self_test" in survey_of(net, (3,)).unrestored
