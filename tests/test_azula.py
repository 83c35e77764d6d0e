"""azula's objects in our samplers, and ours in azula's. Skipped where azula is not installed."""

import pytest
import torch

import feasibly
from feasibly.constraints import Linear
from feasibly.network import Evaluations, counted
from feasibly.oracles import Gaussian
from feasibly.schedules import VP
from tests.helpers import on

noise = pytest.importorskip("azula.noise")
denoise = pytest.importorskip("azula.denoise")
sample = pytest.importorskip("azula.sample")

PLANE = Linear(torch.tensor([[1.0, -2.0]]), torch.tensor([0.3]), tolerance=1e-6)


def azula_gaussian(schedule):
    from azula.linalg.covariance import DiagonalCovariance

    return denoise.GaussianDenoiser(torch.zeros(2), DiagonalCovariance(torch.ones(2)), schedule)


def test_our_sampler_agrees_with_theirs():
    """DDIM, from the same noise."""
    denoiser = azula_gaussian(noise.VESchedule())
    x = 1e3 * torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    theirs = sample.DDIMSampler(denoiser, steps=32, silent=True)
    ours = on(feasibly.Ancestral(steps=32, eta=0.0), denoiser)
    for t, s in torch.linspace(1, 0, 33).unfold(0, 2, 1):
        expected = theirs.step(x, t, s)
        x = ours.step(x, t, s).x
        torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-4)


def test_their_sampler_takes_our_denoiser():
    denoiser = Gaussian(torch.zeros(2), torch.eye(2), VP())
    sampler = sample.DDIMSampler(denoiser, steps=64, silent=True)
    x = sampler(torch.randn(4096, 2, generator=torch.Generator().manual_seed(0)))
    # the standard error of a variance of 8192 numbers is 0.016
    assert abs(x.var().item() - 1) < 0.08


@pytest.mark.parametrize("schedule", [noise.VESchedule(), noise.VPSchedule()], ids=["VE", "VP"])
def test_dps_agrees_with_theirs_for_a_batch_of_one(schedule):
    """Whose norm is the batch's, so that batches differ."""
    dps = pytest.importorskip("azula.guidance.dps")
    denoiser = azula_gaussian(schedule)
    y, A = torch.tensor([0.3]), torch.tensor([[1.0, -2.0]])
    theirs = dps.DPSSampler(denoiser, y, lambda x: x @ A.T, zeta=0.05, steps=16, silent=True)
    ours = on(feasibly.samplers.DPS(steps=16, zeta=0.05, units="state"), denoiser, PLANE)
    x = schedule(torch.tensor(1.0))[1] * torch.randn(1, 2)
    for k, (t, s) in enumerate(torch.linspace(1, 0, 17).unfold(0, 2, 1)):
        torch.manual_seed(k)
        expected = theirs.step(x, t, s)
        torch.manual_seed(k)
        x = ours.step(x, t, s).x
        torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("solver", ["gmres", "cg"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_mmps_agrees_with_theirs(solver, iterations):
    """On five residuals, so that the solver does not finish; a nonlinear one, through their
    vjp for V J^T v and our combination of what the solver has asked for."""
    mmps = pytest.importorskip("azula.guidance.mmps")
    from azula.linalg.covariance import DiagonalCovariance, IsotropicCovariance

    generator = torch.Generator().manual_seed(0)
    variances = torch.tensor([0.5, 1.0, 2.0, 1.5, 0.8, 3.0, 0.3]).double()
    denoiser = denoise.GaussianDenoiser(
        torch.zeros(7).double(), DiagonalCovariance(variances), noise.VPSchedule()
    )
    W = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    y = torch.randn(5, generator=generator, dtype=torch.float64)
    seen = feasibly.Observation(lambda x: torch.tanh(x @ W.T), y, tolerance=1e-6)
    theirs = mmps.MMPSDenoiser(
        denoiser, y, seen.A, IsotropicCovariance(torch.tensor(1e-2)), solver, iterations
    )
    counts = Evaluations()
    options = {"sigma_y": 0.1, "solver": solver, "iterations": iterations, "rtol": 0.0}
    ours = on(feasibly.samplers.MMPS(**options), denoiser, seen)
    for level in (0.9, 0.5, 0.1):
        t = torch.tensor(level, dtype=torch.float64)
        x_t = torch.randn(6, 7, generator=generator, dtype=torch.float64)
        expected = theirs(x_t, t).mean
        with counted(counts):
            found = ours.estimate(x_t, t)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    # for each of three levels; theirs take iterations + 1
    assert (counts.forward, counts.backward) == (3, 3 * iterations)
