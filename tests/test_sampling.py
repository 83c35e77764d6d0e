"""The run: what is resampled, what is kept, what is counted, and what survives an error."""

import copy
import math
import re
import warnings
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

import feasibly
from feasibly import (
    PPR,
    Ancestral,
    Bounds,
    CalibrationWarning,
    Equality,
    InfeasibleWarning,
    Sampler,
    SamplingError,
    TruncatedPPR,
    members,
)
from feasibly.minimizers import GaussNewton, WarmLBFGS
from feasibly.network import Evaluations, Network
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.samplers import MMPS
from feasibly.samplers.base import Start, Step
from feasibly.sampling import advice, dry_run, inspect, run, shortfall, trajectory
from feasibly.schedules import LogLogit

ZERO = Equality(lambda x: x, tolerance=1e-4)
NORMAL = Gaussian(torch.zeros(1), torch.eye(1), LogLogit())


@dataclass(frozen=True, repr=False, eq=False)
class Table(Sampler):
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


NAN = math.nan
ROWS = ((0.0, 0.5, 0.3, NAN), (9.0, 0.0, 0.4, 0.7), (9.0, 9.0, 0.2, 0.9))


def table(rows=ROWS, **options):
    return Table(NORMAL, ZERO, rows=rows, **options)


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("chunk", [None, 2, 1])
def test_infeasible_members_are_resampled_and_the_best_of_each_is_kept(chunk, quiet):
    sampler = table()
    result = sampler.sample(4, (1,), attempts=3, chunk=chunk)
    assert result.samples[:, 0].tolist() == pytest.approx([0.0, 0.0, 0.2, 0.7])
    assert result.violation.tolist() == pytest.approx([0.0, 0.0, 0.04, 0.49])
    assert result.feasible.tolist() == [True, True, False, False]
    for attempt, expected in enumerate(([0, 1, 2, 3], [1, 2, 3], [2, 3])):
        asked = [i for k, ids in sampler.asked if k == attempt for i in ids]
        assert asked == expected


def test_attempts_end_with_the_last_infeasible_member():
    sampler = table(rows=((0.0, 0.5), (9.0, 0.0)))
    assert sampler.sample(2, (1,), attempts=9).feasible.all()
    assert [attempt for attempt, _ in sampler.asked] == [0, 1]


def test_an_attempt_has_noise_of_its_own(gaussian):
    """The second attempt's members are those that its noise gives, whoever was in the first."""
    impossible = Equality(lambda x: x.square().sum(dim=1) + 1, tolerance=1e-6)
    sampler = Ancestral(gaussian, impossible, steps=3)
    seen = []
    with warnings.catch_warnings(action="ignore"):
        sampler.sample([7, 3], (2,), seed=5, attempts=2, observe=seen.append)
    assert [(state.attempt, state.members) for state in seen] == [(0, [7, 3])] * 3 + [
        (1, [7, 3])
    ] * 3
    for attempt in (0, 1):
        *_, (_, _, last) = trajectory(sampler, MemberNoise(5, [7, 3], (2,), attempt))
        assert torch.equal(last.x, seen[3 * attempt + 2].x)
        assert torch.equal(last.x_0, seen[3 * attempt + 2].x_0)


@pytest.mark.parametrize(
    "attempts",
    [
        lambda den, box: [Ancestral(den, box, steps=4), TruncatedPPR(den, box, steps=8)],
        lambda den, box: [Ancestral(den, steps=4), TruncatedPPR(den, box, steps=8)],
        lambda den, box: [PPR(den, LINE, steps=8), PPR(den, AND_BOX, steps=8)],
    ],
    ids=["prior, then truncated", "prior without it", "equalities, then all"],
)
def test_attempts_are_judged_by_the_constraint_of_the_last(attempts, gaussian):
    box = Bounds(-0.4, 0.5, tolerance=1e-8)
    first, last = attempts(gaussian, box)
    with warnings.catch_warnings(action="ignore"):
        alone = first.sample(64, (2,))
        result = run([first, last], 64, (2,))
    good = last.constraint.is_feasible(alone.samples)
    assert 5 < good.sum() < 60
    assert torch.equal(result.samples[good], alone.samples[good])
    assert torch.equal(result.feasible, last.constraint.is_feasible(result.samples))
    assert result.feasible.double().mean() > 0.95
    assert result.tolerance == last.constraint.tolerance
    resampled = [s.members for s in result.trace if s.attempt == 1]
    assert resampled[0] == 64 - good.sum()


LINE = Equality(lambda x: x[:, :1] - x[:, 1:], tolerance=1e-8)
AND_BOX = feasibly.Composite([LINE, Bounds(-0.4, 0.5, tolerance=1e-8)])


def test_the_words_say_who_ran_and_how_often(quiet):
    first, second = table(rows=((1.0,), (1.0,), (0.0,))), table(rows=((1.0,),) * 3, eta=0.5)
    first = replace(first, asked=first.asked)  # another with the same words
    result = run([second, second, first], 1, (1,), reason="Because.")
    assert result.method == f"up to 2 times {second!r}, then {first!r}"
    assert result.reason == "Because."
    assert result.warnings == []
    assert run([first], 1, (1,), seed=3).seed == 3


def test_statistics_are_summed_over_attempts_and_chunks(quiet):
    result = table().sample(4, (1,), attempts=3, chunk=2)
    assert result.statistics == {"begun": 4 + 3 + 2, "first": 2.0}


def test_a_samplers_warning_and_a_shortfall_are_said_at_the_callers_line():
    rows = ((0.0,) * 100 + (0.5,),)
    for call in (
        lambda: table(rows=rows).sample(101, (1,)),
        lambda: feasibly.sample(NORMAL, ZERO, 101, (1,), method=table(rows=rows)),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call()
        assert [w.category for w in caught] == [CalibrationWarning, InfeasibleWarning]
        assert {w.filename for w in caught} == {__file__}
        assert [str(w.message) for w in caught] == result.warnings
        many, missed = result.warnings
        assert many == "There are many."
        assert missed == (
            "1 of 101 members do not satisfy Equality(tolerance=0.0001) (violation 0.25 to 0.25); "
            "`result.feasible` tells which. Allow more `steps`, or take method='auto'."
        )


def test_a_shortfall_is_said_of_who_promised_to_land(quiet):
    some, none = table().sample(4, (1,)), table().sample([1, 2], (1,))
    ppr = PPR(NORMAL, ZERO)
    assert "do not satisfy" in shortfall(some, ppr)
    assert "None of the 2 members satisfies" in shortfall(none, ppr)
    near = feasibly.samplers.DPS(NORMAL, ZERO)
    assert shortfall(some, near).startswith(
        "1 of 4 members became non-finite, the first by step 1"
    )
    assert "take method='auto'" in shortfall(none, near)
    for silent in (Ancestral(NORMAL, ZERO), Ancestral(NORMAL), MMPS(NORMAL, ZERO, sigma_y=0.1)):
        assert shortfall(none, silent) == ""


TINY = Equality(lambda x: (1e4 * x[:, :1]).sin(), 1e-12)
CUBE = Equality(lambda x: x[:, :1] ** 3 - 8, 1e-9)
NOWHERE = Equality(lambda x: x[:, :1].square() + 1, 1e-6)


@pytest.mark.parametrize(
    ("constraint", "minimize", "at", "words"),
    [
        (TINY, GaussNewton(9), 0.3, r"Rounding alone .* raise it or sample with dtype="),
        (
            CUBE,
            GaussNewton(1, max_distance=None),
            9.0,
            r"stops too early; minimize=LBFGS",
        ),
        (CUBE, GaussNewton(20, max_distance=0.1), 9.0, r"stops too early; .*max_distance=None"),
        (NOWHERE, GaussNewton(20, max_distance=None), 0.0, r"local minimum .*more `attempts`"),
    ],
    ids=["rounding", "iterations", "radius", "minimum"],
)
def test_the_advice_is_that_of_the_cause(constraint, minimize, at, words):
    sampler = feasibly.PostHoc(NORMAL, constraint, minimize=minimize)
    assert re.search(words, advice(sampler, torch.full((2, 1), at), [0, 1]))


def test_members_that_are_not_finite_are_named_with_their_step_and_level(quiet):
    class Fails(Ancestral):
        enforces = True

        def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
            made = super().step(x_t, t, s, randn, memory)
            if self.index(s) < 2:
                return made
            rows = torch.arange(len(x_t))[:, None] == 1
            return made._replace(x=made.x.masked_fill(rows, torch.nan))

    result = Fails(NORMAL, ZERO, steps=4, order=1, spacing="time").sample(3, (1,))
    level = result.trace[1].sigma
    assert (
        f"1 of 3 members became non-finite, the first by step 2 of 4, at sigma = {level:.3g}"
        in (" ".join(result.warnings))
    )


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt], ids=lambda e: e.__name__)
def test_what_was_finished_survives_an_error(error, quiet):
    """The first chunk, and the first attempt of the second."""

    def stop(state):
        if state.attempt == 1 and 2 in state.members:
            raise error("no more")

    with pytest.raises(error, match="no more") as caught:
        table().sample(4, (1,), attempts=3, chunk=2, observe=stop)
    partial = caught.value.partial
    assert partial.members == [0, 1, 2, 3]
    assert partial.samples[:3, 0].tolist() == pytest.approx([0.0, 0.0, 0.3])
    assert partial.samples[3].isnan()
    assert partial.feasible.tolist() == [True, True, False, False]
    assert partial.violation.tolist() == pytest.approx([0.0, 0.0, 0.09, math.inf])

    def at_once(state):
        raise error("no more")

    with pytest.raises(error) as caught:
        table().sample(4, (1,), observe=at_once)
    assert caught.value.partial is None


def test_a_run_whose_members_all_fail_says_where():
    words = r"All 2 members became non-finite by step 1 of 1, at sigma = 0\.00112; test the den"
    with pytest.raises(SamplingError, match=words):
        table(rows=((NAN, NAN),) * 2).sample(2, (1,), attempts=2)


def test_a_dry_run_is_not_counted_and_a_preparation_is_once(gaussian):
    calls = 0

    def denoiser(x_t, t):
        nonlocal calls
        calls += 1
        return gaussian(x_t, t).mean

    denoiser.schedule = gaussian.schedule

    @dataclass(frozen=True, repr=False, eq=False)
    class Prepared(Ancestral):
        answer: float | None = None

        def prepare(self, problem):
            assert (members.current() == 7).all()
            return replace(self, answer=self.denoiser(problem.x_0, torch.tensor(0.5)).sum().item())

        def begin(self, noise):
            assert self.answer is not None
            return super().begin(noise)

    constraint = Equality(lambda x: x + 10, tolerance=1e-4)
    sampler = Prepared(denoiser, constraint, steps=3)
    result = sampler.sample([7, 8, 9], (2,), attempts=2, chunk=2)
    assert sampler.answer is None
    assert calls == 2 + result.evaluations.forward
    assert result.evaluations.forward == 1 + 2 * 2 * sampler.budget()[0]
    assert result.evaluations.member_forward == 2 + 2 * 3 * sampler.budget()[0]


def test_a_snapshot_follows_every_step(gaussian):
    constraint, seen = Equality(lambda x: x[:, :1] - 0.3, tolerance=1e-4), []
    minimize = GaussNewton(steps=1, max_distance=None)
    sampler = PPR(gaussian, constraint, steps=5, repeats=1, minimize=minimize)
    result = sampler.sample(6, (2,), chunk=4, callback=seen.append)
    assert seen == result.trace
    assert [s.step for s in seen] == [1, 2, 3, 4, 5] * 2
    assert [s.members for s in seen] == [4] * 5 + [2] * 5
    levels = [sampler.noise_level(t) for t in sampler.times()[1:]]
    assert [s.sigma for s in seen] == pytest.approx(levels * 2)
    # a prediction, and an iteration of the minimizer and its end; counted anew a chunk
    assert [s.forward for s in seen] == [3, 6, 9, 12, 15] * 2
    assert [s.backward for s in seen] == [1, 2, 3, 4, 5] * 2
    assert all(s.failed == 0 and s.feasible == 1 and s.median <= s.worst < 1e-4 for s in seen)
    assert seen[0].seconds <= seen[4].seconds <= result.seconds


def test_a_failed_member_is_counted_and_told_apart(quiet):
    seen = []
    result = table().sample(4, (1,), callback=seen.append)
    (snapshot,) = seen
    assert (snapshot.failed, snapshot.feasible) == (1, 0.25)
    assert snapshot.worst == pytest.approx(0.25), "of the members that are finite"
    assert result.finite.tolist() == [True, True, True, False]
    assert result.samples[3].isnan()


def test_a_trajectory_begins_with_the_start_and_resets_what_has_failed(gaussian):
    class Breaking(Gaussian):
        """Is not finite for the first member, at one level."""

        def mean(self, x, sigma):
            assert x.isfinite().all()
            x_0 = super().mean(x, sigma)
            bad = (torch.arange(len(x)) == 0)[:, None] & (abs(sigma - level) < 1e-6)
            return torch.where(bad, torch.nan, x_0)

    sampler = Ancestral(Breaking(torch.zeros(2), torch.eye(2), LogLogit()), steps=4, order=1)
    level = sampler.noise_level(sampler.times()[1])
    noise = MemberNoise(0, range(3), (2,), dtype=torch.float64)
    numbers, times, steps = zip(*trajectory(sampler, noise), strict=True)
    assert numbers == (0, 1, 2, 3, 4)
    assert list(times) == sampler.times().tolist()
    assert isinstance(steps[0], Start)
    assert steps[2].x[0].isnan().all()
    assert steps[3].x[0].norm() < 10 * level, "it goes on from zero"
    assert all(step.x[1:].isfinite().all() for step in steps)


def test_steps_are_numbered_from_where_a_sampler_begins(gaussian):
    @dataclass(frozen=True, repr=False, eq=False)
    class Late(Ancestral):
        def begin(self, noise):
            start = super().begin(noise)
            return start._replace(times=start.times[3:])

    result = Late(gaussian, steps=5).sample(1, (2,))
    assert [(s.step, s.steps) for s in result.trace] == [(4, 5), (5, 5)]


def test_a_problem_is_seen_as_a_run_would_see_it(gaussian):
    constraint = Equality(lambda x: torch.cat((x, x), dim=1), tolerance=1e-6)
    problem = inspect(gaussian, constraint, (2,), torch.float64, member=3, chunk=9)
    assert problem.residuals == 4
    assert (problem.member, problem.chunk) == (3, 9)
    assert problem.x_0.shape == (2, 2)
    assert problem.x_0.dtype == torch.float64
    torch.testing.assert_close(problem.r, constraint.residual(problem.x_0))
    assert inspect(gaussian, None, (2,)).residuals == 0


def test_equal_samplers_are_prepared_once(gaussian):
    first, second = Ancestral(gaussian, steps=2), Ancestral(gaussian, steps=3)
    counts = Evaluations()
    prepared, _ = dry_run([first, first, second], (2,), torch.float32, "cpu", 0, 2, counts)
    one, again, two = prepared
    assert one is again
    assert (one.steps, two.steps) == (2, 3)
    assert one.denoiser.evaluations is two.denoiser.evaluations is counts
    assert isinstance(first.denoiser, Network)
    assert first.denoiser.evaluations is None
    assert counts.forward == 0


def test_a_run_with_one_number_of_residuals_does_not_change_anothers():
    """A copy of a sampler shares nothing that a run of either could change."""
    prior = Gaussian(torch.zeros(16), torch.eye(16), LogLogit())

    def of(m):
        return Equality(lambda x: x[:, :m] + x[:, :m] ** 3 - 0.3, tolerance=1e-6)

    one = PPR(prior, of(12), steps=4, repeats=1, minimize=WarmLBFGS(steps=3))
    other = replace(copy.copy(one), constraint=of(3))
    noises = [lambda ids=ids: MemberNoise(0, ids, (16,)) for ids in ([0, 1], [2, 3, 4])]
    alone = [list(trajectory(one, noises[0]())), list(trajectory(other, noises[1]()))]
    turns = zip(trajectory(one, noises[0]()), trajectory(other, noises[1]()), strict=True)
    for expected, found in zip(zip(*alone, strict=True), turns, strict=True):
        for (_, _, step), (_, _, again) in zip(expected, found, strict=True):
            assert torch.equal(step.x, again.x)
            assert torch.equal(step.memory.s, again.memory.s)


@pytest.mark.parametrize(
    "ids", [np.int64(3), torch.tensor(3), range(3), np.arange(3), torch.arange(3), [0, 1, 2]],
    ids=["numpy", "torch", "range", "array", "tensor", "list"],
)  # fmt: skip
def test_members_are_a_number_or_indices_of_any_library(ids):
    result = table(rows=((0.0,) * 3,)).sample(ids, [np.int64(1)], chunk=np.int64(2))
    assert result.members == [0, 1, 2]
    assert all(type(i) is int for i in result.members)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shape": 2}, r"shape=...\) takes the shape of one sample, such as \(2,\) or .*got 2"),
        ({"shape": (2.5,)}, r"shape=...\) takes a whole number of at least 1, got 2.5"),
        ({"shape": (0,)}, r"shape=...\) takes a whole number of at least 1, got 0"),
        ({"members": 0}, r"members=...\) takes a whole number from 1 to 4294967296, got 0"),
        ({"members": []}, r"needs at least one member, got members=\[\]"),
        ({"members": True}, r"members=...\) takes a whole number from 1 to .*, got True"),
        ({"members": 2.0}, r"takes the number of members, or their indices, got 2.0"),
        ({"members": None}, r"takes the number of members, or their indices, got None"),
        ({"members": [-1]}, r"members=...\) takes a whole number from 0 to 4294967295, got -1"),
        ({"members": [2**32]}, r"members=...\) takes a whole number from 0 to .*, got 4294967296"),
        ({"chunk": 0}, r"chunk=...\) takes a whole number of at least 1, got 0"),
        ({"chunk": 1.5}, r"chunk=...\) takes a whole number or None, got 1.5"),
        ({"seed": -1}, r"seed=...\) takes a whole number from 0 to 4294967295, got -1"),
        ({"seed": 2**32}, r"seed=...\) takes a whole number from 0 to .*, got 4294967296"),
        ({"attempts": 0}, r"attempts=...\) takes a whole number of at least 1, got 0"),
        ({"attempts": 1.5}, r"attempts=...\) takes a whole number, got 1.5"),
        ({"dtype": torch.float16}, r"takes torch.float32 or torch.float64, got torch.float16"),
        ({"dtype": "float32"}, r"takes torch.float32 or torch.float64, got 'float32'"),
    ],
    ids=str,
)
def test_what_a_run_cannot_take_is_refused_in_words(arguments, words):
    arguments = {"members": 2, "shape": (1,)} | arguments
    with pytest.raises(ValueError, match=rf"^(sample|run)\(.*{words}"):
        table().sample(**arguments)


def test_a_run_without_samplers_is_refused():
    with pytest.raises(ValueError, match="needs at least one sampler"):
        run([], 2, (1,))
