import io
import math
from itertools import groupby
from types import SimpleNamespace

import pytest
import torch

import feasibly
from feasibly import ensemble, progress
from feasibly.audits import audit
from feasibly.constraints import Linear, Observation
from feasibly.denoisers import Denoiser
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.policy import Plan
from feasibly.problem import inspect
from feasibly.progress import Progress, shown
from feasibly.samplers import PPR, SMC, CalibratedPPR, Rejection
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

D = 2
MIXTURE = GaussianMixture(
    torch.tensor([0.7, 0.3]),
    torch.tensor([[-1.0, 0.0], [1.0, 0.5]]),
    0.05 * torch.eye(2).expand(2, 2, 2),
    LogLogit(),
)
NORMAL = Gaussian(torch.zeros(D), torch.eye(D), LogLogit())
LINE = Linear(torch.tensor([[1.0, 1.0]]), torch.tensor([0.2]), tolerance=1e-8)
CIRCLE = Observation(lambda x: x.square().sum(dim=1), 1.0, tolerance=1e-6)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("CI", "RANK"):
        monkeypatch.delenv(name, raising=False)
    made = Terminal()
    # pytest has its own at each phase of a test
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))
    return made


@pytest.fixture
def seen(monkeypatch):
    """What a display could show at each moment of a run: the parts, the work that is done, the
    total, and whether the time left is known."""
    found = []

    class Recorder(Progress):
        live = property(lambda self: True, lambda self, value: None)

        def draw(self):
            known = math.isfinite(self.seconds_left)
            found.append((tuple(filter(None, self._names)), self.done, self.total, known))

        def erase(self):
            super().erase()
            self.draw()

    monkeypatch.setattr(progress, "Progress", Recorder)
    return found


def lines(terminal):
    """What a terminal showed, one after the other."""
    return [line.rstrip() for line in terminal.getvalue().split("\r")]


# the count


def test_parts_nest_and_what_one_takes_changes_the_total():
    meter = Progress()
    meter.expect(100)
    with meter.part("first", 60):
        meter.advance(10)
        with meter.part(expected=20):
            meter.advance(30)  # ten more than expected
            assert meter.total == 110
            assert meter.left == 0
        assert meter.left == 30
    assert (meter.done, meter.total) == (40, 80)  # the rest was not needed
    with meter.part("second"):  # all that is left
        assert meter.left == 40
        meter.expect(5)
        assert meter.total == 45
    assert meter.total == meter.done == 40


def test_the_time_left_is_at_the_rate_of_the_stage():
    clock = Clock()
    meter = Progress(clock=clock)
    meter.expect(100)
    assert math.isnan(meter.seconds_left)
    with meter.part("survey", 20):
        clock.now = 1000.0
        meter.advance(10)
        assert math.isnan(meter.seconds_left), "the first evaluation may load or compile"
        clock.now = 1020.0
        meter.advance(10)
        assert meter.seconds_left == 160
    with meter.part("sampling"):
        for now in (1020.0, 1900.0):
            clock.now = now
            assert meter.seconds_left == 160, "as before, until it is known"
        meter.advance(10)
        assert meter.seconds_left == 140
        clock.now = 1904.0
        meter.advance(40)
        assert meter.seconds_left == pytest.approx(3)


# the display


def test_a_line_moves_at_most_eight_times_a_second_and_goes_away(terminal):
    clock = Clock()
    meter = Progress(terminal, clock)
    with meter.part("sampling", 1000):
        for _ in range(1000):
            clock.now += 0.001
            meter.advance(1)
        assert 8 <= len(lines(terminal)) <= 12
        assert all(len(line) < 80 for line in lines(terminal))
        meter.say("noise level 0.3 " * 20)
        clock.now += 1
        meter.draw()
        assert len(lines(terminal)[-1]) == 79, "one line, however long"
    meter.erase()
    assert terminal.getvalue().endswith("\r" + " " * 79 + "\r")
    assert "\n" not in terminal.getvalue()


def test_a_sentence_stays_and_the_line_comes_back_below_it(terminal):
    meter = Progress(terminal, Clock())
    with meter.part("sampling", 2):
        meter.advance(1)
        meter.tell("Four samples.")
        assert terminal.getvalue().endswith(" \rFour samples.\n")
        meter.advance(1)
    assert lines(terminal)[-1].startswith("[============] 100%")


def test_a_file_has_a_line_for_each_stage_and_each_minute():
    clock, file = Clock(), io.StringIO()
    meter = Progress(file, clock)
    meter.expect(200)
    for name in ("survey", "sampling"):
        with meter.part(name, 100):
            for _ in range(100):
                clock.now += 1.5
                meter.advance(1)
    meter.erase()
    found = file.getvalue().splitlines()
    assert ["survey" in line for line in found] == [True] * 3 + [False] * 3
    assert "\r" not in file.getvalue()
    assert found[1].startswith("[==          ]  20%  62 s, 4 min left  survey")


def test_a_terminal_that_is_gone_stops_no_work():
    file = Terminal()
    meter = Progress(file, Clock())
    file.close()
    with meter.part("sampling", 2):
        meter.advance(1)
    assert meter.done == 1


def test_it_is_shown_where_somebody_looks(terminal, monkeypatch):
    def shows(asked=None):
        with shown(asked) as meter:
            return meter.file is not None

    assert not shows(), "in a test"
    assert shows(True)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert shows()
    assert not shows(False)
    for name, value in (("CI", "true"), ("RANK", "1")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert not shows()
            assert shows(True)
    with monkeypatch.context() as patched:
        patched.setattr("multiprocessing.parent_process", lambda: object())
        assert not shows()
    monkeypatch.setenv("TERM", "dumb")
    assert not shows()
    notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(progress.sys, "stderr", notebook)
    assert shows()
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    assert not shows()
    monkeypatch.setattr(progress.sys, "stderr", None)
    assert not shows()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_line_goes_away_when_a_network_fails(terminal, error):
    class Fails(Denoiser):
        calls = 0

        def mean(self, x, sigma):
            self.calls += 1
            if self.calls > 40:
                raise error("no")
            return NORMAL.mean(x, sigma)

    with pytest.raises((feasibly.DenoiserError, feasibly.SamplingError, KeyboardInterrupt)):
        feasibly.sample(Fails(LogLogit()), CIRCLE, 4, (D,), method="ppr", progress=True)
    assert lines(terminal)[-2:] == ["", ""]
    assert "survey" in terminal.getvalue()
    assert progress.current().total == 0


# runs

FEW = {"steps": 8}
RUNS = {
    "particles": (MIXTURE, CIRCLE, {}),
    "calibrated": (NORMAL, LINE, {"method": "calibrated"}),
    "ppr": (MIXTURE, CIRCLE, {"method": PPR(steps=8), "batch_size": 5}),
    "rejection": (
        MIXTURE,
        CIRCLE,
        {"method": Rejection(steps=8, tries=2), "monitor": False},
    ),
    "no constraint": (NORMAL, None, {}),
}


def check(seen):
    """A display knows the time left from the second evaluation on, never has more work done than
    there is in all, and ends with all of it done."""
    assert all(done <= total * (1 + 1e-9) for _, done, total, _ in seen)
    first = next(done for _, done, _, _ in seen if done)
    assert all(known for _, done, _, known in seen if done > first)
    _, done, total, _ = seen[-1]
    assert done == pytest.approx(total)
    return [stage for stage, _ in groupby(names[0] for names, *_ in seen if names)]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_seen_from_its_survey_on_and_its_samples_are_the_same(name, seen):
    denoiser, constraint, options = RUNS[name]
    result = feasibly.sample(denoiser, constraint, 12, (D,), progress=True, **options)
    stages = [stage.split(",")[0] for stage in check(seen)]
    surveyed = constraint is not None and options.get("monitor", True)
    expected = ["testing denoiser and constraint"]
    expected += ["survey of unconditional samples"] * surveyed
    assert [stage for stage, _ in groupby(stages)] == [*expected, "sampling"]
    taken = result.evaluations
    assert seen[-1][1] == taken.member_forward + 2 * taken.member_backward
    silent = feasibly.sample(denoiser, constraint, 12, (D,), progress=False, **options)
    assert torch.equal(silent.samples, result.samples)


def test_a_chunk_tells_what_the_next_ones_take(seen):
    """At first the most iterations are expected, and then as many as the chunks before took."""
    kernel = on(PPR(steps=4), NORMAL, LINE)
    sampled(kernel, 12, (D,), batch_size=4, progress=True)
    check(seen)
    for k, part in enumerate(("4 of 12", "8 of 12"), start=1):
        _, done, total, _ = next(s for s in seen if s[0] == (f"sampling, {part} finished",))
        assert total == pytest.approx(done * 3 / k, rel=0.2)


@pytest.mark.parametrize(("workers", "finished"), [(1, "024"), (2, "023")])
def test_an_ensemble_says_how_many_members_are_finished(tmp_path, seen, workers, finished):
    """Of those that are missing, each of several processes expects its share."""
    plan = Plan((on(CalibratedPPR(steps=4), NORMAL, LINE),))
    ensemble.run(plan, tmp_path / "run.zarr", 6, batch_size=2, workers=workers, progress=True)
    done = [stage.removeprefix("sampling, ") for stage in check(seen) if "," in stage]
    # of two, the first draws its own three, and then the others' in an order that is random
    assert done[: len(finished)] == [f"{k} of 6 finished" for k in finished]
    begun = {names[0]: (done, total) for names, done, total, _ in reversed(seen) if names}
    (first, _), (then, total) = (begun[f"sampling, {k} of 6 finished"] for k in (0, 2))
    assert total == pytest.approx(then + (then - first) * 2 / workers)


@pytest.mark.slow
def test_an_audit_is_seen_from_its_survey_on(seen, capsys):
    methods = [CalibratedPPR(steps=4), PPR(steps=4)]
    settings = {"truths": 16, "members": 2, "near": 1, "monitor": True, "progress": True}
    found = audit(NORMAL, LINE, (D,), methods=methods, **settings)
    stages = check(seen)
    assert stages[1] == "survey of unconditional samples"
    assert stages[-3:] == ["truths", "CalibratedPPR, 1 of 2", "PPR, 2 of 2"]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("16 truths with 2 samples each take")
    assert said[1] == f"CalibratedPPR: {found['CalibratedPPR'].verdict}."


# what a run is expected to take


def test_a_plan_says_what_samples_take():
    """Within a factor of two; the most that they may take is four times as much."""
    plan = feasibly.plan(MIXTURE, CIRCLE, (D,))
    result = feasibly.sample(MIXTURE, CIRCLE, 64, (D,))
    counts = result.evaluations, plan.evaluations
    forward, backward = (
        (one - other) / 64
        for one, other in zip(
            *((c.member_forward, c.member_backward) for c in counts), strict=True
        )
    )
    assert 0.5 < forward / plan.expected[0] < 2
    assert 0.5 < backward / plan.expected[1] < 2
    words = plan.estimate(2000)
    assert words.startswith(f"2,000 samples are expected to take {plan.expected[0]:.0f} forward")
    assert "at the speed of the survey" in words
    again = feasibly.plan(MIXTURE, CIRCLE, (D,), monitor=plan.monitor)
    assert again.expected == plan.expected
    assert again.estimate(2).endswith("drawn again."), "no rate is known"


def test_a_pilot_tells_how_many_tries_a_sample_takes(gaussian):
    class Half(Rejection):
        """Keeps every second sample of the pilot."""

        def log_likelihood(self, x_t, t):
            return torch.tensor([0.0, -math.inf]).repeat(len(x_t) // 2)

    kernel = on(Half(steps=4, tries=4), gaussian, LINE)
    pilot = kernel.prepare(inspect(kernel.problem)).pilot
    assert pilot.tries == 1 + 1 / 2 + 1 / 4 + 1 / 8


# the levels of kernels that take them while they begin


@pytest.mark.parametrize("kind", [SMC, Rejection])
def test_steps_of_a_beginning_are_in_the_trace(kind):
    """Once each, whatever the tries of samples; observers see the states behind them."""
    times_each, many = (1, 12) if kind.shares else (2, 6)
    states, snapshots = [], []
    kernel = on(kind(**FEW), MIXTURE, CIRCLE)
    seen = {"callback": snapshots.append, "observe": states.append}
    result = sampled(kernel, 12, (D,), batch_size=6, **seen)
    times = kernel.times(torch.float32)[1:]
    assert [s.step for s in result.trace] == times_each * list(range(1, 9))
    assert [s.sigma for s in result.trace] == times_each * list(map(kernel.noise_level, times))
    assert all((s.members, s.failed) == (many, 0) for s in result.trace)
    assert snapshots == result.trace
    assert snapshots[0].median > 1e3 * snapshots[7].median
    for state, s in zip(states, result.trace, strict=True):
        assert len(state.members) == len(state.x) == s.members
        assert CIRCLE.violation(state.x_0).median().item() == s.median


def test_a_run_inside_of_a_callback_is_another():
    kernel = on(SMC(**FEW), MIXTURE, CIRCLE)

    def again(snapshot):
        if snapshot.step == 3:
            sampled(kernel, 5, (D,))

    plain, result = sampled(kernel, 4, (D,)), sampled(kernel, 4, (D,), callback=again)
    assert [s.step for s in result.trace] == [s.step for s in plain.trace]
    assert torch.equal(result.samples, plain.samples)
