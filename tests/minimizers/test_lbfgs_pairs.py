"""Which pairs (s, y) L-BFGS keeps: those of accepted iterates, and of no rejected trial."""

import math

import pytest
import torch

from feasibly.minimizers import WarmLBFGS

SLOPE = 3.0


class Recorded:
    """The residual atan(3 x), from afar, where a Newton step overshoots; notes every point."""

    def __init__(self):
        self.points = []

    def __call__(self, x):
        self.points.append(x.detach().clone())
        return torch.atan(SLOPE * x), x


def value(x):
    return torch.atan(SLOPE * x) ** 2


def gradient(x):
    return 2 * torch.atan(SLOPE * x) * SLOPE / (1 + (SLOPE * x) ** 2)


def search(start, steps):
    """Searches from numbers, one a member, with an empty history; returns points and history."""
    residual, x = Recorded(), torch.tensor(start, dtype=torch.float64)[:, None]
    minimize = WarmLBFGS(steps=steps, max_step=None)
    found = minimize(residual, x, state=minimize.init(x))
    return [p[:, 0] for p in residual.points], found.state


def test_a_rejected_trial_leaves_no_pair():
    """The first trial from 2 is a Newton step to -15, where the objective is larger, although
    the curvature along it is positive. That from 0.1 descends."""
    (start, trial, _), history = search([2.0, 0.1], steps=2)
    assert (value(trial) > value(start)).tolist() == [True, False]
    s, y = trial - start, gradient(trial) - gradient(start)
    assert (s * y > 0).all()
    assert history.count.tolist() == [0, 1]
    assert history.rho[0, 0] == 0
    assert history.s[0, 1, 0].item() == pytest.approx(s[1].item())
    assert history.y[0, 1, 0].item() == pytest.approx(y[1].item())


def test_a_rejected_trial_is_shortened_along_the_same_direction():
    points, _ = search([2.0], steps=4)
    (start, *trials) = [p.item() for p in points]
    direction = trials[0] - start
    # Newton's, which is Polyak's for one residual
    assert direction == pytest.approx(-math.atan(6) * (1 + 36) / SLOPE)
    assert trials[1:3] == pytest.approx([start + direction / 2, start + direction / 4])


def test_pairs_are_the_differences_of_the_accepted_iterates():
    """Armijo's condition, tried here on the points that the search asked for."""
    points, history = search([2.0], steps=10)
    accepted, pairs = points[0], []
    for trial in points[1:-1]:  # after the last there is no gradient
        if value(trial) <= value(accepted) + 1e-4 * gradient(accepted) * (trial - accepted):
            pairs.append((trial - accepted, gradient(trial) - gradient(accepted)))
            accepted = trial
    assert 0 < len(pairs) < len(points) - 2, "some are rejected"
    assert history.count.item() == len(pairs)
    for k, (s, y) in enumerate(pairs):
        assert history.s[k, 0, 0].item() == pytest.approx(s.item())
        assert history.y[k, 0, 0].item() == pytest.approx(y.item())
        assert history.rho[k, 0].item() == pytest.approx(1 / (s * y).item())


def test_a_member_that_stops_keeps_the_same_pairs_whether_or_not_others_go_on():
    def residual(x):
        return torch.stack([x[:, 0] ** 3 - 0.2, x[:, 1] - x[:, 0]], dim=1), x

    x = torch.tensor([[0.6, 0.3], [3.0, -4.0]], dtype=torch.float64)
    minimize = WarmLBFGS(steps=8)
    both = minimize(residual, x, 1e-2, state=minimize.init(x)).state
    alone = minimize(residual, x[:1], 1e-2, state=minimize.init(x[:1])).state
    assert both.count[0] == alone.count[0]
    assert both.count[1] > both.count[0]
    torch.testing.assert_close(both.s[:, 0], alone.s[:, 0], rtol=0, atol=1e-12)
