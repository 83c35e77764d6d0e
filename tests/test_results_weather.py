"""What the kept results on the weather must show."""

import pytest

from experiments import records, tables, variables
from experiments.studies import baselines, tuning
from feasibly import priors

FEASIBLE = ("default", "PPR, T = 128, 8 iterations", "fast")


@pytest.fixture(scope="module")
def rows():
    return records.read("baselines", "weather")


@pytest.mark.parametrize("study", ["baselines", "tuning"])
def test_results_are_those_of_the_shipped_prior(study):
    found = {row["weights"] for row in records.read(study, "weather")}
    assert found == {priors.digest("weather")}


def test_baselines_have_the_settings_that_the_sweep_found_best():
    assert tuning.winners(records.read("tuning", "weather")) == baselines.WEATHER_CHOICES


@pytest.mark.parametrize("kind", ["state", "wind", "sine"])
@pytest.mark.parametrize("label", FEASIBLE)
def test_every_member_of_ppr_is_feasible(rows, kind, label):
    mine = [row for row in rows if row["label"] == label and row["observation"] == kind]
    assert mine
    assert all(row["feasible"] == 1 for row in mine)


def test_no_method_is_compared_on_days_that_another_has_not(rows):
    """Days differ more than methods do, and a page shows means over days."""
    for kind, part in variables.parts(rows):
        days = {}
        for row in part:
            days.setdefault(row["label"], set()).add(row["reference"])
        assert len(set(map(frozenset, days.values()))) == 1, kind
        assert len(tables.means(part)) == len(days)
