"""What the kept results on the weather must show."""

import pytest

from experiments import records, tables, variables
from experiments.studies import baselines, tuning
from feasibly import priors

BEST = "PPR, T = 128, 8 iterations"
FEASIBLE = ("default", BEST, "fast")


@pytest.fixture(scope="module")
def rows():
    return records.read("baselines", "weather")


@pytest.mark.parametrize("study", ["baselines", "tuning"])
def test_results_are_those_of_the_shipped_prior(study):
    found = {row["weights"] for row in records.read(study, "weather")}
    assert found == {priors.digest("weather")}


def test_baselines_have_the_settings_that_the_sweep_found_best():
    assert tuning.winners(records.read("tuning", "weather")) == baselines.WEATHER_CHOICES


@pytest.mark.parametrize("kind", ["state", "wind"])
def test_every_member_of_ppr_is_feasible(rows, kind):
    mine = [row for row in rows if row["label"] in FEASIBLE and row["observation"] == kind]
    assert {"default", BEST} <= {row["label"] for row in mine}
    assert {row["feasible"] for row in mine} == {1.0}


def test_no_method_is_compared_on_days_that_another_has_not(rows):
    """Days differ more than methods do, and a page shows means over days."""
    for kind, part in variables.parts(rows):
        days = {}
        for row in part:
            days.setdefault(row["label"], set()).add(row["reference"])
        assert len(set(map(frozenset, days.values()))) == 1, kind
        assert len(tables.means(part)) == len(days)


@pytest.fixture(scope="module")
def methods(rows):
    """The rows of each table, by observation and variable."""
    return {
        kind: {row["label"]: row for row in tables.means(part)}
        for kind, part in variables.parts(rows)
    }


@pytest.mark.parametrize("variable", variables.UNITS)
def test_on_the_wind_no_method_has_a_lower_crps_than_ppr(methods, variable):
    table = methods[f"wind/{variable}"]
    assert min(table, key=lambda label: table[label]["crps"]) in FEASIBLE


@pytest.mark.parametrize("variable", variables.UNITS)
def test_of_the_state_ppr_reaches_the_floor_and_has_the_least_error(methods, variable):
    table = methods[f"state/{variable}"]
    for label in ("default", BEST):
        assert table[label]["excess"] <= 1e-6
        assert table[label]["excess"] <= min(row["excess"] for row in table.values()) + 1e-8
    others = [row["rmse"] for label, row in table.items() if label not in FEASIBLE]
    assert max(table[label]["rmse"] for label in ("default", BEST)) < min(others)


@pytest.mark.parametrize("variable", variables.UNITS)
@pytest.mark.xfail(
    strict=True, reason="DPS and MMPS, whose ensembles are wider, are 3 to 7 % lower"
)
def test_of_the_state_ppr_has_the_lowest_crps(methods, variable):
    table = methods[f"state/{variable}"]
    assert table["default"]["crps"] <= min(row["crps"] for row in table.values())


@pytest.mark.parametrize("variable", variables.UNITS)
@pytest.mark.xfail(strict=True, reason="0.54 to 0.64: a point estimate is renoised, not a draw")
def test_of_the_state_the_spread_of_ppr_is_its_skill(methods, variable):
    assert 0.9 <= methods[f"state/{variable}"]["default"]["ratio"] <= 1.1
