"""What the kept results on KS must show: the sine of three frames, 64 x 64."""

import re
from pathlib import Path

import pytest

from experiments import comparison, records, tables
from experiments.studies import baselines, tuning
from feasibly import priors

CARD = (Path(priors.__file__).parent / "ks.md").read_text()
OTHERS = [label for label in baselines.on_ks.samplers if label not in ("default", "fast")]


@pytest.fixture(scope="module")
def rows():
    return [row for row in records.read("baselines", "ks") if row["observation"] == "sine-3"]


@pytest.fixture(scope="module")
def methods(rows):
    return {row["label"]: row for row in tables.means(rows)}


@pytest.mark.parametrize("study", ["baselines", "ablation", "projection-steps", "optimizers"])
def test_results_are_those_of_the_shipped_prior(study):
    assert {row["weights"] for row in records.read(study, "ks")} == {priors.digest("ks")}


def test_the_default_is_feasible_regular_and_within_the_paper_s_gradients(methods):
    row = methods["default"]
    assert row["settings"] >= 8
    assert row["feasible"] >= 0.99
    assert row["joint"] >= 0.99
    assert row["max_norm"] <= 1.2
    median = re.search(r"residual of the equation, median \| ([\d.]+)", CARD)
    assert row["residual_feasible"] <= 1.5 * float(median[1])
    assert row["backward"] <= 1024
    assert row["overhead"] <= 0.05


def test_fast_keeps_what_the_default_has(methods):
    row = methods["fast"]
    assert row["feasible"] >= 0.97
    assert row["backward"] <= 512
    assert row["crps_ratio"] <= 1.1


@pytest.mark.xfail(strict=True, reason="1.14, with a standard error of 0.10 over 8 references")
def test_fast_is_as_near_to_the_reference_as_asked(methods):
    assert methods["fast"]["rmse_ratio"] <= 1.1


@pytest.mark.parametrize("label", OTHERS)
def test_the_default_leads_on_the_same_references(methods, label):
    assert methods[label]["rmse_ratio"] > 1
    assert methods[label]["crps_ratio"] > 1


@pytest.mark.parametrize("label", OTHERS)
def test_the_default_s_ensemble_mean_leads_whatever_the_number_of_members(rows, label):
    """The mean's square error has a share of the variance in it that falls with the members."""
    theirs = [row for row in rows if row["label"] == label]
    references = {row["reference"] for row in theirs}
    ours = [row for row in rows if row["default"] and row["reference"] in references]
    assert _bias(ours) < _bias(theirs)


def _bias(rows):
    means = [
        sum(row["mean_se"]) / len(row["mean_se"])
        - sum(row["variance"]) / len(row["variance"]) / row["members"]
        for row in rows
    ]
    return sum(means) / len(means)


def test_baselines_have_the_settings_that_the_sweep_found_best():
    assert tuning.winners(records.read("tuning", "ks")) == baselines.KS_CHOICES


@pytest.mark.parametrize("name", comparison.PAPER_KS)
def test_the_comparison_has_a_row_for_every_method_of_the_paper(name):
    lines = [line for line in comparison.render_ks().splitlines() if f"| {name}" in line]
    assert len(lines) == 1
    assert f"{comparison.PAPER_KS[name][1]:g} |" in lines[0]
