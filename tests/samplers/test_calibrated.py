import pytest
import torch

from feasibly import Decoded, Equality, Linear, plan, sample
from feasibly.linalg import least_squares
from feasibly.oracles import Empirical, Gaussian
from feasibly.samplers.moments import toward
from feasibly.schedules import EDM, Flow


@pytest.mark.slow
def test_the_default_has_the_variance_of_normal_data_in_every_free_direction():
    """A field with covariance exp(-d / 4) on 10 x 10 points, of which every fourth is observed.
    In whitened free directions the mean square is 1, with a standard error of 0.005; the chain of
    unconditional steps is allowed 0.02 more than four of these (false-alarm rate below 1e-4)."""
    side = torch.arange(10.0)
    places = torch.cartesian_prod(side, side)
    covariance = (-torch.cdist(places, places) / 4).exp()
    prior, A = Gaussian(torch.zeros(100), covariance, EDM()), torch.eye(100)[::4]
    law = Linear(A, torch.zeros(len(A)), atol=1e-3)
    result = sample(prior, law, 1024, (100,), seed=1)
    gain = covariance @ A.T @ torch.linalg.inv(A @ covariance @ A.T)
    values, basis = torch.linalg.eigh((covariance - gain @ A @ covariance).double())
    free = torch.arange(100) >= len(A)  # in the order of the variances
    whitened = (result.samples.double() @ basis)[:, free] / values[free].sqrt()
    assert abs(whitened.square().mean().item() - 1) < 0.04
    expected = plan(prior, law, (100,)).kernels[0].expected(len(A))[0]
    assert abs(result.evaluations.member_forward / 1024 / expected - 1) < 0.2


def test_a_nearly_constant_edge_does_not_hide_the_data_from_steps_with_derivatives():
    """The first step goes to a level above the data's standard deviation."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, 1, generator=generator).expand(200, 8, 16).clone()
    x[:, -1] *= 0.005
    law = Equality(lambda u: 64 * u.diff(dim=2).diff(dim=2).flatten(1), atol=1e-3)
    kernel = plan(Empirical(x, Flow()), law, (8, 16)).kernels[0]
    assert kernel.products == torch.inf
    assert kernel.top > x.std()


def solve(S, b, iterations, rtol, least):
    return least_squares(S, b, iterations, rtol, 1e-6)


def test_moves_of_single_precision_keep_the_digits_of_a_differential_equation():
    """With products by differences 3e-3 to 1e-2 of the residual are left."""
    points = torch.linspace(0, 1, 66).double()
    K = (-((points[:, None] - points) ** 2) / 0.02).exp() + 1e-4 * torch.eye(66)
    root = torch.linalg.cholesky(K)
    x = torch.randn(8, 66, generator=torch.Generator().manual_seed(0)).double() @ root.T
    x = x.float()

    def equation(u):
        return u[:, 1:-1] - 65**2 * u.diff(n=2) / 100

    def V(v):
        return (v.double() @ K).float()

    moved = toward(Equality(equation, 1e-4), x, V, 0.0, solve, 64, 1e-6)
    assert (equation(moved.x).norm(dim=1) < 1e-4 * equation(x).norm(dim=1)).all()


class Decoder(torch.autograd.Function):
    """A decoder that notes whether its derivative is to be differentiated."""

    twice = False

    @staticmethod
    def forward(ctx, z):
        return 2 * z

    @staticmethod
    def backward(ctx, p):
        Decoder.twice |= torch.is_grad_enabled()
        return 2 * p


def test_decoders_are_differentiated_once():
    """Second derivatives would keep the activations that checkpoints of a decoder give up."""
    law = Decoded(Equality(lambda x: x.sin(), 1e-4), Decoder.apply)
    moved = toward(law, torch.full((2, 40), 0.01), torch.clone, 0.0, solve, 4, 1e-6)
    assert law.is_feasible(moved.x).all()
    assert not Decoder.twice
