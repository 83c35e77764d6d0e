import math
from itertools import pairwise

import pytest
import torch

from feasibly.minimizers import SGD, Adam, Fromage, GaussNewton, Muon, Polyak
from tests.tensors import double, normal


class Recorder:
    """A residual that remembers the iterates at which it was evaluated."""

    def __init__(self, residual):
        self.residual, self.iterates = residual, []

    def __call__(self, x):
        self.iterates.append(x.detach().clone())
        return self.residual(x), x


def path(minimize, residual, x):
    recorder = Recorder(residual)
    minimize(recorder, x)
    return recorder.iterates


def waves(x):
    return torch.sin(x.flatten(start_dim=1)).cumsum(dim=1) - 0.7


def gradient(residual, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(residual(x).square().sum(), x)[0]


def test_polyak_is_gauss_newton_on_one_residual():
    def residual(x):
        return (x[:, 0] ** 2 + x[:, 0] * x[:, 1] + 2 * x[:, 1] ** 2 - 1)[:, None]

    newton = GaussNewton(steps=5, max_distance=None, damping=0.0)
    x = normal(6, 2)
    for one, other in zip(
        path(Polyak(steps=5), residual, x), path(newton, residual, x), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_polyak_solves_a_round_quadratic_in_one_step():
    # |x|^2 is a quadratic whose gradient points at its zero, so the step is exact
    minimum = Polyak(steps=1)(lambda x: (3 * x, x), normal(4, 5))
    torch.testing.assert_close(minimum.x, torch.zeros(4, 5).double(), rtol=0, atol=1e-14)


def test_gradient_descent_on_a_quadratic_is_a_geometric_sequence():
    rate, scales, x = 0.6, double([0.5, 1.0, 1.5]), normal(4, 3)
    iterates = path(SGD(steps=6, lr=rate), lambda x: scales * x, x)
    for k, iterate in enumerate(iterates):
        torch.testing.assert_close(iterate, (1 - 2 * rate * scales**2) ** k * x)


def test_adam_is_torch_adam_for_each_sample():
    x = normal(5, 3, 4)
    iterates = path(Adam(steps=12, lr=0.05, beta_1=0.8, beta_2=0.99), waves, x)

    expected = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([expected], lr=0.05, betas=(0.8, 0.99), eps=1e-8)
    for iterate in iterates:
        torch.testing.assert_close(iterate, expected.detach(), rtol=1e-9, atol=1e-9)
        optimizer.zero_grad()
        waves(expected).square().sum().backward()
        optimizer.step()


def test_fromage_follows_its_formula():
    rate, x = 0.1, normal(4, 3, 4)
    iterates = path(Fromage(steps=4, lr=rate), waves, x)
    for before, after in pairwise(iterates):
        for i in range(4):
            g = gradient(waves, before[i : i + 1])[0]
            moved = before[i] - rate * before[i].norm() * g / g.norm()
            torch.testing.assert_close(after[i], moved / math.sqrt(1 + rate**2))


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)], ids=str)
def test_muon_replaces_singular_values_by_about_one(shape):
    m, n = shape
    rank = min(m, n)
    U = torch.linalg.qr(normal(8, m, rank, seed=1)).Q
    V = torch.linalg.qr(normal(8, n, rank, seed=2)).Q
    # of very different size; the iteration lifts all that are above about 1 % of the norm
    values = torch.logspace(0, -2, rank, dtype=torch.float64)
    G = (U * values) @ V.mT

    x = torch.zeros(8, m, n).double()
    # |x - target|^2 has the gradient - 2 target at zero
    first = path(Muon(steps=1, lr=1.0), lambda x: (x + G / 2).flatten(start_dim=1), x)[1]
    step = -first
    singular = torch.linalg.svdvals(step)
    assert singular.min() >= 0.6
    assert singular.max() <= 1.3

    # and keeps the singular vectors
    rotated = U.mT @ step @ V
    off = rotated - torch.diag_embed(rotated.diagonal(dim1=1, dim2=2))
    assert off.abs().max() < 1e-12
    torch.testing.assert_close(U @ rotated @ V.mT, step, rtol=0, atol=1e-12)


def test_muon_normalises_the_step_of_a_sample_of_one_axis():
    x = 5 * normal(6, 7)
    step = x - path(Muon(steps=1, lr=0.1), waves, x)[1]
    g = gradient(waves, x)
    lengths = step.norm(dim=1)
    cosine = (step * g).sum(dim=1) / (lengths * g.norm(dim=1))
    torch.testing.assert_close(cosine, torch.ones(6).double(), rtol=1e-12, atol=0)
    # one singular value, so that all samples have the same length of about one
    torch.testing.assert_close(lengths, lengths[:1].expand(6), rtol=1e-9, atol=0)
    assert 0.06 <= lengths[0] <= 0.13


def test_muon_remembers_earlier_gradients():
    # For samples of one axis a step is along g + beta m, with m = beta m + g.
    x, beta = normal(3, 5), 0.9
    iterates = path(Muon(steps=4, lr=0.1, beta=beta), waves, x)
    m = torch.zeros_like(x)
    for before, after in pairwise(iterates):
        g = gradient(waves, before)
        m = beta * m + g
        direction, step = g + beta * m, before - after
        cosine = (direction * step).sum(dim=1) / (direction.norm(dim=1) * step.norm(dim=1))
        torch.testing.assert_close(cosine, torch.ones(3).double(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "minimize", [Polyak(), SGD(), Adam(), Fromage(), Muon()], ids=lambda m: type(m).__name__
)
def test_a_vanishing_gradient_above_the_threshold_leaves_a_finite_member(minimize):
    # a saddle point of the value, where 0 / 0 looms
    minimum = minimize(lambda x: (x**2 + 1, x), torch.zeros(2, 3).double())
    assert minimum.x.isfinite().all()
    torch.testing.assert_close(minimum.value, double([3.0, 3.0]))
