import pytest
import torch

import feasibly
from feasibly.constraints import Framewise, Scalar
from feasibly.minimizers import LBFGS
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit

torch.manual_seed(0)
WEIGHT = torch.randn(5, 3, dtype=torch.float64)
TRUTH = torch.randn(4, 5, dtype=torch.float64)


def decode(z):
    return torch.tanh(z @ WEIGHT.T.to(z))


def term(z, f):
    return (decode(z) - TRUTH[f].to(z)).square().sum(dim=1)


def whole(z):
    """The same for frames 1 and 3, in one expression."""
    return (decode(z[:, [1, 3]]) - TRUTH[[1, 3]].to(z)).square().sum(dim=(1, 2))


def states(members=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(members, 4, 3, dtype=torch.float64, generator=generator)


def test_the_gradient_in_two_stages_is_that_of_the_whole_graph():
    mix = torch.randn(3, 3, dtype=torch.float64)  # stands for a denoiser in front
    gradients = []
    for function in (whole, Framewise(term, [1, 3], 1e-3).violation):
        x = states().requires_grad_()
        c = function(torch.sin(x @ mix) + x.roll(1, dims=1))
        gradients.append((c.detach(), *torch.autograd.grad((c * torch.arange(1.0, 7.0)).sum(), x)))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-13)


def test_finite_differences_agree():
    constraint = Framewise(term, [1, 3], 1e-3)
    assert torch.autograd.gradcheck(constraint.residual, states(2).requires_grad_())


def test_every_term_is_evaluated_once_and_alone():
    calls = []

    def watched(z, f):
        calls.append((tuple(z.shape), f))
        return term(z, f)

    x = states(2).requires_grad_()
    c = Framewise(watched, [1, 3], 1e-3).violation(x.sin())
    torch.autograd.grad(c.sum(), x)
    assert calls == [((1, 3), 1), ((1, 3), 3)] * 2


def test_activations_of_one_term_live_at_a_time():
    alive, most = 0, 0

    class Saved:
        def __init__(self, tensor):
            nonlocal alive, most
            self.tensor = tensor
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    def watched(z, f):
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            return term(z, f)

    counts = []
    for frames in ([1], [0, 1, 2, 3]):
        most = 0
        Framewise(watched, frames, 1e-3).violation(states().requires_grad_())
        counts.append(most)
    assert counts[0] > 1
    assert counts[0] == counts[1]


def test_without_a_gradient_none_is_taken():
    with torch.no_grad():
        torch.testing.assert_close(
            Framewise(term, [1, 3], 1e-3).violation(states()), whole(states())
        )
    c = Framewise(term, [1, 3], 1e-3).violation(states())
    assert not c.requires_grad


def test_sampling_with_it_is_sampling_with_the_same_violation_in_one_piece():
    prior = Gaussian(torch.zeros(12), torch.eye(12), LogLogit())
    drawn = []
    for law in (
        Framewise(lambda z, f: (z[:, 0] ** 2 + z[:, 1] - 0.5) ** 2, [1, 3], 1e-6),
        Scalar(lambda x: ((x[:, [1, 3], 0] ** 2 + x[:, [1, 3], 1] - 0.5) ** 2).sum(dim=1), 1e-6),
    ):
        flat = feasibly.Decoded(law, lambda x: x.reshape(-1, 4, 3))
        sampler = feasibly.PPR(prior, flat, steps=16, minimize=LBFGS(16))
        drawn.append(sampler.sample(8, (12,), dtype=torch.float64))
    assert drawn[0].feasible.all()
    torch.testing.assert_close(drawn[0].samples, drawn[1].samples, rtol=1e-6, atol=1e-6)


def test_no_frames_are_refused():
    with pytest.raises(ValueError, match="at least one frame"):
        Framewise(term, [], 1e-3)
