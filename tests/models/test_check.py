"""`diagnose`, which `check` prints, on wrapped networks."""

import pytest

import feasibly
from feasibly.checks.diagnosis import diagnose
from feasibly.denoisers.predictions import PREDICTIONS
from feasibly.schedules import VP, Flow

SCHEDULES = {"vp": VP(), "straight": Flow()}
KINDS = list(PREDICTIONS)
PATHS = [(kind, "vp") for kind in KINDS] + [("velocity", "straight")]
# each as one other; which one it is, is what the self-test is for
PAIRS = [("x0", "eps"), ("eps", "v"), ("v", "score"), ("score", "velocity"), ("velocity", "x0")]


@pytest.mark.parametrize(("kind", "path"), PATHS)
def test_a_network_of_any_parametrisation_is_fit_for_use(kind, path, exact, paths, data):
    adapter = feasibly.wrap(exact(kind, paths[path]), kind, SCHEDULES[path])
    found = diagnose(adapter, None, data.float())
    assert found.ok
    assert found.variance == pytest.approx(data.var().item(), rel=1e-5)


@pytest.mark.parametrize(("kind", "path"), [("x0", "vp"), ("eps", "vp"), ("velocity", "straight")])
@pytest.mark.parametrize("mistake", ["sign", "time"])
def test_a_wrong_sign_or_time_is_unfit(mistake, kind, path, exact, paths, data):
    net = exact(kind, paths[path])
    wrong = {"sign": lambda x, s: -net(x, s), "time": lambda x, s: net(x, 1 - s)}[mistake]
    adapter = feasibly.wrap(wrong, kind, SCHEDULES[path])
    assert not diagnose(adapter, None, data.float()).ok


@pytest.mark.parametrize(("kind", "wrapped"), PAIRS)
def test_a_wrong_prediction_type_is_unfit(kind, wrapped, exact, paths, data):
    adapter = feasibly.wrap(exact(kind, paths["vp"]), wrapped, VP())
    assert not diagnose(adapter, None, data.float()).ok


def test_values_in_another_range_are_unfit(exact, paths, data):
    adapter = feasibly.wrap(exact("eps", paths["vp"]), "eps", VP())
    assert not diagnose(adapter, None, (100 * data + 300).float()).ok
