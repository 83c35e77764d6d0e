"""Distributions of torch that are made of denoisers, and denoisers that are made of them."""

import math

import pytest
import torch
from torch.distributions import (
    AffineTransform,
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)

import feasibly
from feasibly.adapters.distributions import Implicit, denoiser
from feasibly.errors import DenoiserError
from feasibly.schedules import VP, LogLogit


def test_samples_are_new_at_each_call_and_follow_torchs_seed(gaussian):
    made = Implicit(gaussian, (2,), method=feasibly.Ancestral(steps=8), dtype=torch.float64)
    torch.manual_seed(3)
    first, second = made.sample((4, 5)), made.sample((4, 5))
    assert (first.shape, first.dtype) == ((4, 5, 2), torch.float64)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    torch.testing.assert_close(made.sample((4, 5)), first, rtol=0, atol=0)
    assert made.sample().shape == (2,)
    assert (made.batch_shape, made.event_shape) == ((), (2,))


def test_the_support_is_what_the_constraint_allows(gaussian):
    """Given x_1 + x_2 = 2, x_1 is normal with mean 1 and variance 0.2. False-alarm rate of the
    five-sigma limits: below 1e-5."""
    total = feasibly.Linear(torch.ones(1, 2), [2.0], atol=1e-4)
    made = Implicit(gaussian, (2,), total)
    torch.manual_seed(0)
    x = made.sample((20, 20))
    assert made.support.check(x).shape == (20, 20)
    assert made.support.check(x).all()
    off = torch.tensor([[1.0, 1.0], [1.0, 1.1]])
    assert made.support.check(off).tolist() == [True, False]
    assert made.support.check(off[0]).shape == ()
    assert Implicit(gaussian, (2,)).support.check(off).tolist() == [True, True]
    assert (x[..., 0].mean() - 1).abs() < 5 * math.sqrt(0.2 / 400)
    assert (x[..., 0].std() / math.sqrt(0.2) - 1).abs() < 5 / math.sqrt(800)


def test_torch_composes_it_with_its_own_transforms(gaussian):
    base = Implicit(gaussian, (2,), method=feasibly.Ancestral(steps=8))
    mean, std = torch.tensor([10.0, -10.0]), torch.tensor([2.0, 0.5])
    made = TransformedDistribution(base, [AffineTransform(mean, std, event_dim=1)])
    torch.manual_seed(0)
    x = made.sample((3,))
    torch.manual_seed(0)
    torch.testing.assert_close(x, mean + std * base.sample((3,)))
    with pytest.raises(NotImplementedError, match="no density"):
        made.log_prob(x)


NORMAL = MultivariateNormal(torch.tensor([1.0, -2.0]), torch.tensor([[1.0, 0.6], [0.6, 2.0]]))
APART = Independent(Normal(torch.tensor([[2.0, 0.0], [-2.0, 1.0]]), torch.tensor([0.5, 1.5])), 1)


@pytest.mark.parametrize(
    "distribution",
    [
        NORMAL,
        Independent(Normal(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.3])), 1),
        MixtureSameFamily(Categorical(torch.tensor([0.2, 0.8])), APART),
    ],
    ids=["multivariate", "independent", "mixture"],
)
def test_the_denoiser_is_the_mean_under_torchs_own_density(distribution):
    """By weights of the likelihood on a grid of the distribution's own density."""
    made = denoiser(distribution, VP())
    axis = torch.linspace(-12, 12, 801, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    x_t, t = torch.tensor([[0.7, -0.4], [-1.0, 1.0]], dtype=torch.float64), torch.tensor(0.4)
    alpha, sigma = VP()(t)
    for x, found in zip(x_t, made(x_t, t).mean, strict=True):
        log_w = distribution.log_prob(grid) - (x - alpha * grid).square().sum(1) / (2 * sigma**2)
        expected = log_w.softmax(dim=0) @ grid
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_mistakes_are_explained(gaussian):
    with pytest.raises(ValueError, match="manual_seed"):
        Implicit(gaussian, (2,), seed=1)
    with pytest.raises(DenoiserError, match="MultivariateNormal"):
        denoiser(torch.distributions.Gamma(1.0, 1.0), LogLogit())
    with pytest.raises(DenoiserError, match="MultivariateNormal"):
        denoiser(NORMAL.expand([3]), LogLogit())
