"""What the kept results of the study `calibration` must show."""

import pytest

from experiments import records, tables, variables
from experiments.benches.laws import LAWS
from experiments.run import TRUTH
from experiments.studies import calibration

MINE, NEAR = "CalibratedPPR", "CalibratedPPR, sigma_max = 0.1"
LINEAR = ("gaussian-1", "gaussian-6", "correlated-1", "correlated-6")


@pytest.fixture(scope="module")
def oracles():
    """The rows of each law's table."""
    rows = records.read("calibration", "oracles")
    return {
        law: {row["label"]: row for row in tables.means(part)}
        for law, part in variables.parts(rows)
    }


@pytest.fixture(scope="module")
def plane():
    return {row["label"]: row for row in tables.means(records.read("calibration", "data2d"))}


@pytest.fixture(scope="module")
def weather():
    rows = records.read("calibration", "weather")
    return {
        kind: {row["label"]: row for row in tables.means(part)}
        for kind, part in variables.parts(rows)
    }


@pytest.fixture(scope="module")
def ks():
    """The errors of draws on KS, and those of PPR on the same references."""
    mine = records.read("calibration", "ks")
    references = {row["reference"] for row in mine}
    ppr = [
        row
        for row in records.read("baselines", "ks")
        if row["label"] == "default" and row["observation"] == "sine-3"
        if row["reference"] in references
    ]
    assert len(ppr) == len(mine) >= 2
    return {row["label"]: row for row in tables.means(mine) + tables.means(ppr)}


def test_every_method_is_run_on_every_law_that_it_takes(oracles):
    assert oracles.keys() == LAWS.keys()
    for law, table in oracles.items():
        wanted = {
            label
            for label in calibration.on_oracles.samplers
            if law in calibration.on_oracles.only.get(label, LAWS)
        }
        assert table.keys() == wanted | {TRUTH}
        assert {row["settings"] for row in table.values()} == {3}


@pytest.mark.parametrize("law", LINEAR)
def test_on_gaussians_mean_and_spread_are_exact_at_twice_the_calls(oracles, law):
    """Issue 8 asks for 2 % of the spread and 1 % of the mean, against the exact moments, which
    `tests/oracles/test_calibrated.py` has; here, of samples, within the noise of the truth."""
    table = oracles[law]
    mine, truth = table[MINE], table[TRUTH]
    assert mine["feasible"] == 1
    assert mine["std"] == pytest.approx(1, abs=0.02)
    assert mine["mean_error"] < 1.5 * truth["mean_error"]
    assert mine["cov_error"] < 1.2 * truth["cov_error"]
    calls = [r["member_forward"] + r["member_backward"] for r in (mine, table["default"])]
    assert calls[0] <= 2 * calls[1]


@pytest.mark.parametrize("law", ["clusters", "checkerboard"])
def test_where_modes_are_ruled_out_rejection_has_their_masses(oracles, law):
    table = oracles[law]
    others = [label for label in table if not label.startswith((NEAR, "rejection", "truth"))]
    assert table[NEAR]["feasible"] == 1
    assert table[NEAR]["tv"] < 0.6 * min(table[label]["tv"] for label in others)


def test_on_the_ellipse_masses_are_as_good_as_any_for_a_third_of_the_calls(oracles):
    table = oracles["ellipse"]
    rivals = ("MMPS", "PPR, paper's setting")
    others = [label for label in table if not label.startswith((NEAR, "rejection", "truth"))]
    assert {min(others, key=lambda label: table[label]["tv"])} <= set(rivals)
    for rival in rivals:
        assert table[NEAR]["tv"] < 1.1 * table[rival]["tv"]
        mine, theirs = (
            table[label]["member_forward"] + table[label]["member_backward"]
            for label in (NEAR, rival)
        )
        assert 3 * mine < theirs


def test_the_ideal_kernel_has_the_empirical_law(oracles):
    table = oracles["empirical"]
    assert table["ideal kernel"]["sliced"] < 1.2 * table[TRUTH]["sliced"]
    assert table["ideal kernel"]["tv"] < 1.2 * table[TRUTH]["tv"]


def test_the_plane_has_every_setting(plane):
    assert plane.keys() == {*calibration.study.samplers, TRUTH}
    assert {row["settings"] for row in plane.values()} == {24}


def test_on_the_plane_masses_and_neighbours_are_near_the_truth_s(plane):
    """The bars of the issue; of the truth against itself, 0.50 and 0.035."""
    mine = plane[NEAR]
    assert mine["knn"] >= 0.485
    assert mine["tv"] <= 0.08
    assert mine["feasible"] >= 0.995
    calls = [r["member_forward"] + r["member_backward"] for r in (mine, plane["default"])]
    assert calls[0] <= 4 * calls[1]


@pytest.mark.xfail(strict=True, reason="of the truth's own samples 98.9 % are in C and S")
def test_on_the_plane_99_percent_are_feasible_and_on_the_support(plane):
    assert plane[NEAR]["joint"] >= 0.99


def test_more_calls_bring_it_nearer_and_ppr_not(plane):
    """The anytime curve."""
    few = [plane["CalibratedPPR, sigma_max = 0.1, T = 24, 8 tries"], plane[f"{NEAR}, T = 32"]]
    assert few[0]["knn"] < few[1]["knn"] <= plane[NEAR]["knn"] + 0.003
    assert few[0]["tv"] > few[1]["tv"] > plane[NEAR]["tv"]
    for row in few:
        assert row["knn"] > plane["PPR, T = 64"]["knn"] + 0.005
        assert row["member_forward"] + row["member_backward"] < 280
    assert plane["PPR, T = 64"]["knn"] < plane["PPR, T = 16"]["knn"] + 0.01


VARIABLES = list(variables.UNITS)


def test_every_member_on_the_weather_is_feasible(weather):
    for kind, table in weather.items():
        for label in table:
            if label.startswith(MINE):
                assert table[label]["feasible"] == 1, kind


@pytest.mark.parametrize("variable", VARIABLES)
def test_of_the_state_spread_is_closer_to_skill_and_crps_no_higher_than_ppr_s(weather, variable):
    table = weather[f"state/{variable}"]
    mine, ppr = table[f"{MINE}, T = 64"], table["default"]
    assert ppr["ratio"] < 0.65
    assert 0.8 < mine["ratio"] < 1.1
    assert mine["crps"] < (1.01 if variable == "geopotential" else 0.99) * ppr["crps"]
    assert mine["backward"] < ppr["backward"]


def test_of_the_state_the_geopotential_s_spread_is_its_skill(weather):
    assert 0.9 <= weather["state/geopotential"][f"{MINE}, T = 64"]["ratio"] <= 1.1


@pytest.mark.parametrize("variable", ["u", "v"])
@pytest.mark.xfail(strict=True, reason="0.83, 0.84; on days of the prior 1.0 to 1.1")
def test_of_the_state_the_winds_spread_is_their_skill(weather, variable):
    assert 0.9 <= weather[f"state/{variable}"][f"{MINE}, T = 64"]["ratio"] <= 1.1


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.xfail(strict=True, reason="the wind: PPR is not too narrow, and draws are farther")
def test_of_the_wind_crps_is_no_higher_than_ppr_s(weather, variable):
    table = weather[f"wind/{variable}"]
    assert table[f"{MINE}, T = 64"]["crps"] <= table["default"]["crps"]


def test_on_ks_members_of_draws_are_feasible(ks):
    assert ks[f"{MINE}, T = 64"]["feasible"] == 1


@pytest.mark.xfail(strict=True, reason="five times as high: they leave the data")
def test_on_ks_crps_is_no_higher_than_ppr_s(ks):
    assert ks[f"{MINE}, T = 64"]["crps"] <= ks["default"]["crps"]
