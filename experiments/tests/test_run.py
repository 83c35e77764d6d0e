import json
from functools import partial

import pytest
import torch
from experiments.parallel import split

from experiments import parallel, records, tables
from experiments.__main__ import _asked
from experiments.benches import Data2DBench, KSBench, data2d
from experiments.records import TRUTH
from experiments.run import run
from experiments.samplers import default, only, post_hoc
from experiments.studies import Comparison, Study, baselines
from feasibly import PPR, Ancestral, plan, sampling
from feasibly.problems.data2d import Data2D
from feasibly.sampling import inspect

SAMPLERS = {
    "default": partial(default, steps=8, attempts=1),
    "post-hoc": partial(post_hoc, steps=8),
}
LABELS = ["default", "post-hoc", TRUTH]
SIZES = {"members": 32, "seed": 3, "constraints": range(1), "pool": 2048}


@pytest.fixture(autouse=True)
def cheap(tmp_path, monkeypatch):
    """Results of their own, and the data's distribution for the prior's samples, which need many
    evaluations."""

    def prior_samples(self, n):
        return self.distribution.sample(n, torch.Generator().manual_seed(0)).float()

    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(Data2D, "prior_samples", prior_samples)


def start(priors=("checkerboard",), samplers=SAMPLERS, **changes):
    data2d._problem.cache_clear()
    bench = Data2DBench("data2d", priors, **SIZES | changes)
    study = Study("tiny", "Does it run?", {"data2d": Comparison(samplers)})
    run(study, bench, bench.settings())
    return records.read("tiny", "data2d")


def without_times(record):
    return {k: v for k, v in record.items() if k not in ("seconds", "overhead", "versions")}


def test_a_study_has_a_record_for_every_sampler_and_for_the_truth():
    rows = start()
    assert [row["label"] for row in rows] == LABELS
    assert [row["default"] for row in rows] == [True, False, False]
    for row in rows:
        setting = ("tiny", "data2d", "checkerboard", 0, 32, 3)
        keys = ("study", "problem", "prior", "constraint", "members", "seed")
        assert tuple(row[k] for k in keys) == setting
        assert {"feasible", "on_manifold", "joint", "knn", "weight_error"} <= row.keys()
        assert {"feasibly", "commit", "torch", "python", "machine"} == row["versions"].keys()
    truth = rows[-1]
    assert truth["feasible"] == 1
    assert "forward" not in truth


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_a_record_is_that_of_the_samplers_own_run():
    row = start()[0]
    problem = Data2D("checkerboard")
    constraint = problem.constraint(0)
    chosen = plan(problem.denoiser, constraint, (2,), attempts=1, options={"steps": 8})
    result = sampling.run(chosen.attempts, 32, (2,), seed=3, monitor=chosen.survey)
    truth = problem.ground_truth(constraint, problem.prior_samples(2048))[:32]
    scores = problem.scores(result.samples, result.feasible, truth)
    assert {key: row[key] for key in scores} == scores
    assert row["sampler"] == result.method
    made = result.evaluations + chosen.evaluations
    assert (row["forward"], row["backward"]) == (made.forward, made.backward)
    assert row["member_forward"] == made.member_forward / 32
    assert row["member_backward"] == made.member_backward / 32
    c = result.violation.double().sort().values
    assert row["violation_median"] == pytest.approx(((c[15] + c[16]) / 2).item())
    assert row["violation_worst"] == c[-1].item()
    assert row["violation_median"] <= row["violation_90"] <= row["violation_99"] <= c[-1]


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize("label", SAMPLERS)
def test_a_record_scores_the_states_as_a_run_that_returns_them(label):
    """Post-hoc projection projects the states then."""
    row = next(row for row in start() if row["label"] == label)
    problem = Data2D("checkerboard")
    constraint = problem.constraint(0)
    inspected = inspect(problem.denoiser, constraint, (2,))
    make = partial(SAMPLERS[label], output="state")
    (sampler,) = make(problem.denoiser, constraint, inspected).attempts
    result = sampler.sample(32, (2,), seed=3)
    truth = problem.ground_truth(constraint, problem.prior_samples(2048))[:32]
    scores = problem.scores(result.samples, result.feasible, truth)
    mine = {key: row[f"state_{key}"] for key in ("feasible", "on_manifold", "joint", "knn")}
    assert mine == {key: scores[key] for key in mine}


def test_a_study_that_has_its_results_is_not_run_again(monkeypatch):
    start()
    path = records.path_of("tiny", "data2d")
    before = path.read_bytes()

    def fail(self, *arguments):
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(Data2D, "ground_truth", fail)
    start()
    assert path.read_bytes() == before


@pytest.mark.parametrize("missing", range(3), ids=LABELS)
def test_a_missing_setting_alone_is_run_again_and_comes_out_the_same(missing):
    rows = start()
    path = records.path_of("tiny", "data2d")
    lines = path.read_text().splitlines(keepends=True)
    gone = lines.pop(missing)
    path.write_text("".join(lines))
    again = start()
    assert path.read_text().splitlines(keepends=True)[:2] == lines
    assert len(again) == 3
    assert (
        without_times(again[2]) == without_times(json.loads(gone)) == without_times(rows[missing])
    )


def test_other_settings_add_records():
    start()
    assert len(start(seed=4)) == 6
    assert len(start(members=16)) == 9
    rows = start(constraints=range(2))
    assert len(rows) == 12
    assert [row["constraint"] for row in rows] == [0] * 9 + [1] * 3
    assert len(start(pool=2000)) == 15


def test_a_sampler_with_other_settings_is_run_again_and_not_averaged_with_the_old():
    start()
    rows = start(samplers=SAMPLERS | {"default": partial(default, steps=9, attempts=1)})
    assert [row["label"] for row in rows] == [*LABELS, "default"]
    assert "steps=9" in rows[-1]["sampler"]
    with pytest.raises(ValueError, match=r"'default'.*stale"):
        tables.means(rows)
    assert len(tables.means(rows[1:])) == 3


def test_a_study_that_is_stopped_keeps_what_it_has():
    class Stopped(Ancestral):
        def step(self, *_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(samplers=SAMPLERS | {"post-hoc": only(Stopped)})
    assert [row["label"] for row in records.read("tiny", "data2d")] == ["default"]
    assert [row["label"] for row in start()] == LABELS


def test_a_sampler_that_breaks_down_scores_nothing_and_is_kept():
    def explode(denoiser, constraint, inspected):
        def nan(x_t, t):
            return x_t * torch.where(t > 0.6, torch.nan, 1.0)

        nan.schedule = denoiser.schedule
        return only(PPR, steps=8)(nan, constraint, inspected)

    samplers = SAMPLERS | {"default": explode}
    row, other, _ = start(samplers=samplers)
    assert "non-finite" in row["error"]
    shares = ("feasible", "on_manifold", "joint", "knn", "weight_error")
    assert [row[key] for key in shares] == [0, 0, 0, 0, 1]
    assert other["feasible"] > 0
    assert len(start(samplers=samplers)) == 3
    assert tables.means([row, other])[0]["joint"] == 0


def test_the_truth_is_scored_on_samples_that_no_sampler_is_scored_on():
    row = start()[2]
    problem = Data2D("checkerboard")
    constraint = problem.constraint(0)
    truth = problem.ground_truth(constraint, problem.prior_samples(2048))
    first, second = truth[:32], truth[32:64]
    scores = problem.scores(second, constraint.is_feasible(second), first)
    assert {key: row[key] for key in scores} == scores


@pytest.mark.parametrize("pool", [64, 640], ids=["too few for a truth", "too few for two"])
def test_a_pool_that_is_too_small_is_refused_with_a_remedy(pool):
    with pytest.raises(ValueError, match=rf"of {pool} samples.*64 are needed. Raise --pool"):
        start(pool=pool)


def test_a_record_is_read_back_as_it_was_appended():
    rows = [{"label": "a|b\nc", "x": 1e-17, "n": 3, "on": True}, {"label": "σ", "v": {"k": "1"}}]
    for row in rows:
        records.append("other", "data2d", [row])
    assert records.read("other", "data2d") == rows
    assert records.path_of("other", "data2d").read_bytes().count(b"\n") == 2


def test_results_that_do_not_exist_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match="experiments run tiny --problem data2d"):
        records.read("tiny", "data2d")


@pytest.mark.parametrize("jobs", [1, 2, 3, 5, 50])
@pytest.mark.parametrize("priors", [["banana"], ["checkerboard", "banana"]], ids=str)
def test_processes_share_the_settings_out(priors, jobs):
    settings = Data2DBench("data2d", priors, range(100, 112), 8, 0, 99).settings()
    assert settings == [{"prior": p, "constraint": k} for p in priors for k in range(100, 112)]
    parts = split(settings, jobs)
    assert [setting for part in parts for setting in part] == settings
    assert len(parts) == min(jobs, len(settings))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_process_runs_the_settings_it_is_given(monkeypatch):
    seen = []
    monkeypatch.setattr(parallel.runner, "run", lambda *arguments: seen.append(arguments))
    bench = KSBench(["sine-1"], range(3), 8, 0)
    parallel.work("baselines", bench, bench.settings()[1:], ["default"])
    assert seen == [(baselines.STUDY, bench, bench.settings()[1:], ["default"])]


def test_an_unknown_study_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'nope'.*ablation.*minimizers"):
        _asked("nope", None)


def test_a_study_is_asked_on_its_first_problem_or_on_another_that_it_has():
    assert _asked("baselines", None)[1] == _asked("baselines", "data2d")[1] == "data2d"
    assert _asked("baselines", "ks")[1] == "ks"
    assert _asked("linear", None)[1] == "lines"
    assert _asked("bound", None)[1] == "data2d"
    with pytest.raises(ValueError, match="linear is a study on lines, and not on ks"):
        _asked("linear", "ks")
