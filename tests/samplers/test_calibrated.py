import torch

from feasibly import Equality, Linear, plan, sample
from feasibly.oracles import Empirical, Gaussian
from feasibly.schedules import EDM, Flow


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
    x = torch.randn(200, 8, 1, generator=generator).expand(200, 8, 8).clone()
    x[:, -1] *= 0.005
    law = Equality(lambda u: 64 * u.diff(dim=2).diff(dim=2).flatten(1), atol=1e-3)
    kernel = plan(Empirical(x, Flow()), law, (8, 8)).kernels[0]
    assert kernel.products == torch.inf
    assert kernel.top > x.std()
