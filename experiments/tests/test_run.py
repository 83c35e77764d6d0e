import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from experiments import records, tables
from experiments.__main__ import _asked
from experiments.benches import Data2DBench, data2d
from experiments.records import TRUTH
from experiments.run import measure, run, split
from experiments.samplers import default, only, post_hoc
from experiments.studies import Comparison, Measurement, Study
from experiments.tests.conftest import sampled
from feasibly import PPR, SMC, Ancestral, plan
from feasibly.problem import Problem
from feasibly.problems.data2d import Data2D

OURS = partial(default, method=SMC(steps=8), attempts=1, monitor=True)
SAMPLERS = {
    "default": OURS,
    "post-hoc": partial(post_hoc, steps=8),
}
LABELS = ["default", "post-hoc", TRUTH]
SIZES = {"members": 32, "seed": 3, "constraints": range(1), "pool": 2048}
VERSIONS = {"feasibly", "commit", "torch", "python", "machine"}


@pytest.fixture(scope="module", autouse=True)
def cheap():
    """The data's distribution for the prior's samples, which need many evaluations."""

    def prior_samples(self, n):
        return self.distribution.sample(n, torch.Generator().manual_seed(0)).float()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Data2D, "prior_samples", prior_samples)
        yield


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Results of their own."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)


def start(samplers=SAMPLERS, **changes):
    data2d._problem.cache_clear()
    bench = Data2DBench("data2d", ("checkerboard",), **SIZES | changes)
    study = Study("tiny", "Does it run?", {"data2d": Comparison(samplers)})
    run(study, bench, bench.settings())
    return records.read("tiny", "data2d")


@pytest.fixture(scope="module")
def rows(cheap, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "RESULTS", tmp_path_factory.mktemp("results"))
        return start()


def path():
    return records.path_of("tiny", "data2d")


def kept(rows):
    """Writes records as an earlier run left them."""
    records.append("tiny", "data2d", rows)


def without_times(record):
    return {k: v for k, v in record.items() if k not in ("seconds", "overhead", "versions")}


def exact():
    problem = Data2D("checkerboard")
    constraint = problem.constraint(0)
    return problem, constraint, problem.ground_truth(constraint, problem.prior_samples(2048))


def test_a_study_has_a_record_for_every_sampler_and_for_the_truth(rows):
    assert [row["label"] for row in rows] == LABELS
    assert [row["default"] for row in rows] == [True, False, False]
    for row in rows:
        keys = ("study", "problem", "prior", "constraint", "members", "seed")
        assert [row[k] for k in keys] == ["tiny", "data2d", "checkerboard", 0, 32, 3]
        assert {*data2d.SHARES} <= row.keys()
        assert row["versions"].keys() == VERSIONS
    problem, constraint, truth = exact()
    # samples that no sampler is scored on
    scores = problem.scores(truth[32:64], constraint.is_feasible(truth[32:64]), truth[:32])
    assert rows[2].items() >= scores.items()
    assert "forward" not in rows[2]


def test_a_record_is_that_of_the_samplers_own_run(rows):
    row = rows[0]
    problem, constraint, truth = exact()
    chosen = plan(problem.denoiser, constraint, (2,), **OURS.keywords)
    result = sampled(chosen.kernels[0], 32, seed=3, monitor=chosen.monitor)
    assert row.items() >= problem.scores(result.samples, result.feasible, truth[:32]).items()
    assert row["sampler"] == result.method
    made = result.evaluations + chosen.evaluations
    assert (row["forward"], row["backward"]) == (made.forward, made.backward)
    assert row["member_forward"] == made.member_forward / 32
    assert row["member_backward"] == made.member_backward / 32
    c = result.violation.double().sort().values
    assert row["violation_median"] == pytest.approx(((c[15] + c[16]) / 2).item())
    assert row["violation_median"] <= row["violation_90"] <= row["violation_99"] <= c[-1]
    assert row["violation_worst"] == c[-1].item()


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_a_record_scores_the_states_as_a_run_that_returns_them(rows):
    """Post-hoc projection projects the states then."""
    problem, constraint, truth = exact()
    posed = Problem(problem.denoiser, constraint, (2,))
    for row in rows[:2]:
        (kernel,) = SAMPLERS[row["label"]](posed).kernels
        result = sampled(replace(kernel, output="state"), 32, seed=3)
        scores = problem.scores(result.samples, result.feasible, truth[:32])
        for key in ("feasible", "on_manifold", "joint", "knn"):
            assert row[f"state_{key}"] == scores[key]


def test_a_study_that_has_its_results_is_not_run_again(rows, monkeypatch):
    kept(rows)
    monkeypatch.setattr(Data2D, "ground_truth", lambda *_: pytest.fail("nothing is left to do"))
    assert start() == rows


@pytest.mark.parametrize("missing", range(3), ids=LABELS)
def test_a_missing_setting_alone_is_run_again_and_comes_out_the_same(rows, missing):
    others = [row for i, row in enumerate(rows) if i != missing]
    kept(others)
    *before, again = start()
    assert before == others
    assert without_times(again) == without_times(rows[missing])


def test_a_sampler_with_other_settings_is_run_again_and_not_averaged_with_the_old(rows):
    kept(rows)
    again = start(SAMPLERS | {"default": partial(OURS, method=SMC(steps=9))})
    assert [row["label"] for row in again] == [*LABELS, "default"]
    assert "steps=9" in again[-1]["sampler"]
    with pytest.raises(ValueError, match="stale"):
        tables.means(again)


def test_a_study_that_is_stopped_keeps_what_it_has():
    class Stopped(Ancestral):
        def step(self, *_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(SAMPLERS | {"post-hoc": only(Stopped)})
    assert [row["label"] for row in records.read("tiny", "data2d")] == ["default"]


def test_a_sampler_that_breaks_down_scores_nothing_and_is_kept(rows):
    def explode(problem):
        def nan(x_t, t):
            return x_t * torch.where(t > 0.6, torch.nan, 1.0)

        nan.schedule = problem.denoiser.schedule
        return only(PPR, steps=8)(problem.but(denoiser=nan))

    kept(rows[1:])
    samplers = SAMPLERS | {"default": explode}
    *_, row = start(samplers)
    assert "non-finite" in row["error"]
    assert [row[key] for key in data2d.SHARES] == [0, 0, 0, 0, 1]
    assert len(start(samplers)) == 3
    assert tables.means([row, rows[1]])[0]["joint"] == 0


@pytest.mark.parametrize("pool", [64, 640], ids=["too few for a truth", "too few for two"])
def test_a_pool_that_is_too_small_is_refused_with_a_remedy(pool):
    with pytest.raises(ValueError, match=r"Raise --pool"):
        start(pool=pool)


@pytest.mark.parametrize("jobs", [1, 3, 50])
def test_processes_share_the_settings_out(jobs):
    settings = Data2DBench("data2d", ["banana"], range(100, 112), 8, 99).settings()
    assert settings == [{"prior": "banana", "constraint": k} for k in range(100, 112)]
    parts = split(settings, jobs)
    assert [setting for part in parts for setting in part] == settings
    assert len(parts) == min(jobs, len(settings))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_study_is_asked_on_its_first_problem_or_on_another_that_it_has():
    assert _asked("baselines", None)[1] == _asked("baselines", "data2d")[1] == "data2d"
    assert _asked("bound", None)[1] == "data2d"
    with pytest.raises(ValueError, match="linear is a study on lines"):
        _asked("linear", "ks")
    with pytest.raises(ValueError, match=r"'nope'.*ablation.*minimizers"):
        _asked("nope", None)
    with pytest.raises(ValueError, match="experiments run tiny"):
        records.read("tiny", "data2d")


# Measurements.

SETTINGS = [{"sigma": 0.1, "pair": (1, 2)}, {"sigma": 0.3, "pair": (1, 2)}]


class Counted:
    """Measures a setting in three records, and counts the calls."""

    def __init__(self, *interrupted):
        self.calls, self.interrupted = [], interrupted

    def __call__(self, setting):
        self.calls.append(setting)
        if setting in self.interrupted:
            raise KeyboardInterrupt
        return [{"level": i, "value": i * setting["sigma"]} for i in range(3)]


def measured(counted, settings=SETTINGS, labels=()):
    """What is measured by a run, and all records after it."""
    common = {"question": "Does it run?", "rows": list, "columns": {}}
    one = Measurement("tiny", problem="data2d", settings=settings, measure=counted, **common)
    measure(one, labels)
    return counted.calls, records.known("tiny", "data2d")


def test_every_setting_is_measured_once_and_its_records_say_what_they_are():
    calls, rows = measured(Counted())
    assert calls == SETTINGS
    assert [(row["sigma"], row["level"]) for row in rows] == [
        (sigma, level) for sigma in (0.1, 0.3) for level in range(3)
    ]
    for row in rows:
        assert (row["study"], row["problem"], row["pair"]) == ("tiny", "data2d", [1, 2])
        assert row["versions"].keys() == VERSIONS
    assert measured(Counted()) == ([], rows)
    # another setting is not taken for one that is there
    other = [{"sigma": 0.1, "pair": (1, 3)}, {"sigma": 0.1, "pair": (1, 2), "members": 4}]
    assert measured(Counted(), other)[0] == other


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_setting_alone_is_measured_again(missing):
    _, rows = measured(Counted())
    others = [row for row in rows if row["sigma"] != SETTINGS[missing]["sigma"]]
    path().write_text("".join(json.dumps(row) + "\n" for row in others))
    calls, again = measured(Counted())
    assert calls == [SETTINGS[missing]]
    assert again[:3] == others
    assert again[3:] == [row for row in rows if row not in others]


def test_an_interrupted_setting_leaves_no_records_and_those_before_it_stay():
    with pytest.raises(KeyboardInterrupt):
        measured(Counted(SETTINGS[1]))
    assert [row["sigma"] for row in records.read("tiny", "data2d")] == [0.1] * 3
    assert measured(Counted())[0] == [SETTINGS[1]]


def test_a_record_that_json_cannot_hold_leaves_nothing_of_its_setting():
    with pytest.raises(TypeError):
        measure(Measurement("tiny", "?", "data2d", SETTINGS, lambda _: [{}, {"a": {1}}], list, {}))
    assert not path().exists()


def test_only_the_labels_that_are_asked_for_are_measured():
    settings = [{"label": name, "sigma": 0.1} for name in ("one", "two")]
    assert measured(Counted(), settings, ["two"])[0] == settings[1:]
    with pytest.raises(ValueError, match=r"no labels \['three'\]"):
        measured(Counted(), settings, ["three"])
