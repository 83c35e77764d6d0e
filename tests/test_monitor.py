"""How a run tells implausible members and resamples them, and what its result says of them."""

import warnings
from types import SimpleNamespace

import pytest
import torch

import feasibly
from feasibly import Ancestral, Equality, members
from feasibly.errors import CalibrationWarning
from feasibly.monitor import Monitor
from feasibly.oracles import Gaussian
from feasibly.result import Result
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

PRIOR = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
LINE = Equality(lambda x: x[:, :1] - 0.3, tolerance=1e-6)


class Fake(Monitor):
    """A monitor whose statistics are given, attempt by attempt, by the samples' indices."""

    cost = 0

    def __init__(self, *attempts):
        vars(self).update(attempts=list(attempts), seen=[])

    def assess(self, x, members, batch_size=None):
        said = self.attempts[min(len(self.seen), len(self.attempts) - 1)]
        self.seen.append(list(members))
        values = [said(i) if callable(said) else said for i in members]
        return SimpleNamespace(statistic=torch.tensor(values, dtype=torch.float64))


def sample(monitor, count=4, attempts=3, constraint=None, **settings):
    kernel = on(Ancestral(steps=4), PRIOR, constraint)
    return sampled(kernel, count, (2,), attempts=attempts, monitor=monitor, **settings)


def alone(attempt, count=4):
    """What each attempt gives, from the noise of that attempt alone."""
    said = [2.0] * attempt + [0.0]
    return sample(Fake(*said), count, attempts=attempt + 1).samples


def test_an_implausible_member_is_resampled_and_a_plausible_one_is_not():
    monitor = Fake(lambda i: 3.0 if i in (1, 3) else 0.5, lambda i: 0.2 if i == 1 else 2.0, 0.9)
    result = sample(monitor)
    assert monitor.seen == [[0, 1, 2, 3], [1, 3], [3]]
    torch.testing.assert_close(result.oddness, torch.tensor([0.5, 0.2, 0.5, 0.9]))
    assert result.plausible.all()
    first, second, third = (alone(attempt) for attempt in range(3))
    expected = torch.stack([first[0], second[1], first[2], third[3]])
    assert torch.equal(result.samples, expected)
    chunked = sample(Fake(lambda i: i / 8), 8, attempts=1, batch_size=3)
    assert chunked.oddness.tolist() == [i / 8 for i in range(8)]
    assert torch.equal(chunked.samples, sample(None, 8, attempts=1).samples)


def test_of_a_member_that_stays_implausible_the_most_plausible_attempt_is_kept():
    monitor = Fake(3.0, 1.5, 2.0)
    with pytest.warns(CalibrationWarning):
        result = sample(monitor)
    assert len(monitor.seen) == 3
    assert result.oddness.tolist() == [1.5] * 4
    assert not result.plausible.any()
    assert torch.equal(result.samples, alone(1))


def test_a_feasible_attempt_is_kept_before_a_more_plausible_one():
    """Of an equality that members satisfy by chance, in one attempt or the other."""
    half = feasibly.Inequality(lambda x: x[:, :1], tolerance=1e-9)
    monitor = Fake(2.0, 1.5, 1.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sample(monitor, 32, constraint=half)
    tries = torch.stack([alone(attempt, 32) for attempt in range(3)])
    inside = tries[..., 0] <= 0
    odd = torch.tensor([2.0, 1.5, 1.2])
    for i in range(32):
        if inside[:, i].any():
            best = torch.where(inside[:, i], odd, torch.inf).argmin()
        else:
            best = tries[:, i, 0].argmin()  # of least violation
        assert torch.equal(result.samples[i], tries[best, i])
        assert result.oddness[i] == odd[best]
        assert result.feasible[i] == inside[:, i].any()


def test_a_member_that_is_not_finite_is_implausible():
    class Fails(Gaussian):
        def mean(self, x, sigma):
            return torch.where(x[:, :1] > 0, torch.nan, super().mean(x, sigma))

    prior = Fails(torch.zeros(2), torch.eye(2), LogLogit())
    monitor = feasibly.plan(PRIOR, LINE, (2,)).monitor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sampled(on(Ancestral(steps=8), prior), 8, (2,), monitor=monitor)
    assert 0 < result.finite.sum() < 8
    assert torch.equal(result.oddness.isinf(), ~result.finite)
    assert not result.plausible[~result.finite].any()


def test_what_a_monitor_says_is_saved_and_loaded_and_printed(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        result = sample(Fake(lambda i: 2.0 if i == 2 else 0.25))
    result.save(tmp_path / "one.safetensors")
    loaded = Result.load(tmp_path / "one.safetensors")
    assert torch.equal(loaded.oddness, result.oddness)
    assert loaded.plausible.tolist() == [True, True, False, True]
    assert "3 of 4 samples plausible" in str(loaded)
    none = sample(None, [0])
    none.save(tmp_path / "two.safetensors")
    assert Result.load(tmp_path / "two.safetensors").oddness is none.oddness is None
    assert "plausible" not in str(none)
    assert Result.join([none, sample(Fake(0.5), [1])]).oddness is None


@pytest.mark.parametrize(("count", "least"), [(4, 2), (100, 7), (400, 20)])
def test_a_sentence_tells_of_implausible_members_beyond_chance_alone(count, least):
    """One in a hundred is mistaken, by a reference whose rate varies by as much: the bar is the
    mean, three standard deviations and one."""

    def result(some):
        monitor = Fake(lambda i: 2.0 if i < some else 0.0)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = sample(monitor, count, attempts=1)
        return found, [w for w in seen if w.category is CalibrationWarning]

    quiet, none = result(least - 1)
    assert quiet.warnings == none == []
    loud, seen = result(least)
    assert loud.warnings == [str(w.message) for w in seen]
    assert loud.warnings[0].startswith(f"{least} of {count} samples are implausible:")


def test_sample_has_a_monitor_unless_it_is_told_not_to():
    method = Ancestral(steps=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tested = feasibly.sample(PRIOR, LINE, 4, (2,), method=method)
        off = feasibly.sample(PRIOR, LINE, 4, (2,), monitor=False, method=method)
        none = feasibly.sample(PRIOR, None, 4, (2,))
    assert tested.plausible.shape == (4,)
    assert off.plausible is none.plausible is None
    assert torch.equal(tested.samples, off.samples)
    assert off.evaluations.member_forward == 4 * (8 + 1)
    assert tested.evaluations.member_forward > 64 * 8


class Conditional:
    """A Gaussian whose mean is a member's own."""

    schedule = LogLogit()

    def __init__(self, means):
        self.means = torch.tensor(means)

    def __call__(self, x_t, t):
        ids = members.current()
        means = self.means[ids if ids is not None else torch.zeros(len(x_t), dtype=torch.long)]
        return PRIOR(x_t - means[:, None].to(x_t), t).mean + means[:, None].to(x_t)


@pytest.mark.slow
def test_members_with_conditions_of_their_own_are_sampled_and_not_tested():
    denoiser = Conditional([0.0, 0.0, 4.0, 4.0])
    result = feasibly.sample(denoiser, LINE, 4, (2,))
    assert result.feasible.all()
    assert result.oddness.isnan().tolist() == [False, False, True, True]
    (sentence,) = result.warnings
    assert "not tested for plausibility" in sentence
    assert "conditions" in sentence
    off = feasibly.sample(denoiser, LINE, 4, (2,), monitor=False)
    assert off.warnings == []
    assert torch.equal(off.samples, result.samples)
    # nothing is lost, and no sentence told, where all have the first one's
    alike = feasibly.sample(denoiser, LINE, [1, 0], (2,))
    assert alike.plausible.all()
    assert alike.warnings == []
    # whether a member is tested does not depend on its batch mates
    mixed = feasibly.sample(denoiser, LINE, [0, 2, 1, 3], (2,), batch_size=2)
    assert mixed.oddness.isnan().tolist() == [False, True, False, True]


class Partial(Gaussian):
    """Fails at low noise for most states: those below one deviation."""

    def mean(self, x, sigma):
        bad = (x[:, :1] < 1.0) & (sigma < 0.3)
        return torch.where(bad, torch.nan, super().mean(x, sigma))


@pytest.mark.parametrize("monitor", [True, False])
def test_a_survey_of_which_most_samples_fail_is_said_and_members_are_not_tested(monitor):
    """Of 64 unconditional samples some ten are finite, and 16 are needed."""
    prior = Partial(torch.zeros(2), torch.eye(2), LogLogit())
    far = Equality(lambda x: x[:, :1] - 2.0, tolerance=1e-6)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = feasibly.sample(prior, far, 4, (2,), monitor=monitor)
    assert result.oddness is None
    (said,) = [one for one in result.warnings if "unconditional samples were finite" in one]
    assert [str(w.message) for w in seen].count(said) == 1
    assert result.evaluations.member_forward > 64 * 16, "what the survey took"
    # where neither the methods nor the tests of members depend on it, there is none
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = feasibly.sample(prior, far, 4, (2,), monitor=False, method="post-hoc")
    assert said not in result.warnings


def test_a_survey_and_the_tests_of_members_keep_to_the_batch_size():
    sizes = []

    class Watched(Gaussian):
        def forward(self, x_t, t):
            sizes.append(len(x_t))
            return super().forward(x_t, t)

    prior = Watched(torch.zeros(2), torch.eye(2), LogLogit())
    feasibly.sample(prior, LINE, 10, (2,), batch_size=5, method="ancestral", attempts=1)
    assert sum(sizes) > 64 * 20
    assert max(sizes) == 5


class Troubled(Gaussian):
    """The exact network, whose calls beyond some size are disturbed after the first few."""

    def __init__(self, error, rows):
        super().__init__(torch.zeros(2), torch.eye(2), LogLogit())
        self.error, self.rows = error, rows

    def forward(self, x_t, t):
        if len(x_t) > self.rows:
            raise self.error
        return super().forward(x_t, t)


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (
            ConnectionError("gone"),
            feasibly.SamplingError,
            r"ConnectionError: gone\).* run it again",
        ),
        (RuntimeError("a bug"), feasibly.SamplingError, r"RuntimeError: a bug"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
    ids=["connection", "bug", "stop"],
)
def test_an_error_of_the_survey_is_raised_as_what_it_is(error, raised, words):
    with pytest.raises(raised, match=words) as caught:
        feasibly.plan(Troubled(error, 2), LINE, (2,))
    assert caught.value is error or caught.value.__cause__ is error


@pytest.mark.parametrize(
    "lack",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried"),
    ],
    ids=["device", "host"],
)
def test_a_survey_that_does_not_fit_into_memory_takes_fewer_samples_at_a_time(lack):
    healthy = feasibly.plan(PRIOR, LINE, (2,))
    cramped = feasibly.plan(Troubled(lack, 20), LINE, (2,))
    assert (repr(cramped.kernels), cramped.reason) == (repr(healthy.kernels), healthy.reason)
    torch.testing.assert_close(cramped.monitor.survey.samples, healthy.monitor.survey.samples)
    with pytest.raises(feasibly.DenoiserError, match=r"memory .*batch.size, such as 1"):
        feasibly.plan(Troubled(lack, 1), LINE, (2,))
    kernel = on(Ancestral(steps=4), Troubled(lack, 20))
    with pytest.raises(feasibly.SamplingError, match=r"memory with 30 samples.*such as 15"):
        sampled(kernel, 30, (2,))
