import pytest
import torch

import feasibly
from feasibly.errors import DenoiserError
from feasibly.schedules import VE, VP, Rectified, SubVP


def labelled(scales, factor):
    """Scales of a label that is a multiple of the process's time."""
    return lambda label: scales(label / factor)


def sub_vp(paths):
    def scales(s):
        alpha, sigma, d_alpha, _ = paths["vp"](s)
        return alpha, sigma**2, d_alpha, -2 * alpha * d_alpha

    return scales


@pytest.mark.parametrize("output", ["eps", "score"])
def test_vp_and_sub_vp_are_told_999_s_and_ve_sigma(output, exact, paths, gap):
    vp, sub = labelled(paths["vp"], 999), labelled(sub_vp(paths), 999)
    for schedule, scales in ((VP(), vp), (SubVP(), sub), (VE(0.01, 50.0), paths["unit"])):
        net = exact(output, scales)
        assert gap(feasibly.wrap(net, "score_sde", schedule, output=output)) < 1e-8


def test_what_a_network_predicts_follows_from_its_process():
    net = torch.nn.Identity()
    assert "noise" in feasibly.wrap(net, "score_sde", VP()).predicts
    assert "noise" in feasibly.wrap(net, "score_sde", SubVP()).predicts
    assert "score" in feasibly.wrap(net, "score_sde", VE()).predicts


def test_a_score_function_is_told_the_process_time(exact, paths, gap):
    assert gap(feasibly.wrap(exact("score", sub_vp(paths)), "score", SubVP())) < 1e-8


@pytest.mark.parametrize("schedule", [None, Rectified()])
def test_other_processes_are_refused(schedule):
    with pytest.raises(DenoiserError, match="SubVP"):
        feasibly.wrap(torch.nn.Identity(), "score_sde", schedule)


def test_other_outputs_are_refused():
    with pytest.raises(DenoiserError, match="'eps' or 'score', got 'v'"):
        feasibly.wrap(torch.nn.Identity(), "score_sde", VP(), output="v")
