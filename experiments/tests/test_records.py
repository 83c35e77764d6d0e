"""The kept results: their form, that pages show them, and what pages say of them."""

import json
import re

import pytest

from experiments import records, tables
from experiments.benches import (
    Data2DBench,
    ExactBench,
    HeatBench,
    KSBench,
    OraclesBench,
    WeatherBench,
)
from experiments.pages import PAGES, ROOT, fill
from experiments.records import RESULTS, TRUTH
from experiments.studies import MEASUREMENTS, STUDIES, baselines, tuning
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


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*.jsonl")), ids=lambda p: p.stem)
def test_every_record_says_what_made_it(path):
    made = {f"{p}/{s.name}" for s, p in COMPARED} | {f"{m.problem}/{m.name}" for m in MEASUREMENTS}
    made |= {f"ensemble/{name}" for name in ("identical", "memory", "throughput", "executors")}
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
    for _, part in tables.parts(rows):
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
    assert drawn <= shown
    assert {p.suffix for p in RESULTS.rglob("*.*")} == {".jsonl", ".png"}
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
