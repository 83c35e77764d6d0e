import math

import numpy as np
import pytest
import torch

from experiments import peers
from experiments.studies.arm import about
from experiments.tasks import arm


def angles(n=5):
    generator = torch.Generator().manual_seed(0)
    return 6 * torch.rand(n, *arm.SHAPE, generator=generator, dtype=torch.float64) - 3


@pytest.fixture
def data():
    try:
        return arm.paths()
    except peers.Missing:
        pytest.skip("there is no checkout of the paths")


def test_the_straight_arm_has_the_heights_of_its_links_and_links_are_rigid():
    straight = arm.hand(torch.zeros(7, dtype=torch.float64))
    expected = torch.tensor([0.088, 0.0, 0.333 + 0.316 + 0.384 - 0.107]).double()
    torch.testing.assert_close(straight, expected, rtol=0, atol=1e-7)
    lengths = arm.skeleton(angles()).diff(dim=-2).norm(dim=-1)
    expected = torch.tensor([math.hypot(a, d) for _, a, d in arm.LINKS[1:]] + [arm.HAND])
    torch.testing.assert_close(lengths, expected.double().expand_as(lengths), rtol=0, atol=1e-7)


def test_the_first_joint_turns_the_arm_about_the_vertical():
    q, other = angles(), angles()
    other[..., 0] += 0.7
    x, y, z = arm.hand(q).unbind(-1)
    c, s = math.cos(0.7), math.sin(0.7)
    turned = torch.stack([c * x - s * y, s * x + c * y, z], dim=-1)
    torch.testing.assert_close(arm.hand(other), turned)


def test_angles_are_continued_and_the_shoulder_turned_without_moving_the_arm():
    start = angles()[:, :1]
    start[:, :, 1].abs_().mul_(torch.tensor([1, -1, 1, -1, 1.0])[:, None])
    q = start + torch.linspace(0, 4, arm.POINTS, dtype=torch.float64)[None, :, None]
    found = arm.continued(torch.cat([q.cos(), q.sin()], dim=2).numpy())
    assert (found[:, 0, 1] > 0).all()
    assert found.diff(dim=1).abs().max().item() == pytest.approx(4 / (arm.POINTS - 1))
    torch.testing.assert_close(arm.skeleton(found), arm.skeleton(q))
    torch.testing.assert_close(found[::2, 0], (start[::2, 0] + np.pi) % (2 * np.pi) - np.pi)


def test_a_hand_that_touches_an_obstacle_is_a_radius_from_its_center(monkeypatch):
    q = angles(1)
    monkeypatch.setattr(arm, "OBSTACLES", arm.hand(q[0, 3])[None] + torch.tensor([0, 0, 0.04]))
    assert arm.depth(q)[0, 3].item() >= arm.RADIUS - 0.04 - 1e-7
    assert arm.constraint("goal").parts[1].is_feasible(q).item() is False


def test_the_whole_task_is_on_both_ends_and_all_heights():
    q = angles(2)
    at, whole = arm.hand(q), arm.constraint(arm.WHOLE).parts[0]
    expected = (at[:, 0] - arm.START).square().sum(1) + (at[:, -1] - arm.GOAL).square().sum(1)
    expected += (at[:, 1:-1, 2] - arm.GOAL[2]).square().sum(1)
    torch.testing.assert_close(whole.violation(q), expected)
    assert whole.residual(q).shape == (2, 24)


def test_an_untrained_prior_is_the_best_linear_denoiser_of_its_data():
    torch.manual_seed(0)
    x = angles(400).float()
    model = arm.ArmPrior()
    model.fit(x)
    flat, s = x.flatten(1), 0.7
    cov = flat.T.cov(correction=0)
    expected = flat.mean(0) + (flat[:3] - flat.mean(0)) @ torch.linalg.solve(
        cov + s**2 * torch.eye(140), cov
    )
    found = model.mean(x[:3], torch.tensor(s)).flatten(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_paths_held_out_meet_the_task_and_score_as_data(data):
    _, held_out = data
    found = about(arm.WHOLE, held_out)
    assert found["clear"] == 1
    assert found["error"] < 1e-4
    assert found["sliced"] == found["ways"][4] == 0
    assert found["speed"] == found["jerk"] == found["nearest"] == pytest.approx(1)
