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
    rows = [r for r in records.read("calibration", "ks") if r["observation"] == "sine-3"]
    return {row["label"]: row for row in tables.means(rows)}


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
