import math

import pytest
import torch

from feasibly.problems import ks_solver
from feasibly.problems.ks_solver import bdf1, initial_conditions, wavenumbers


def fields(n, seed=0, points=128):
    """Fields of a smooth, periodic kind: integer frequencies."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * math.pi * torch.arange(points, dtype=torch.float64) / points
    a, phi = torch.rand(2, n, 5, 1, generator=generator, dtype=torch.float64)
    m = torch.arange(1, 6)[:, None]
    return (a * torch.cos(m * x + 2 * math.pi * phi)).sum(dim=1)


def newton_residual(u, v, dt):
    """F of a step from u to v, in physical space."""
    k = wavenumbers(u.shape[-1])
    v_hat = torch.fft.rfft(v)
    terms = (k**4 - k**2) * v_hat + 0.5j * k * torch.fft.rfft(v * v)
    return v - u + dt * torch.fft.irfft(terms, n=u.shape[-1])


def test_a_step_solves_the_implicit_equation():
    u = initial_conditions(4, torch.Generator().manual_seed(0))
    frames = torch.cat((u[:, None], bdf1(u, 40)), dim=1)
    for before, after in zip(frames.unbind(1), frames[:, 1:].unbind(1), strict=False):
        F = newton_residual(before, after, 0.1)
        assert (F.norm(dim=1) <= 1e-8 * after.norm(dim=1)).all()


@pytest.mark.parametrize("m", [3, 5, 9, 20])
def test_a_small_mode_grows_at_its_linear_rate(m):
    points, steps, dt = 128, 10, 0.1
    k = wavenumbers(points)[m]
    x = 64 * torch.arange(points, dtype=torch.float64) / points
    u = 1e-8 * torch.cos(k * x)[None]
    rate = k**2 - k**4
    factor = (1 - dt * rate) ** -steps
    torch.testing.assert_close(bdf1(u, steps, dt)[:, -1], factor * u, rtol=1e-5, atol=1e-16)


def test_a_trajectory_alone_is_the_trajectory_in_a_batch():
    u = initial_conditions(5, torch.Generator().manual_seed(2))
    batch = bdf1(u, 25)
    for i in (0, 3):
        torch.testing.assert_close(bdf1(u[i : i + 1], 25)[0], batch[i], rtol=0, atol=1e-11)


def test_initial_conditions_are_the_papers():
    u = initial_conditions(2000, torch.Generator().manual_seed(0))
    assert u.shape == (2000, 512)
    # ten cosines of random amplitude: variance 10 E[a^2] / 2; the mean's standard error is 0.02
    assert u.square().mean().item() == pytest.approx(10 / 3 / 2, abs=0.1)
    jump = (u[:, 0] - u[:, -1]).square().mean().sqrt()
    assert jump > 1, "real frequencies do not fit the domain"
    assert u.mean(dim=1).std().item() == pytest.approx(0.14, abs=0.02)


def test_a_step_that_does_not_converge_is_named():
    u = initial_conditions(2, torch.Generator().manual_seed(0))
    with pytest.raises(ArithmeticError, match=r"step 0 for member 0 in 2 iterations.*dt=0\.1"):
        bdf1(u, 3, iterations=2)


def test_a_step_that_diverges_is_named():
    u = torch.stack((fields(1)[0], 100 * fields(1)[0]))
    with pytest.raises(ArithmeticError, match=r"step \d for member 1"):
        bdf1(u, 3)


@pytest.mark.slow
def test_a_block_is_determined_by_its_number_and_the_seed(monkeypatch):
    monkeypatch.setattr(ks_solver, "STEPS", 520)
    monkeypatch.setattr(ks_solver, "BLOCK", 2)
    # that it is the same again is in the test below
    a, next_one, other = (ks_solver.simulate(*key, size=64) for key in ((0, 0), (1, 0), (0, 1)))
    assert a.shape == (2, 64, 64)
    assert a.dtype == torch.float32
    assert not torch.equal(a, next_one)
    assert not torch.equal(a, other)


@pytest.mark.slow
def test_downsizing_takes_every_eighth_frame_and_point(monkeypatch):
    monkeypatch.setattr(ks_solver, "STEPS", 514)
    monkeypatch.setattr(ks_solver, "BLOCK", 1)
    coarse, fine = ks_solver.simulate(0, 0, size=64), ks_solver.simulate(0, 0, size=512)
    assert torch.equal(coarse, fine[:, ::8, ::8])
    start = initial_conditions(1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(fine[0], bdf1(start, 514)[0, 2:].float())


def test_sizes_must_divide_the_grid():
    with pytest.raises(ValueError, match=r"divide 512, got 100"):
        ks_solver.simulate(0, 0, size=100)


@pytest.mark.slow
def test_the_stationary_field_has_its_known_size_and_spectrum():
    u = ks_solver.simulate(0, seed=5, size=128).double()
    assert u.std().item() == pytest.approx(1.307, rel=0.03)
    energy = (torch.fft.rfft(u) / 128).abs().square().mean(dim=(0, 1))
    assert 5 <= energy[1:].argmax() + 1 <= 9
    assert energy[32] < 1e-5 * energy.max()
    assert energy[60] < 1e-12 * energy.max()
