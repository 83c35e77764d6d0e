"""The run: what is resampled, what is kept, what is counted, and what survives an error."""

import math
import warnings
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import feasibly
from feasibly import (
    PPR,
    Ancestral,
    Bounds,
    CalibrationWarning,
    Composite,
    Equality,
    InfeasibleWarning,
    Method,
    SamplingError,
)
from feasibly.members import current
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.run import run
from feasibly.samplers import DPS, MMPS, PostHoc, Rejection, TruncatedPPR
from feasibly.samplers.base import Start, Step
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

ZERO = Equality(lambda x: x, tolerance=1e-4)
LINE = Equality(lambda x: x[:, :1] - x[:, 1:], tolerance=1e-8)
NORMAL = Gaussian(torch.zeros(1), torch.eye(1), LogLogit())
PLANE = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
FREE = {"steps": 4, "order": 1, "spacing": "time"}


@dataclass(frozen=True, repr=False, eq=False)
class Table(Method):
    """Samples what a table says: a row an attempt, a number a member."""

    rows: tuple = ()
    asked: list = field(default_factory=list, repr=False)
    steps: int = 1
    output: str = "projected"

    def begin(self, noise):
        self.asked.append((noise.attempt, list(noise.members)))
        values = [self.rows[noise.attempt][i] for i in noise.members]
        x_0 = torch.tensor(values, dtype=noise.dtype)[:, None]
        count = {"begun": len(values), "first": float(noise.attempt == 0)}
        return Start(x_0, self.times(), x_0, count)

    def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
        return Step(self.denoiser(x_t, t), memory, memory)

    def warnings(self, statistics):
        if statistics["begun"] > 100:
            yield "There are many."


@dataclass(frozen=True, repr=False, eq=False)
class Fails(Ancestral):
    """Some members become NaN at the second step, or all of them."""

    rows: tuple = (1,)

    def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
        made = super().step(x_t, t, s, randn, memory)
        lost = torch.isin(torch.arange(len(x_t)), torch.tensor(self.rows))[:, None]
        return made._replace(x=made.x.masked_fill(lost, torch.nan)) if self.index(s) == 2 else made


NAN = math.nan
ROWS = ((0.0, 0.5, 0.3, NAN), (9.0, 0.0, 0.4, 0.7), (9.0, 9.0, 0.2, 0.9))


def table(rows=ROWS, **options):
    return on(Table(rows=rows, **options), NORMAL, ZERO, (1,))


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("size", [None, 2, 1])
def test_infeasible_members_are_resampled_and_the_best_of_each_is_kept(size, quiet):
    kernel, seen = table(), []
    result = sampled(kernel, 4, (1,), attempts=3, batch_size=size, callback=seen.append)
    assert result.samples[:, 0].tolist() == pytest.approx([0.0, 0.0, 0.2, 0.7])
    assert result.violation.tolist() == pytest.approx([0.0, 0.0, 0.04, 0.49])
    assert result.feasible.tolist() == [True, True, False, False]
    for attempt, expected in enumerate(([0, 1, 2, 3], [1, 2, 3], [2, 3])):
        asked = [i for k, ids in kernel.asked if k == attempt for i in ids]
        assert asked == expected
    assert result.statistics == {"begun": 4 + 3 + 2, "first": len(range(0, 4, size or 4))}
    assert sum(snapshot.failed for snapshot in seen) == 1
    if size is None:
        assert seen[0].feasible == 0.25
        assert seen[0].worst == pytest.approx(0.25), "of the members that are finite"


def test_attempts_end_with_the_last_infeasible_member():
    kernel = table(rows=((0.0, 0.5), (9.0, 0.0)))
    assert sampled(kernel, 2, (1,), attempts=9).feasible.all()
    assert [attempt for attempt, _ in kernel.asked] == [0, 1]


def test_an_attempt_has_noise_of_its_own(quiet):
    """The second attempt's members are those that its noise gives, whoever was in the first."""
    kernel = on(Ancestral(output="projected", **FREE), PLANE, LINE)
    seen = []
    sampled(kernel, [7, 3], (2,), seed=5, attempts=2, observe=seen.append)
    assert [(state.attempt, state.members) for state in seen] == [
        (attempt, [7, 3]) for attempt in (0, 1) for _ in range(4)
    ]
    for attempt in (0, 1):
        noise = MemberNoise(5, [7, 3], (2,), attempt)
        x_t, times, memory, *_ = kernel.begin(noise)
        for t, s in pairwise(times):
            x_t, x_0, memory = kernel.step(x_t, t, s, noise, memory)
        assert torch.equal(x_t, seen[4 * attempt + 3].x)
        assert torch.equal(x_0, seen[4 * attempt + 3].x_0)


@pytest.mark.parametrize(
    "kernels",
    [
        lambda den, box: [on(Ancestral(steps=4), den, box), on(TruncatedPPR(steps=8), den, box)],
        lambda den, box: [on(Ancestral(steps=4), den), on(TruncatedPPR(steps=8), den, box)],
        lambda den, box: [on(PPR(steps=8), den, c) for c in (LINE, Composite([LINE, box]))],
    ],
    ids=["prior, then truncated", "prior without it", "equalities, then all"],
)
def test_attempts_are_judged_by_the_constraint_of_the_last(kernels, gaussian, quiet):
    box = Bounds(-0.4, 0.5, tolerance=1e-8)
    first, last = kernels(gaussian, box)
    alone = sampled(first, 64, (2,))
    result = sampled([first, last], 64, (2,))
    good = last.constraint.is_feasible(alone.samples)
    assert 5 < good.sum() < 60
    assert torch.equal(result.samples[good], alone.samples[good])
    assert torch.equal(result.feasible, last.constraint.is_feasible(result.samples))
    assert result.feasible.double().mean() > 0.95
    assert result.tolerance == last.constraint.tolerance
    resampled = [s.members for s in result.trace if s.attempt == 1]
    assert resampled[0] == 64 - good.sum()


def test_the_words_say_who_ran_and_how_often(quiet):
    first, second = table(rows=((1.0,), (1.0,), (0.0,))), table(rows=((1.0,),) * 3, eta=0.5)
    again = replace(second)  # another with the same words
    result = sampled([second, again, first], 1, (1,), seed=3, reason="Because.")
    assert result.method == f"up to 2 times {second!r}, then {first!r}"
    assert (result.reason, result.warnings, result.seed) == ("Because.", [], 3)


def test_a_methods_warning_and_a_shortfall_are_said_at_the_callers_line():
    method = Table(rows=((0.0,) * 100 + (0.5,),))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = feasibly.sample(NORMAL, ZERO, 101, (1,), method=method)
    assert [w.category for w in caught] == [CalibrationWarning, InfeasibleWarning]
    assert {w.filename for w in caught} == {__file__}
    assert [str(w.message) for w in caught] == result.warnings
    assert result.warnings[0] == "There are many."
    assert result.warnings[1].startswith("1 of 101 samples")


TINY = Equality(lambda x: (300 * x[:, :1]).sin(), 1e-14)
CUBE = Equality(lambda x: x[:, :1] ** 3 - 8, 1e-9)
NOWHERE = Equality(lambda x: x[:, :1].square() + 1, 1e-6)
FREELY = GaussNewton(20, max_distance=None)
TRAP = Equality(lambda x: x[:, :1].where(x[:, 1:] < 0.5, x[:, :1].square() + 1), 1e-6)


@pytest.mark.parametrize(
    ("constraint", "minimize", "words"),
    [
        (TINY, GaussNewton(9), r"Rounding .*dtype="),
        (CUBE, GaussNewton(1, max_distance=None), r"too early; it converges with minimize=LBFGS"),
        (CUBE, GaussNewton(20, max_distance=0.1), r"too early; .*max_distance=None"),
        (NOWHERE, FREELY, r"local minimum .*`attempts`, unless .* impossible"),
        (TRAP, FREELY, r"local minimum .* more `attempts`\.$"),
    ],
    ids=["rounding", "iterations", "radius", "nowhere", "trap"],
)
def test_a_run_that_does_not_get_there_says_why(constraint, minimize, words):
    kernel = on(PostHoc(minimize=minimize, steps=4), PLANE, constraint)
    with pytest.warns(InfeasibleWarning, match=words):
        sampled(kernel, 20, (2,))


def test_a_shortfall_is_said_of_who_promised_to_meet_the_constraint(quiet):
    (said,) = sampled(on(DPS(steps=4), NORMAL, NOWHERE), 2, (1,)).warnings
    assert "method='auto'" in said
    for silent in (Ancestral(steps=4), MMPS(sigma_y=0.1, steps=4)):
        assert sampled(on(silent, NORMAL, NOWHERE), 2, (1,)).warnings == []


def test_members_that_are_not_finite_are_named_with_their_step_and_level(quiet):
    @dataclass(frozen=True, repr=False, eq=False)
    class Promises(Fails):
        enforces = True

    result = sampled(on(Promises(**FREE), NORMAL, ZERO), 3, (1,))
    level = result.trace[1].sigma
    assert (
        f"1 of 3 samples became non-finite, the first by step 2 of 4, at sigma = {level:.3g}"
        in (" ".join(result.warnings))
    )
    assert result.finite.tolist() == [True, False, True]
    with pytest.raises(SamplingError, match=r"All 2 samples .* step 2 of 4, at sigma"):
        sampled(on(Fails(rows=(0, 1), **FREE), NORMAL, ZERO), 2, (1,), attempts=2)


def test_an_attempt_in_which_all_members_fail_leaves_a_trace_and_the_first_attempts_samples(quiet):
    first = on(Ancestral(**FREE), PLANE, LINE)
    lost = on(Fails(rows=(0, 1, 2), **FREE), PLANE, LINE)
    result = sampled([first, lost], 3, (2,))
    last = result.trace[-1]
    assert (last.attempt, last.failed, last.members) == (1, 3, 3)
    assert torch.equal(result.samples, sampled(first, 3, (2,)).samples)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt], ids=lambda e: e.__name__)
def test_what_was_finished_survives_an_error(error, quiet):
    """The first batch, and the first attempt of the second."""

    def stop(state):
        if state.attempt == 1 and 2 in state.members:
            raise error("no more")

    with pytest.raises(error, match="no more") as caught:
        sampled(table(), 4, (1,), attempts=3, batch_size=2, observe=stop)
    partial = caught.value.partial
    assert partial.members == [0, 1, 2, 3]
    assert partial.samples[:3, 0].tolist() == pytest.approx([0.0, 0.0, 0.3])
    assert partial.samples[3].isnan()
    assert partial.feasible.tolist() == [True, True, False, False]
    assert partial.violation.tolist() == pytest.approx([0.0, 0.0, 0.09, math.inf])

    def at_once(state):
        raise error("no more")

    with pytest.raises(error) as caught:
        sampled(table(), 4, (1,), observe=at_once)
    assert caught.value.partial is None


def test_an_output_that_fails_is_named():
    def denoiser(x_t, t):
        if t == 0:
            raise RuntimeError("no such time")
        return PLANE(x_t, t).mean

    denoiser.schedule = PLANE.schedule
    with pytest.raises(SamplingError, match=r"output after the last step .*no such time"):
        sampled(on(Ancestral(**FREE), denoiser), 2, (2,))


def test_a_dry_run_is_not_counted_and_a_preparation_is_once(gaussian, quiet):
    calls = 0

    def denoiser(x_t, t):
        nonlocal calls
        calls += 1
        return gaussian(x_t, t).mean

    denoiser.schedule = gaussian.schedule

    @dataclass(frozen=True, repr=False, eq=False)
    class Prepared(Ancestral):
        answer: float | None = None

        def prepare(self, seen):
            assert (current() == 7).all()
            return replace(self, answer=self.denoiser(seen.x_0, torch.tensor(0.5)).sum().item())

        def begin(self, noise):
            assert self.answer is not None
            return super().begin(noise)

    constraint = Equality(lambda x: x + 10, tolerance=1e-4)
    kernel = on(Prepared(steps=3), denoiser, constraint)
    result = sampled(kernel, [7, 8, 9], (2,), attempts=2, batch_size=2)
    assert kernel.answer is None
    assert calls == 2 + result.evaluations.forward
    assert result.evaluations.forward == 1 + 2 * 2 * kernel.budget()[0]
    assert result.evaluations.member_forward == 2 + 2 * 3 * kernel.budget()[0]


@pytest.mark.slow
def test_a_pilot_of_other_settings_is_sampled_anew():
    kernel = on(Rejection(steps=4, level=0.3), PLANE, LINE)
    one, again = sampled(kernel, 2, (2,)), sampled(kernel, 2, (2,))
    other = sampled(replace(kernel, level=0.6), 2, (2,))
    assert 0 <= one.overhead <= 1, "the pilot is a part of the run's time"
    assert torch.equal(one.samples, again.samples)
    assert one.evaluations.member_forward == again.evaluations.member_forward
    assert not torch.equal(one.samples, other.samples)


def test_a_snapshot_follows_every_step(gaussian):
    constraint, seen = Equality(lambda x: x[:, :1] - 0.3, tolerance=1e-4), []
    minimize = GaussNewton(steps=1, max_distance=None)
    kernel = on(PPR(steps=5, repeats=1, minimize=minimize), gaussian, constraint)
    result = sampled(kernel, 6, (2,), batch_size=4, callback=seen.append)
    assert seen == result.trace
    assert [s.step for s in seen] == [1, 2, 3, 4, 5] * 2
    assert [s.members for s in seen] == [4] * 5 + [2] * 5
    levels = [kernel.noise_level(t) for t in kernel.times()[1:]]
    assert [s.sigma for s in seen] == pytest.approx(levels * 2)
    # a prediction, and an iteration of the minimizer and its end; counted anew a batch
    assert [s.forward for s in seen] == [3, 6, 9, 12, 15] * 2
    assert [s.backward for s in seen] == [1, 2, 3, 4, 5] * 2
    assert all(s.failed == 0 and s.feasible == 1 and s.median <= s.worst < 1e-4 for s in seen)
    assert seen[0].seconds <= seen[4].seconds <= result.seconds


def test_what_has_failed_goes_on_from_zero_and_spoils_no_other_member(quiet):
    seen = []
    lost = sampled(on(Fails(**FREE), PLANE), 3, (2,), observe=seen.append)
    one = seen[2].x[1]
    assert seen[1].x[1].isnan().all()
    assert one.isfinite().all()
    sound = sampled(on(Ancestral(**FREE), PLANE), 3, (2,))
    assert torch.equal(lost.samples[[0, 2]], sound.samples[[0, 2]])
    # with extrapolation the estimate before the reset, which was not finite, is left out
    kernel = on(Ancestral(steps=4), PLANE)
    times = kernel.times(torch.float32)
    last = kernel.step(torch.full((1, 2), torch.nan), times[0], times[1]).memory
    step = kernel.step(torch.zeros(1, 2), times[1], times[2], torch.zeros_like, last)
    assert step.x.isfinite().all()


def test_steps_are_numbered_from_where_a_kernel_begins(gaussian):
    @dataclass(frozen=True, repr=False, eq=False)
    class Late(Ancestral):
        def begin(self, noise):
            start = super().begin(noise)
            return start._replace(times=start.times[3:])

    result = sampled(on(Late(steps=5), gaussian), 1, (2,))
    assert [(s.step, s.steps) for s in result.trace] == [(4, 5), (5, 5)]


@pytest.mark.parametrize(
    "ids", [np.int64(3), torch.tensor(3), range(3), np.arange(3), torch.arange(3), [0, 1, 2]],
    ids=["numpy", "torch", "range", "array", "tensor", "list"],
)  # fmt: skip
def test_members_are_a_number_or_indices_of_any_library(ids):
    result = sampled(table(rows=((0.0,) * 3,)), ids, [np.int64(1)], batch_size=np.int64(2))
    assert result.members == [0, 1, 2]
    assert all(type(i) is int for i in result.members)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("shape", value) for value in (2, (2.5,), (0,))),
        *(("n", value) for value in (0, [], True, 2.0, None, [-1], [2**32], [1, 1])),
        *(("batch_size", value) for value in (0, 1.5)),
        *(("seed", value) for value in (-1, 2**32)),
        *(("attempts", value) for value in (0, 1.5)),
        *(("dtype", value) for value in (torch.float16, "float32")),
    ],
    ids=str,
)
def test_what_a_run_cannot_take_is_refused_by_its_name(name, value):
    arguments = {"n": 2, "shape": (1,)} | {name: value}
    with pytest.raises(ValueError, match=rf"^sample\(.*\b{name}\b|index twice"):
        feasibly.sample(NORMAL, ZERO, method=Table(rows=ROWS), **arguments)


def test_a_run_needs_kernels_and_they_a_problem():
    with pytest.raises(ValueError, match="takes a sequence of bound methods"):
        run([], 2)
    with pytest.raises(ValueError, match="not bound"):
        run([Ancestral()], 2)
