import io
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from experiments import records, studies, tables
from experiments.benches import KSBench, ks, observed
from experiments.benches.observed import pack, unpack
from experiments.figures import gallery, over_time, trajectories
from experiments.run import run
from experiments.studies.base import Study
from feasibly import PPR, PostHoc
from feasibly.minimizers import LBFGS
from feasibly.oracles import Gaussian
from feasibly.problems.ks import KS, SUPPORT
from feasibly.schedules import LogLogit

STUDY = Study(
    name="tiny",
    question="Does it run?",
    paper="none",
    samplers={
        "PPR": partial(PPR, steps=8, sigma_max=10.0, retries=0, minimize=LBFGS()),
        "control": partial(PostHoc, steps=8),
    },
    default="PPR",
    problem="ks",
    protocol={"control": (1, 3)},
)


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch):
    """Results of their own, and white noise on 8 x 8 points for the prior."""
    oracle = Gaussian(torch.zeros(64), torch.eye(64), LogLogit(1e-4, 1e4, 4.0))
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(ks, "KS", lambda observation, _=None: KS(observation, oracle, size=8))
    monkeypatch.setitem(SUPPORT, 8, SUPPORT[64])
    monkeypatch.setattr(observed.priors, "digest", lambda name: "first")


def start(study=STUDY, references=range(2), **options):
    bench = KSBench(["sine-3", "linear-1"], references, options.pop("members", 4), 5, **options)
    run(study, bench, bench.settings())
    return records.read("tiny", "ks")


def test_every_label_is_run_on_the_references_of_its_protocol():
    rows = start(references=range(10, 12), members=None)
    places = [(r["label"], r["observation"], r["reference"], r["members"]) for r in rows]
    assert places == [
        ("PPR", "sine-3", 10, 8),
        ("control", "sine-3", 10, 3),
        ("PPR", "sine-3", 11, 8),
        ("PPR", "linear-1", 10, 8),
        ("control", "linear-1", 10, 3),
        ("PPR", "linear-1", 11, 8),
    ]
    assert all(row["seed"] == 5 and row["problem"] == "ks" for row in rows)


def test_the_full_protocol_runs_all_labels_everywhere():
    assert len(start(full=True)) == 8


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_a_record_is_that_of_the_samplers_own_run():
    row = start()[0]
    problem = ks.KS("sine-3")
    y = problem.reference(0)
    sampler = STUDY.samplers["PPR"](problem.denoiser, problem.constraint(y))
    result = sampler.sample(4, (8, 8), seed=5)
    scores = problem.scores(result.samples, result.feasible, y)
    assert {key: row[key] for key in scores} == json.loads(json.dumps(scores))
    assert (row["forward"], row["backward"]) == (result.calls.forward, result.calls.backward)
    assert row["violation_worst"] == result.violation.max().item()
    assert row["sampler"] == repr(sampler)


def test_a_record_names_the_settings_that_ppr_chose():
    bench = KSBench(["sine-3"], range(1), 2, 5)
    automatic = replace(STUDY, samplers={"PPR": partial(PPR, steps=4)})
    run(automatic, bench, bench.settings())
    (row,) = records.read("tiny", "ks")
    assert "sigma_max=10.0" in row["sampler"]
    assert "minimize=WarmLBFGS(" in row["sampler"]


def test_a_study_that_has_its_results_is_not_run_again():
    rows = start()
    assert start() == rows
    again = replace(STUDY, samplers={**STUDY.samplers, "PPR": partial(PPR, steps=9)})
    assert len(start(again)) == len(rows) + 4


def test_a_result_of_another_study_is_taken_over(monkeypatch):
    first = start()[0]
    monkeypatch.setattr(observed, "draw", lambda *a: pytest.fail("drawn again"))
    samplers = {"PPR": STUDY.samplers["PPR"], "the same": STUDY.samplers["PPR"]}
    other = replace(STUDY, name="other", samplers=samplers)
    bench = KSBench(["sine-3"], range(1), 4, 5)
    run(other, bench, bench.settings())
    assert records.read("other", "ks") == [
        first | {"study": "other", "label": label, "default": label == "PPR"} for label in samplers
    ]
    # what differs in anything but the label is no twin
    different = replace(STUDY, name="third", samplers={"PPR": partial(PPR, steps=9, retries=0)})
    with pytest.raises(pytest.fail.Exception, match="drawn again"):
        run(different, bench, bench.settings())
    with pytest.raises(pytest.fail.Exception, match="drawn again"):
        run(other, KSBench(["sine-3"], range(1), 3, 5), bench.settings())


def test_a_study_is_run_again_with_other_weights_of_the_prior(monkeypatch):
    rows = start()
    monkeypatch.setattr(observed.priors, "digest", lambda name: "second")
    again = start()
    assert len(again) == 2 * len(rows)
    assert {row["weights"] for row in again} == {"first", "second"}
    with pytest.raises(ValueError, match="stale"):
        tables.means(again)


def test_a_sampler_that_breaks_down_scores_nothing_and_is_kept():
    def explode(denoiser, constraint):
        def nan(x_t, t):
            return x_t * torch.where(t > 0.6, torch.nan, 1.0)

        nan.schedule = denoiser.schedule
        return PPR(nan, constraint, steps=8, sigma_max=10.0, minimize=LBFGS())

    rows = start(replace(STUDY, samplers={"PPR": explode}))
    assert [row["feasible"] for row in rows] == [0] * 4
    assert "non-finite" in rows[0]["error"]
    assert tables.means(rows)[0]["joint"] == 0


def test_tables_have_the_scores_of_ensembles():
    table = tables.render(tables.means(start()))
    head = table.splitlines()[0]
    for column in ("in C and S (%)", "RMSE", "CRPS", "skill", "spread", "Max-Norm", "KS residual"):
        assert column in head
    assert "k-NN" not in head


def test_a_trajectory_is_read_as_it_was_written():
    u = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(unpack(pack(u), (8, 8)), u.numpy(), rtol=1e-3, atol=1e-6)


def test_pictures_are_kept_of_the_first_reference_alone():
    rows = start()
    kept = [row for row in rows if "picture" in row]
    assert {row["reference"] for row in kept} == {0}
    y = ks.KS("sine-3").reference(0)
    np.testing.assert_allclose(unpack(kept[0]["picture"], (8, 8)), y.numpy(), rtol=1e-3, atol=1e-3)


def test_figures_show_what_the_records_say():
    rows = start()
    figure = trajectories(rows)
    assert [ax.get_title() for ax in figure.axes[::2]] == ["sine-3", "linear-1"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["PPR", "control"]

    curves = over_time(rows)
    panel = curves.axes[0]
    assert panel.get_title() == "RMSE, sine-3"
    # the control was run on reference 0 alone, so that PPR is shown on it
    mine = [
        r["mse"]
        for r in rows
        if r["label"] == "PPR" and r["observation"] == "sine-3" and r["reference"] == 0
    ]
    expected = np.sqrt(np.mean(mine, axis=0))
    np.testing.assert_allclose(panel.get_lines()[0].get_ydata(), expected)
    assert panel.get_lines()[0].get_label() == "PPR"

    pictures = gallery(rows)
    titles = [ax.get_title().replace("\n", " ") for ax in pictures.axes if ax.images]
    assert titles == [
        f"{name}, {kind}"
        for kind in ("sine-3", "linear-1")
        for name in ("reference", "PPR", "control")
    ]
    for drawn in (figure, curves, pictures):
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="png", dpi=30)
        assert buffer.getvalue().startswith(b"\x89PNG")


ON_KS = studies.find("ks")


def test_the_paper_s_studies_are_on_ks_too():
    names = {"baselines", "ablation", "projection-steps", "optimizers", "dps-pc", "tuning"}
    assert set(ON_KS) == names | {"calibration"}  # which the paper does not have
    for study in ON_KS.values():
        assert study.default in study.samplers
        assert set(study.protocol) <= set(study.samplers)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize(
    ("study", "label"),
    [
        pytest.param(study, label, id=f"{name}-{label}")
        for name, study in ON_KS.items()
        for label in study.samplers
    ],
)
def test_every_sampler_of_a_study_draws_trajectories(study, label):
    problem = ks.KS("sine-3")
    constraint = problem.constraint(torch.zeros(8, 8))
    sampler = study.samplers[label](problem.denoiser, constraint)
    sampler.steps = 3
    result = sampler.sample(2, (8, 8))
    assert result.samples.shape == (2, 8, 8)
    assert result.finite.all()


def test_baselines_ask_for_no_more_than_the_paper_s_gradients():
    problem = ks.KS("sine-3")
    constraint = problem.constraint(torch.zeros(8, 8))
    for label, make in ON_KS["baselines"].samplers.items():
        sampler = make(problem.denoiser, constraint)
        attempts = sampler.retries + 1  # which only infeasible members ask for
        assert sampler.budget(192)[1] <= 1024 * attempts, label
    fast = ON_KS["baselines"].samplers["fast"](problem.denoiser, constraint)
    assert fast.budget(192)[1] <= 512 * (fast.retries + 1)
