import numpy as np
import torch

from feasibly import PPR, Equality, Linear
from feasibly.constraints import Decoded, FrameDecoder, LevelSet
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled
from tests.tensors import normal

A, Y = torch.tensor([[1.0, 2.0, -1.0]]).double(), torch.tensor([0.5]).double()
LINEAR = Linear(A, Y, tolerance=0.3)


def decode(z):
    """Two latents to three values, by no linear map."""
    return torch.stack((torch.sin(z[:, 0]), z[:, 1] ** 2, z[:, 0] * z[:, 1]), dim=1)


def test_residual_violation_and_feasibility_are_those_of_the_decoded_sample():
    z = normal(200, 2)
    constraint, x = Decoded(LINEAR, decode), decode(z)
    assert torch.equal(constraint.residual(z), LINEAR.residual(x))
    assert torch.equal(constraint.violation(z), LINEAR.violation(x))
    assert all(
        torch.equal(a, b) for a, b in zip(constraint.assess(z), LINEAR.assess(x), strict=True)
    )
    feasible = constraint.is_feasible(z)
    assert torch.equal(feasible, LINEAR.is_feasible(x))
    assert 0 < feasible.sum() < 200  # else it would say nothing
    assert constraint.tolerance == LINEAR.tolerance


def test_a_violation_of_its_own_passes_through():
    level = LevelSet(lambda x: x[:, 0] - x[:, 1], tolerance=0.2)
    z = normal(50, 2)
    constraint, f = Decoded(level, decode), torch.sin(z[:, 0]) - z[:, 1] ** 2
    torch.testing.assert_close(constraint.violation(z), 1 - torch.exp(-(f**2)))
    assert torch.equal(constraint.is_feasible(z), 1 - torch.exp(-(f**2)) <= 0.2)
    torch.testing.assert_close(constraint.residual(z), f[:, None])


class Verdict(Equality):
    """A constraint whose feasibility is not its violation's."""

    def assess(self, x):
        return self.violation(x), x[:, 0] > 0


def test_an_assessment_of_its_own_passes_through():
    constraint = Decoded(Verdict(lambda x: x[:, 0], tolerance=1.0), decode)
    z = torch.tensor([[0.3, 0.0], [-0.3, 0.0]]).double()
    assert constraint.is_feasible(z).tolist() == [True, False]


def test_the_residual_is_differentiated_through_the_decoder():
    z = normal(5, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(Decoded(LINEAR, decode).residual(z).sum(), z)
    a, b = z.detach().T
    expected = torch.stack((a.cos() - b, 4 * b - a), dim=1)
    torch.testing.assert_close(gradient, expected)


def test_an_assessment_keeps_no_graph():
    violation, _ = Decoded(LINEAR, decode).assess(normal(3, 2).requires_grad_())
    assert not violation.requires_grad


def test_latents_of_a_model_are_sampled_so_that_what_they_decode_to_is_feasible():
    constraint = Decoded(Linear(A, Y, tolerance=1e-6), decode)
    prior = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
    result = sampled(on(PPR(steps=16), prior, constraint), 16, (2,), dtype=torch.float64)
    assert result.feasible.all()
    x = decode(result.samples)
    assert ((x @ A.T - Y).square().sum(dim=1) <= 1e-6).all()


def grow(z):
    """Frames of two latents to frames of three channels and two points."""
    return torch.stack((decode(z), decode(z).cos()), dim=-1)


def test_chosen_frames_and_channels_are_decoded():
    z = normal(4, 5, 2)
    frames = FrameDecoder(grow, (0, 3, -1), channels=(2, 0))
    expected = torch.stack([grow(z[:, i])[:, [2, 0]] for i in (0, 3, 4)], dim=1)
    assert torch.equal(frames(z), expected)
    assert torch.equal(FrameDecoder(grow, (1,))(z)[:, 0], grow(z[:, 1]))


def test_frames_are_decoded_one_at_a_time_and_once_more_for_the_gradient():
    z, shapes = normal(4, 5, 2).requires_grad_(), []

    def watched(part):
        shapes.append(tuple(part.shape))
        return grow(part)

    x = FrameDecoder(watched, (0, 3))(z)
    assert shapes == [(4, 2)] * 2
    (g,) = torch.autograd.grad(x.square().sum(), z)
    assert shapes == [(4, 2)] * 4, "the activations are not kept"
    plain = torch.stack((grow(z[:, 0]), grow(z[:, 3])), dim=1)
    torch.testing.assert_close(g, torch.autograd.grad(plain.square().sum(), z)[0])
    assert (g[:, [1, 2, 4]] == 0).all()


def test_without_recomputation_the_gradient_is_the_same_and_frames_are_decoded_once():
    calls, gradients = [], []

    def watched(z):
        calls.append(len(z))
        return grow(z)

    for recompute in (True, False):
        calls.clear()
        z = normal(4, 5, 2).requires_grad_()
        x = FrameDecoder(watched, (0, 3), recompute=recompute)(z)
        gradients.append(torch.autograd.grad(x.square().sum(), z)[0])
        assert len(calls) == (4 if recompute else 2)
    assert torch.equal(*gradients)


def test_frames_and_channels_may_be_arrays():
    z = normal(4, 5, 2)
    found = FrameDecoder(grow, np.array([0, 3]), channels=torch.tensor([2, 0]))(z)
    assert torch.equal(found, FrameDecoder(grow, (0, 3), channels=(2, 0))(z))
