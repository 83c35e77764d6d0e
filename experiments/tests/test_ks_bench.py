import io
import json
from functools import partial

import numpy as np
import pytest
import torch

from experiments import records, tables
from experiments.benches import KSBench, ks, observed
from experiments.figures import gallery, over_time
from experiments.records import pack, unpack
from experiments.run import run
from experiments.samplers import only, post_hoc, ppr
from experiments.studies import Comparison, Study, baselines
from feasibly import PPR, sample
from feasibly.minimizers import LBFGS
from feasibly.oracles import Gaussian
from feasibly.problems.ks import KS, SUPPORT
from feasibly.sampling import inspect
from feasibly.schedules import LogLogit

SAMPLERS = {
    "PPR": partial(ppr, steps=8, sigma_max=10.0, attempts=1, minimize=LBFGS()),
    "post-hoc": partial(post_hoc, steps=8),
}


def study(samplers=SAMPLERS, name="tiny"):
    return Study(name, "Does it run?", {"ks": Comparison(samplers, protocol={"post-hoc": (1, 3)})})


@pytest.fixture(scope="module", autouse=True)
def tiny():
    """White noise on 8 x 8 points for the prior."""
    oracle = Gaussian(torch.zeros(64), torch.eye(64), LogLogit(1e-4, 1e4, 4.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ks, "KS", lambda observation, _=None: KS(observation, oracle, size=8))
        patch.setitem(SUPPORT, 8, SUPPORT[64])
        patch.setattr(observed.priors, "digest", lambda name: "first")
        yield


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Results of their own."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)


def start(samplers=SAMPLERS, kinds=("sine-3",), references=range(1), members=4):
    bench = KSBench(kinds, references, members, 5)
    run(study(samplers), bench, bench.settings())
    return records.read("tiny", "ks")


@pytest.fixture(scope="module")
def rows(tiny, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "RESULTS", tmp_path_factory.mktemp("results"))
        return start(kinds=("sine-3", "linear-1"), references=range(2))


def test_every_label_is_run_on_the_references_of_its_protocol():
    rows = start(kinds=("sine-3", "linear-1"), references=range(10, 12), members=None)
    places = [(r["label"], r["observation"], r["reference"], r["members"]) for r in rows]
    assert places == [
        ("PPR", "sine-3", 10, 8),
        ("post-hoc", "sine-3", 10, 3),
        ("PPR", "sine-3", 11, 8),
        ("PPR", "linear-1", 10, 8),
        ("post-hoc", "linear-1", 10, 3),
        ("PPR", "linear-1", 11, 8),
    ]
    assert all(row["seed"] == 5 and row["problem"] == "ks" for row in rows)


def test_the_full_protocol_runs_all_labels_everywhere():
    bench = KSBench(["sine-3"], range(10, 12), 4, 5, full=True)
    comparison = study().on["ks"]
    for label in comparison.samplers:
        assert all(bench.options(comparison, label, setting) for setting in bench.settings())


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
def test_a_record_is_that_of_the_samplers_own_run(rows):
    row = rows[0]
    problem = ks.KS("sine-3")
    y = problem.reference(0)
    options = {"steps": 8, "sigma_max": 10.0, "minimize": LBFGS()}
    parts = (problem.denoiser, problem.constraint(y), 4, (8, 8))
    settings = {"method": "ppr", "monitor": False, "attempts": 1}
    result = sample(*parts, options=options, seed=5, **settings)
    scores = problem.scores(result.samples, result.feasible, y)
    assert {key: row[key] for key in scores} == json.loads(json.dumps(scores))
    made = result.evaluations
    assert (row["forward"], row["backward"]) == (made.forward, made.backward)
    assert row["violation_worst"] == result.violation.max().item()
    assert row["sampler"] == result.method


def test_a_record_names_the_settings_that_were_chosen():
    (row,) = start({"PPR": partial(ppr, steps=4)})
    assert row["sampler"].startswith("up to 4 times PPR(")
    assert "sigma_max=10.0" in row["sampler"]
    assert "minimize=WarmLBFGS(" in row["sampler"]


def test_a_result_of_another_study_is_taken_over(monkeypatch):
    first, _ = start()
    monkeypatch.setattr(observed, "sample", lambda *a: pytest.fail("sampled again"))
    samplers = {"PPR": SAMPLERS["PPR"], "the same": SAMPLERS["PPR"]}
    other = study(samplers, "other")
    bench = KSBench(["sine-3"], range(1), 4, 5)
    run(other, bench, bench.settings())
    assert records.read("other", "ks") == [
        first | {"study": "other", "label": label} for label in samplers
    ]
    # what differs in anything but the label is no twin
    different = study({"PPR": partial(ppr, steps=9, attempts=1)}, "third")
    with pytest.raises(pytest.fail.Exception, match="sampled again"):
        run(different, bench, bench.settings())
    with pytest.raises(pytest.fail.Exception, match="sampled again"):
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
    def explode(denoiser, constraint, inspected):
        def nan(x_t, t):
            return x_t * torch.where(t > 0.6, torch.nan, 1.0)

        nan.schedule = denoiser.schedule
        return only(PPR, steps=8)(nan, constraint, inspected)

    rows = start({"PPR": explode})
    assert [row["feasible"] for row in rows] == [0]
    assert "non-finite" in rows[0]["error"]
    assert tables.means(rows)[0]["joint"] == 0


def test_tables_have_the_scores_of_ensembles(rows):
    table = tables.render(tables.means(rows))
    head = table.splitlines()[0]
    for column in (
        "on-manifold",
        "both",
        "RMSE",
        "CRPS",
        "skill",
        "spread",
        "Max-Norm",
        "KS residual",
    ):
        assert column in head
    assert "k-NN" not in head


def test_pictures_are_kept_of_the_first_reference_alone(rows):
    kept = [row for row in rows if "picture" in row]
    assert {row["reference"] for row in kept} == {0}
    y = ks.KS("sine-3").reference(0)
    np.testing.assert_allclose(unpack(kept[0]["picture"], (8, 8)), y.numpy(), rtol=1e-3, atol=1e-3)


def test_figures_show_what_the_records_say(rows):
    curves = over_time(rows)
    panel = curves.axes[0]
    assert panel.get_title() == "RMSE, sine-3"
    # the other was run on reference 0 alone, so that PPR is shown on it
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
    assert titles == ["reference", "PPR", "post-hoc"]

    first = next(row for row in rows if row["label"] == "PPR" and "picture" in row)
    moved = pack(torch.tensor(unpack(first["picture"], (8, 8)).astype(float)) + 1)
    other = [
        row | {"label": "other"} | ({"picture": moved} if "picture" in row else {})
        for row in rows
        if row["label"] == "PPR"
    ]
    assert [ax.get_title() for ax in gallery([*rows, *other]).axes if ax.images] == titles
    assert len(over_time([*rows, *other]).axes[0].lines) == 2
    by_label = {row["label"]: row for row in tables.means([*rows, *other])}
    assert "rmse_ratio" in by_label["PPR"]
    assert "rmse_ratio" not in by_label["other"]

    for drawn in (curves, pictures):
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="png", dpi=30)
        assert buffer.getvalue().startswith(b"\x89PNG")


def test_baselines_ask_for_no_more_than_the_paper_s_gradients():
    problem = ks.KS("sine-3")
    constraint = problem.constraint(torch.zeros(8, 8))
    samplers = baselines.STUDY.on["ks"].samplers
    inspected = inspect(problem.denoiser, constraint, (8, 8))
    for label, make in samplers.items():
        most = 512 if label == "fast" else 1024
        for sampler in make(problem.denoiser, constraint, inspected).attempts:
            assert sampler.budget(192)[1] <= most, label
