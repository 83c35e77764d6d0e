import math

import pytest
import torch

from feasibly.constraints import Evolution, burgers, heat, kuramoto_sivashinsky, vorticity
from feasibly.problems.ks_solver import bdf1, initial_conditions

N = 16
H = 2 * math.pi / N
X = torch.arange(N, dtype=torch.float64) * H


def rows(F, u):
    """A right-hand side of one frame."""
    return F(u[None, None])[0, 0]


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
def test_the_residual_of_a_decaying_wave_is_known(theta):
    nu, k, dt, rate = 0.3, 2, 0.1, 0.7
    t = dt * torch.arange(4, dtype=torch.float64)[:, None]
    x = (torch.exp(-rate * t) * torch.cos(k * X))[None]
    g = math.exp(-rate * dt)
    factor = (g - 1) / dt + nu * k**2 * (theta * g + 1 - theta)
    constraint = Evolution(heat(nu, (H,)), dt, 1e-6, theta)
    expected = factor * x[0, :-1] / math.sqrt(3 * N)  # its square sum is a mean square
    torch.testing.assert_close(constraint.residual(x), expected.reshape(1, -1))


def test_crank_nicolsons_own_decay_is_feasible():
    nu, k, dt = 0.3, 2, 0.1
    g = (1 - nu * k**2 * dt / 2) / (1 + nu * k**2 * dt / 2)
    x = (g ** torch.arange(5, dtype=torch.float64)[:, None] * torch.cos(k * X))[None]
    assert Evolution(heat(nu, (H,)), dt, 1e-25).is_feasible(x).all()
    assert not Evolution(heat(nu, (H,)), dt, 1e-25, theta=1.0).is_feasible(x).any()


def test_heat_in_two_dimensions():
    u = torch.cos(X[:, None] + 2 * X)
    torch.testing.assert_close(rows(heat(0.1, (H, H)), u), -0.5 * u)


def test_burgers_of_a_sine():
    got = rows(burgers(0.1, H), torch.sin(X))
    torch.testing.assert_close(got, -0.1 * torch.sin(X) - torch.sin(2 * X) / 2)


def test_kuramoto_sivashinsky_of_a_sine():
    got = rows(kuramoto_sivashinsky(H), torch.sin(2 * X))
    torch.testing.assert_close(got, (4 - 16) * torch.sin(2 * X) - torch.sin(4 * X))


def test_differences_approach_the_spectral_right_hand_sides():
    n = 512
    h = 2 * math.pi / n
    u = torch.sin(torch.arange(n, dtype=torch.float64) * h)
    torch.testing.assert_close(
        rows(burgers(0.1, h, "periodic"), u), rows(burgers(0.1, h), u), rtol=0, atol=1e-4
    )
    torch.testing.assert_close(
        rows(kuramoto_sivashinsky(h, "periodic"), u),
        rows(kuramoto_sivashinsky(h), u),
        rtol=0,
        atol=1e-4,
    )


def test_the_trajectories_of_the_implicit_solver_are_feasible():
    u = initial_conditions(2, torch.Generator().manual_seed(0), points=128)
    x = bdf1(u, 12, dt=0.1)
    constraint = Evolution(kuramoto_sivashinsky(64.0 / 128), 0.1, tolerance=1e-12, theta=1.0)
    assert constraint.is_feasible(x).all()
    bumped = x.clone()
    bumped[:, 5, 7] += 1e-4
    assert not constraint.is_feasible(bumped).any()
    assert not Evolution(kuramoto_sivashinsky(0.5), 0.1, 1e-12, theta=0.5).is_feasible(x).any()


def test_a_taylor_green_vortex_only_decays():
    w = 2 * torch.cos(X[:, None]) * torch.cos(X)
    torch.testing.assert_close(rows(vorticity(0.1, (H, H)), w), -0.2 * w)


def test_two_waves_advect_each_other():
    x, y = X[:, None], X
    w = torch.cos(x) + torch.cos(2 * y)
    # psi = cos x + cos(2 y) / 4, so u = -sin(2 y) / 2 and v = sin x
    expected = 1.5 * torch.sin(x) * torch.sin(2 * y)
    torch.testing.assert_close(rows(vorticity(0.0, (H, H)), w), expected)
    forced = rows(vorticity(0.0, (H, H), forcing=expected), w)
    torch.testing.assert_close(forced, 2 * expected)


@pytest.mark.parametrize(("dt", "theta"), [(0.0, 0.5), (0.1, 1.5)], ids=["dt", "theta"])
def test_a_step_that_is_none_is_refused(dt, theta):
    with pytest.raises(ValueError, match="positive dt and theta"):
        Evolution(heat(1.0, (H,)), dt, 1e-6, theta)


def test_one_frame_does_not_evolve():
    with pytest.raises(ValueError, match="at least two frames"):
        Evolution(heat(1.0, (H,)), 0.1, 1e-6).residual(torch.zeros(2, 1, N))
