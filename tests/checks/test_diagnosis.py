import numpy as np
import pytest
import torch

from feasibly import Ancestral, Equality, Inequality
from feasibly.checks.diagnosis import PROJECTED, Level, diagnose
from feasibly.errors import DenoiserError
from feasibly.models import wrap
from feasibly.oracles import Gaussian
from feasibly.schedules import VP, LogLogit
from tests.helpers import on, sampled

COV = torch.tensor([[1.0, 0.6], [0.6, 1.0]])


def draw(n=1024):
    """Data of the oracle's own distribution. A denoiser that knows it has, where there is little
    noise, an error of the noise level with a relative standard error of 1 / sqrt(4 n) = 1.6 %: it
    is 6 of them from the limit, a false alarm of 1e-8 over 9 levels."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return (z @ torch.linalg.cholesky(COV.double()).T).float()


def make_oracle(schedule=None):
    return Gaussian(torch.zeros(2), COV, schedule or LogLogit())


def own(denoiser, seed):
    """Samples of the denoiser itself, as `check` draws them where there are no data."""
    return sampled(on(Ancestral(output="projected"), denoiser), 256, (2,), seed=seed).samples


def altered(change, schedule=None):
    """The exact denoiser of the Gaussian, with something done to what it returns."""
    oracle = make_oracle(schedule)

    def denoiser(x_t, t):
        return change(oracle, x_t, t)

    denoiser.schedule = oracle.schedule
    return denoiser


def plane():
    return Equality(lambda x: torch.stack((x[:, 0], 2 * x[:, 1]), dim=1), tolerance=1e-6)


@pytest.mark.parametrize("schedule", [VP(), LogLogit()], ids=repr)
def test_an_exact_denoiser_is_fit_for_use(schedule):
    found = diagnose(make_oracle(schedule), None, draw())
    assert found.ok
    assert found.monotone
    assert all(level.gradient and level.error <= 1.1 * level.limit for level in found.levels)


@pytest.mark.slow
def test_an_exact_denoiser_passes_on_its_own_samples_whatever_the_seed():
    oracle = make_oracle()
    failed = [
        seed for seed in range(6) if not diagnose(oracle, None, own(oracle, seed), seed=seed).ok
    ]
    assert failed == []


def test_the_limit_is_the_smaller_of_relative_noise_and_spread_of_the_data():
    data = draw()
    found = diagnose(make_oracle(VP()), None, data)
    for level in found.levels:
        # the noise that was drawn, 2048 numbers: five standard errors of its root are 8 %
        expected = min(level.sigma / level.alpha, data.std().item())
        assert level.limit == pytest.approx(expected, rel=0.08)


def test_the_error_is_the_square_root_of_the_posterior_variance():
    # a mean squared error over 2048 numbers has a relative standard error below
    # sqrt(2 / 1024) = 4.4 %, its root 2.2 %; 12 % are 5.4 of them, a false alarm of 7e-8 a level
    values = torch.linalg.eigvalsh(COV.double())
    data = draw()
    found = diagnose(make_oracle(), None, data)
    assert found.variance == pytest.approx(data.var().item())
    for level in found.levels:
        exact = (values * level.sigma**2 / (values + level.sigma**2)).mean().sqrt().item()
        assert level.error == pytest.approx(exact, rel=0.12)


@pytest.mark.parametrize(
    ("error", "gradient", "verdict"),
    [
        (0.0, True, "ok"),
        (0.54, True, "ok"),
        (0.56, True, "worse than a guess"),
        (0.54, False, "gradient not finite"),
        (torch.nan, True, "not finite"),
        (torch.inf, False, "not finite"),
    ],
)
def test_an_error_may_exceed_its_limit_by_a_tenth(error, gradient, verdict):
    level = Level(t=0.5, alpha=1.0, sigma=0.5, error=error, limit=0.5, gradient=gradient)
    assert level.verdict == verdict


def epsilon(oracle, x_t, t):
    alpha_t, sigma_t = oracle.schedule(t)
    return (x_t - alpha_t * oracle(x_t, t).mean) / sigma_t


MISTAKES = {
    "returns the noise": epsilon,
    "returns the velocity": lambda o, x_t, t: epsilon(o, x_t, t) - o(x_t, t).mean,
    "has the wrong sign": lambda o, x_t, t: -o(x_t, t).mean,
    "does not denoise": lambda o, x_t, t: 2 * x_t,
    "reads time backwards": lambda o, x_t, t: o(x_t, 1 - t).mean,
    "has another data scale": lambda o, x_t, t: 2 * o(x_t, t).mean,
}


@pytest.mark.parametrize("change", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_denoiser_that_is_wrong_is_not_fit_for_use(change):
    found = diagnose(altered(change), None, draw())
    assert not found.ok
    assert found.monotone
    assert "worse than a guess" in {level.verdict for level in found.levels}


@pytest.mark.parametrize(
    "time",
    [lambda t: 1 - t, lambda t: t.clamp(max=0.9) - (t - 0.9).clamp(min=0)],
    ids=["backwards", "turns around once"],
)
def test_a_schedule_that_is_not_monotone_is_found(time):
    base = LogLogit()
    found = diagnose(make_oracle(lambda t: base(time(t))), None, draw())
    assert not found.monotone
    assert not found.ok
    assert {level.verdict for level in found.levels} == {"ok"}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_the_one_noise_level_that_is_not_finite_is_named(value):
    def change(oracle, x_t, t):
        x_0 = oracle(x_t, t).mean
        return x_0 * value if t == 0.25 else x_0

    found = diagnose(altered(change), None, draw())
    verdicts = {level.t: level.verdict for level in found.levels}
    assert verdicts.pop(0.25) == "not finite"
    assert set(verdicts.values()) == {"ok"}
    assert not found.ok


@pytest.mark.parametrize(
    "change",
    [
        lambda o, x_t, t: o(x_t, t).mean.detach(),
        # zero, with an infinite derivative
        lambda o, x_t, t: o(x_t, t).mean + torch.sqrt(0 * x_t),
    ],
    ids=["detached", "not finite"],
)
def test_a_denoiser_without_a_usable_gradient_is_found(change):
    found = diagnose(altered(change), None, draw())
    assert {level.verdict for level in found.levels} == {"gradient not finite"}
    assert not found.ok


def test_the_suggested_tolerance_is_a_millionth_of_the_median_violation():
    data = draw()
    found = diagnose(make_oracle(), plane(), data)
    x = data.double().numpy()
    c = x[:, 0] ** 2 + 4 * x[:, 1] ** 2
    assert found.residuals == 2
    assert found.violation == pytest.approx(tuple(np.quantile(c, [0.05, 0.5, 0.95])), rel=1e-5)
    assert found.suggested_tolerance == pytest.approx(1e-6 * np.median(c), rel=1e-5)


def test_the_suggested_tolerance_is_positive_even_where_the_constraint_holds():
    holds = Inequality(lambda x: x[:, :1] - 100, tolerance=1e-6)
    found = diagnose(make_oracle(), holds, draw())
    assert found.violation == (0, 0, 0)
    assert found.suggested_tolerance == 1e-12


@pytest.mark.parametrize("unit", [1e-3, 1e-6, 1e-8])
def test_samples_as_they_are_do_not_meet_the_suggested_tolerance(unit):
    data = draw()
    small = Equality(lambda x: unit * (x[:, 0] - 1.8), tolerance=1e-8 * unit**2)
    found = diagnose(make_oracle(), small, data)
    # of a smooth density, a share of about 1e-3 has a thousandth of the typical residual
    assert (small.violation(data) <= found.suggested_tolerance).double().mean() <= 0.01


def test_an_impossible_constraint_is_found():
    oracle, data = make_oracle(), draw()
    nowhere = Equality(lambda x: x[:, :1].square() + 0.1, tolerance=1e-6)
    found = diagnose(oracle, nowhere, data)
    assert (found.projected, found.nearest) == (0, pytest.approx(0.01, rel=1e-3))
    assert found.suggested_tolerance is None
    assert not found.ok
    assert all(level.verdict == "ok" for level in found.levels)
    possible = diagnose(oracle, plane(), data)
    assert possible.projected == PROJECTED
    assert possible.ok


def test_a_constraint_far_from_all_samples_is_told_by_its_distance():
    oracle, data = make_oracle(), draw()
    far = Equality(lambda x: x[:, :1] - 100, tolerance=1e-6)
    x = data[:64, 0]
    expected = ((x.mean() - 100).abs() / x.std()).item()
    found = diagnose(oracle, far, data)
    assert found.remoteness == pytest.approx(expected, rel=1e-4)
    assert found.projected == PROJECTED, "the point is there, though no sample is near"
    assert diagnose(oracle, plane(), data).remoteness < 2


def test_where_there_is_nearly_only_noise_a_tenth_of_it_is_allowed():
    """An estimate from the noise, off by 5 % of it, is worse than a guess there, and fit."""
    noisy = Level(t=1.0, alpha=0.01, sigma=1.0, error=5.0, limit=0.5, gradient=True)
    assert noisy.bound == pytest.approx(10.0)
    assert noisy.verdict == "ok"
    assert Level(1.0, 0.01, 1.0, 10.1, 0.5, True).verdict == "worse than a guess"

    def network(x_t, t):
        (alpha, sigma), oracle = VP()(t[0]), make_oracle(VP())
        return (x_t - alpha * oracle(x_t, t).mean) / sigma + 0.05 * x_t.flip(1).sin()

    assert diagnose(wrap(network, "eps", VP(), time=lambda t: t), None, draw()).ok


def test_rows_of_data_have_the_conditions_of_members():
    oracle = make_oracle()
    shifts = 10 * torch.randn(600, 2, generator=torch.Generator().manual_seed(1))

    def network(x, sigma, shift):
        return oracle.mean(x - shift, sigma[:, None]) + shift

    data = draw(n=600) + shifts  # more than one batch
    kept = {"sigma_range": (1e-3, 1e2)}
    right = wrap(network, "edm", LogLogit(), conditions={"shift": shifts}, **kept)
    wrong = wrap(network, "edm", LogLogit(), conditions={"shift": shifts.flip(0)}, **kept)
    assert diagnose(right, None, data).ok
    assert not diagnose(wrong, None, data).ok


def test_a_denoiser_that_fails_on_the_data_is_refused():
    with pytest.raises(DenoiserError, match=r"failed on a state of shape \(2, 3\)"):
        diagnose(make_oracle(), None, torch.randn(8, 3))
    with pytest.raises(DenoiserError, match="has none"):
        diagnose(lambda x, t: x, None, torch.randn(8, 3))
