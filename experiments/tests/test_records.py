"""The kept results: their form, that pages show them, and what pages say of them."""

import json
import re
from collections import defaultdict

import pytest

from experiments import paper, records, tables, variables
from experiments.benches import (
    Data2DBench,
    ExactBench,
    HeatBench,
    KSBench,
    OraclesBench,
    WeatherBench,
)
from experiments.pages import PAGES, ROOT, fill
from experiments.records import PRIOR, RESULTS, TRUTH
from experiments.studies import MEASUREMENTS, STUDIES, baselines, optimizers, tuning
from feasibly import priors

COMPARED = [
    (study, problem)
    for study in STUDIES
    for problem in study.on
    if records.path_of(study.name, problem).exists()
]
KEYS = {
    "data2d": Data2DBench.keys,
    "lines": Data2DBench.keys,
    "curves": Data2DBench.keys,
    "oracles": OraclesBench.keys,
    "exact": ExactBench.keys,
    "heat": HeatBench.keys,
    "ks": KSBench.keys,
    "weather": WeatherBench.keys,
}
SHARES = {"feasible", "on_manifold", "joint", "weight_error", "overhead"}


def rows_of(study, problem, part=""):
    """The rows of a table, by label."""
    found = dict(variables.parts(records.read(study, problem)))[part]
    return {row["label"]: row for row in tables.means(found)}


def evaluations(row):
    return row["member_forward"] + row["member_backward"]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*.jsonl")), ids=lambda p: p.stem)
def test_every_record_says_what_made_it(path):
    made = {f"{p}/{s.name}" for s, p in COMPARED} | {f"{m.problem}/{m.name}" for m in MEASUREMENTS}
    made |= {f"ensemble/{name}" for name in ("identical", "memory", "throughput")}
    assert f"{path.parent.name}/{path.stem}" in made
    for line in path.read_text().splitlines():
        found = json.loads(line)["versions"]
        assert found.keys() == {"feasibly", "commit", "torch", "python", "machine"}
        assert all(found.values())


@pytest.mark.parametrize(
    ("study", "problem"), COMPARED, ids=[f"{s.name}-{p}" for s, p in COMPARED]
)
def test_records_of_a_comparison_are_of_its_samplers_and_belong_together(study, problem):
    rows = records.read(study.name, problem)
    labels = study.on[problem].samplers.keys()
    for row in rows:
        assert (row["study"], row["problem"]) == (study.name, problem)
        assert row["label"] in (*labels, TRUTH)
        assert row["default"] == (row["label"] == "default")
        assert {*KEYS[problem], "members", "seed"} <= row.keys()
        # a label that refuses a problem has no sampler for it
        assert bool(row["sampler"]) == (row["label"] != TRUTH) or "error" in row
        assert ("forward" in row) == (row["label"] != TRUTH and "error" not in row)
        assert all(0 <= row[key] <= 1 for key in SHARES & row.keys())
    for _, part in variables.parts(rows):
        assert tables.means(part)  # which refuses settings twice and rows of different runs


@pytest.mark.parametrize("problem", ["ks", "weather"])
def test_results_are_those_of_the_shipped_prior(problem):
    rows = [row for row in records.read_all(problem) if "weights" in row]
    assert {row["weights"] for row in rows} == {priors.digest(problem)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tables_of_the_pages_are_those_of_the_records(page):
    text = page.read_text()
    assert fill(text) == text


def test_every_figure_is_shown_by_a_page_and_every_other_file_is_of_records():
    shown = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text())
    }
    drawn = {
        RESULTS / problem / f"{study.name}{suffix}.png"
        for study, problem in COMPARED
        for suffix in study.on[problem].figures
    }
    drawn |= {
        RESULTS / m.problem / f"{m.name}{suffix}.png" for m in MEASUREMENTS for suffix in m.figures
    }
    assert {path for path in RESULTS.rglob("*") if path.suffix == ".png"} == drawn
    notes = {path for path in RESULTS.rglob("*") if path.suffix == ".txt"}
    assert drawn | notes <= shown
    assert {p.suffix for p in RESULTS.rglob("*.*")} == {".jsonl", ".png", ".txt"}
    assert RESULTS.parent == ROOT


# What pages say.


@pytest.mark.parametrize(
    ("problem", "choices"),
    [
        ("data2d", baselines.CHOICES),
        ("ks", baselines.KS_CHOICES),
        ("weather", baselines.WEATHER_CHOICES),
    ],
    ids=["data2d", "ks", "weather"],
)
def test_baselines_have_the_settings_that_tuning_found_best(problem, choices):
    assert tuning.winners(records.read("tuning", problem)) == choices


def test_optimizers_have_the_learning_rates_that_the_sweep_found_best():
    rows = rows_of("optimizers-sweep", "data2d").values()
    for name, rate in optimizers.RATES.items():
        group = [row for row in rows if row["label"].startswith(f"{name}, ")]
        assert max(group, key=tuning.score)["label"] == f"{name}, lr = {rate:g}"


@pytest.mark.parametrize("name", paper.DATA2D)
def test_no_baseline_does_worse_than_in_the_paper(name):
    """Within the paper's spread, in the better of both outputs."""
    theirs = paper.DATA2D[name]
    row = rows_of("baselines", "data2d")["PPR, paper's setting" if name == "PPR" else name]
    # PPR in the paper's setting is 1.6 points below; its optimizer's details are not stated
    slack = 0.02 if name == "PPR" else 0.0
    assert max(row["feasible"], row["state_feasible"]) >= theirs["feasible"] - slack
    assert max(row["knn"], row["state_knn"]) >= theirs["knn"] - theirs["knn_spread"]


def test_on_data2d_ppr_leads():
    """docs/baselines.md, "What follows"."""
    rows = rows_of("baselines", "data2d")
    others = [
        row
        for label, row in rows.items()
        if not label.startswith(("default", "PPR, no retries", "truth")) and label != "PPR"
    ]
    for key in ("joint", "knn"):
        assert rows["PPR"][key] > max(row[key] for row in others)


def test_on_ks_ppr_leads_on_the_same_references_and_all_its_members_are_feasible():
    """docs/ks.md, "How the methods compare"."""
    found = [row for row in records.read("baselines", "ks") if row["observation"] == "sine-3"]
    rows = {row["label"]: row for row in tables.means(found)}
    assert rows["PPR"]["feasible"] == rows["PPR, fast"]["feasible"] == 1
    for label in rows.keys() - {"default", "PPR", "PPR, fast"}:
        assert rows[label]["rmse_ratio"] > 1
        assert rows[label]["crps_ratio"] > 1


@pytest.mark.parametrize("name", ["gaussian-1", "gaussian-6", "correlated-1", "correlated-6"])
def test_on_gaussians_calibrated_members_have_the_exact_mean_and_spread(name):
    """docs/calibrated.md, "What follows": within the noise of the truth's own samples."""
    rows = rows_of("calibration", "oracles", name)
    mine, truth = rows["CalibratedPPR"], rows[TRUTH]
    assert mine["feasible"] == 1
    assert mine["std"] == pytest.approx(1, abs=0.02)
    assert mine["mean_error"] < 1.5 * truth["mean_error"]
    assert evaluations(mine) <= 2 * evaluations(rows["PPR"])


@pytest.mark.parametrize("name", ["clusters", "checkerboard"])
def test_where_modes_are_ruled_out_rejection_alone_has_their_weights(name):
    """docs/calibrated.md, "What follows"."""
    rows = rows_of("calibration", "oracles", name)
    near = "Rejection"
    others = [row for label, row in rows.items() if not label.startswith((near, "rej", "truth"))]
    assert rows[near]["weight_error"] < 0.6 * min(row["weight_error"] for row in others)


def test_on_the_weather_no_method_is_compared_on_days_that_another_has_not():
    """docs/weather.md, "How the methods compare": days differ more than methods do."""
    for kind, part in variables.parts(records.read("baselines", "weather")):
        days = defaultdict(set)
        for row in part:
            days[row["label"]].add(row["reference"])
        assert len({frozenset(found) for found in days.values()}) == 1, kind


@pytest.mark.parametrize("variable", variables.UNITS)
def test_on_the_wind_only_ppr_and_the_default_are_feasible_and_no_crps_is_below_pprs(variable):
    """docs/weather.md, "What follows"."""
    rows = rows_of("baselines", "weather", f"wind/{variable}")
    mine = {"PPR", "PPR, T = 128, 8 iterations", "PPR, fast"}
    feasible = {label for label, row in rows.items() if row["feasible"] == 1}
    assert feasible == {*mine, "default"}
    del rows[PRIOR]
    assert min(rows, key=lambda label: rows[label]["crps"]) in mine


def test_of_the_sine_half_of_the_members_of_one_day_are_feasible_and_none_of_the_other():
    """docs/weather.md, "What follows"."""
    many = "PPR, T = 512, 2 iterations"
    rows = [row for row in records.read("baselines", "weather") if row["observation"] == "sine"]
    assert {r["reference"]: r["feasible"] for r in rows if r["label"] == many} == {0: 0.5, 1: 0}
    assert {r["feasible"] for r in rows if not r["label"].startswith(many)} == {0}
