"""What the kept results must show, on all 24 settings."""

import pytest

from experiments import records, tables

ROWS = records.read("minimizers", "data2d")
DEFAULT = [row for row in ROWS if row["default"]]
TABLE = {row["label"]: row for row in tables.means(ROWS)}


MAIN = ["default", "paper: L-BFGS 8, M = 2", "control: project once at the end"]


@pytest.mark.parametrize("label", [*MAIN, "truth against itself"])
def test_the_main_rows_have_every_setting(label):
    settings = {(p, k) for p in ("checkerboard", "banana") for k in range(12)}
    assert {(r["prior"], r["constraint"]) for r in ROWS if r["label"] == label} == settings


def test_default_is_feasible_within_its_budget():
    """On the mean of the settings; the worst one, with 99.1 %, is in the table."""
    assert TABLE["default"]["feasible"] >= 0.995
    assert TABLE["default"]["feasible_worst"] >= 0.99
    assert max(row["forward"] for row in DEFAULT) <= 384
    assert max(row["backward"] for row in DEFAULT) <= 256


def test_default_is_on_the_support_of_the_checkerboard():
    joint = [row["joint"] for row in DEFAULT if row["prior"] == "checkerboard"]
    assert sum(joint) / 12 >= 0.99


def test_default_is_close_to_the_truth():
    assert TABLE["default"]["knn"] >= 0.465
    assert TABLE["truth against itself"]["knn"] == pytest.approx(0.5, abs=0.01)
