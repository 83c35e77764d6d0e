"""azula's objects in our samplers, and ours in azula's. Skipped where azula is not installed."""

import pytest
import torch

import feasibly
from feasibly.constraints import Linear
from feasibly.oracles import Gaussian
from feasibly.schedules import VE, VP

noise = pytest.importorskip("azula.noise")
denoise = pytest.importorskip("azula.denoise")
sample = pytest.importorskip("azula.sample")

PLANE = Linear(torch.tensor([[1.0, -2.0]]), torch.tensor([0.3]), tolerance=1e-6)


def azula_gaussian(schedule):
    from azula.linalg.covariance import DiagonalCovariance

    return denoise.GaussianDenoiser(torch.zeros(2), DiagonalCovariance(torch.ones(2)), schedule)


def test_schedules_agree():
    t = torch.linspace(0, 1, 11)
    ours, theirs = VE(1e-3, 1e3)(t), noise.VESchedule(1e-3, 1e3)(t)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.expand_as(a), rtol=1e-4, atol=1e-6)


def test_our_sampler_takes_their_denoiser():
    result = feasibly.PPR(azula_gaussian(noise.VPSchedule()), PLANE).sample(16, (2,))
    assert result.feasible.all()


def test_our_sampler_agrees_with_theirs():
    """DDIM, from the same noise."""
    denoiser = azula_gaussian(noise.VESchedule())
    x = 1e3 * torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    theirs = sample.DDIMSampler(denoiser, steps=32, silent=True)
    ours = feasibly.Ancestral(denoiser, steps=32, eta=0.0)
    for t, s in torch.linspace(1, 0, 33).unfold(0, 2, 1):
        expected = theirs.step(x, t, s)
        x, _ = ours.step(x, t, s)
        torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-4)


def test_their_sampler_takes_our_denoiser():
    denoiser = Gaussian(torch.zeros(2), torch.eye(2), VP())
    sampler = sample.DDIMSampler(denoiser, steps=64, silent=True)
    x = sampler(torch.randn(4096, 2, generator=torch.Generator().manual_seed(0)))
    # the standard error of a variance of 8192 numbers is 0.016
    assert abs(x.var().item() - 1) < 0.08
