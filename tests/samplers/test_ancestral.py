"""The predictor: DDIM and DDPM."""

import math
from itertools import pairwise

import pytest
import torch

from feasibly import Ancestral
from feasibly.oracles import Gaussian
from feasibly.schedules import VE, LogLogit


@pytest.mark.parametrize("schedule", [LogLogit(1e-2, 1e2, 2.0), VE(1e-2, 1e2)], ids=repr)
def test_ddim_converges_with_order_one(schedule):
    """Against the flow's closed form on N(0, v): x is scaled by sqrt((v + s^2) / (v + t^2))."""
    v = 0.7
    prior = Gaussian(torch.zeros(1), torch.tensor([[v]]), schedule)
    ends = torch.tensor([1.0, 0.0], dtype=torch.float64)
    sigma_1, sigma_0 = schedule(ends)[1].tolist()
    exact = math.sqrt((v + sigma_0**2) / (v + sigma_1**2))
    steps = (64, 128, 256, 512)
    errors = []
    for T in steps:
        sampler = Ancestral(prior, steps=T, eta=0.0)
        x = torch.tensor([[100.0]], dtype=torch.float64)
        times = torch.linspace(1, 0, T + 1, dtype=torch.float64)
        for t, s in pairwise(times):
            x = sampler.step(x, t, s).x
        errors.append(abs(x.item() / 100 - exact))
    logs = torch.tensor([[math.log(T), math.log(e)] for T, e in zip(steps, errors, strict=True)])
    slope = (
        torch.linalg.lstsq(torch.stack((torch.ones(4), logs[:, 0]), dim=1), logs[:, 1:])
        .solution[1]
        .item()
    )
    assert slope == pytest.approx(-1, abs=0.1)


def test_ddpm_has_the_posterior_variance():
    """With x_0 known, x_s given x_t has variance s^2 (1 - s^2 / t^2), in VE (methods.md, 0.2)."""
    sampler = Ancestral(Gaussian(torch.zeros(1), torch.eye(1), VE()), eta=1.0)
    t, s = torch.tensor([0.7, 0.6], dtype=torch.float64)
    sigma_t, sigma_s = (sampler.denoiser.schedule(v)[1] for v in (t, s))
    x_t, x_0 = torch.full((2, 1), 3.0), torch.full((2, 1), 0.5)
    moves = [
        sampler.predict(x_t, x_0, t, s, lambda like, z=z: torch.full_like(like, z))
        for z in (0.0, 1.0)
    ]
    mean = x_0 + (x_t - x_0) * sigma_s**2 / sigma_t**2
    torch.testing.assert_close(moves[0].double(), mean.double())
    variance = (moves[1] - moves[0]).double() ** 2
    torch.testing.assert_close(
        variance,
        sigma_s**2 * (1 - sigma_s**2 / sigma_t**2) * 1.0 + torch.zeros(2, 1, dtype=torch.float64),
    )


def test_samples_have_the_law_of_the_data(gaussian):
    """Mean and covariance of 20,000 DDPM samples. Their standard error is 0.01; with five
    numbers at five standard errors, the false-alarm rate is 3e-6, plus a bias of 0.01."""
    x = Ancestral(gaussian, steps=64).sample(20_000, (2,)).samples.double()
    assert x.mean(dim=0).abs().max() < 0.05
    torch.testing.assert_close(
        x.T.cov(), torch.tensor([[1.0, 0.6], [0.6, 1.0]]).double(), rtol=0, atol=0.06
    )


def test_without_a_constraint_finite_members_are_feasible(gaussian):
    result = Ancestral(gaussian, steps=4).sample(3, (2,))
    assert result.feasible.all()
    assert result.tolerance == math.inf
    assert result.evaluations.forward == 5  # four steps and the denoised output
    assert math.isnan(result.trace[-1].median)
