"""Which pairs a search by L-BFGS keeps."""

import torch

from feasibly.minimizers import WarmLBFGS
from feasibly.minimizers.lbfgs import History, _State


def test_a_rejected_trial_leaves_no_pair():
    """Of two members with the same positive curvature, only one has descended."""
    x = torch.tensor([[1.0], [1.0]])
    history = History.empty(4, x)
    state = _State(x, f=torch.tensor([1.0, 1.0]), g=torch.tensor([[2.0], [2.0]]))
    state.direction = torch.tensor([[-1.0], [-1.0]])
    trial, f = torch.tensor([[0.5], [0.5]]), torch.tensor([0.25, 1.5])
    state.receive(trial, f, torch.tensor([[1.0], [1.0]]), True, history, torch.arange(2))
    assert history.count.tolist() == [1, 0]
    assert state.x.flatten().tolist() == [0.5, 1.0]
    assert state.length.tolist() == [1.0, 0.5]


def test_a_member_that_stops_keeps_the_same_pairs_whether_or_not_others_go_on():
    def residual(x):
        return torch.stack([x[:, 0] ** 3 - 0.2, x[:, 1] - x[:, 0]], dim=1), x

    x = torch.tensor([[0.6, 0.6], [3.0, -4.0]], dtype=torch.float64)
    minimize = WarmLBFGS(steps=8)
    both = minimize(residual, x, 1e-3, state=minimize.init(x)).state
    alone = minimize(residual, x[:1], 1e-3, state=minimize.init(x[:1])).state
    assert both.count[0] == alone.count[0]
    assert both.count[1] > both.count[0]
    torch.testing.assert_close(both.s[:, 0], alone.s[:, 0], rtol=0, atol=1e-12)
