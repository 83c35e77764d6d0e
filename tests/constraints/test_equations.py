"""Differential equations, and the operators that they are made of."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.constraints import (
    DivergenceFree,
    Evolution,
    burgers,
    heat,
    kuramoto_sivashinsky,
    vorticity,
)
from feasibly.constraints.operators import derivative, divergence, laplacian
from feasibly.problems.ks_solver import bdf1, initial_conditions
from tests.tensors import normal

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


GRIDS = {2: (6, 9), 3: (6, 5, 8)}
SPACINGS = {2: (0.3, 0.5), 3: (0.3, 0.5, 0.2)}


def wave(d):
    """cos(k . r) on the grid, with its wave vector."""
    n, h = GRIDS[d], SPACINGS[d]
    sides = list(zip(n, h, strict=True))
    k = torch.tensor([2 * math.pi / (n_i * h_i) for n_i, h_i in sides], dtype=torch.float64)
    axes = [torch.arange(n_i, dtype=torch.float64) * h_i for n_i, h_i in sides]
    r = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    return torch.einsum("i,i...->...", k, r), k


@pytest.mark.parametrize("d", [2, 3])
def test_a_wave_along_its_vector_diverges_and_one_across_does_not(d):
    phase, k = wave(d)
    constraint = DivergenceFree(SPACINGS[d], tolerance=1e-20)
    shape = (d, *(1,) * d)
    along = k.reshape(shape) * phase.cos()
    # div = -|k|^2 sin(phase), of which the mean square is half of |k|^4
    torch.testing.assert_close(constraint.violation(along[None]), k.norm()[None] ** 4 / 2)
    across = torch.zeros(d).double()
    across[0], across[1] = k[1], -k[0]
    assert constraint.is_feasible((across.reshape(shape) * phase.cos())[None]).all()


@pytest.mark.parametrize("scheme", ["spectral", "periodic"])
@pytest.mark.parametrize("d", [2, 3])
def test_the_leray_projection_keeps_what_is_free_and_drops_what_is_a_gradient(d, scheme):
    constraint = DivergenceFree(SPACINGS[d], tolerance=1e-20, scheme=scheme)
    u = normal(4, 2, d, *GRIDS[d])  # two fields a sample
    free = constraint.projection(u)
    assert constraint.is_feasible(free).all()
    assert not constraint.is_feasible(u).any()
    torch.testing.assert_close(constraint.projection(free), free)
    # orthogonal, so the nearest
    other = constraint.projection(normal(4, 2, d, *GRIDS[d], seed=1))
    dot = ((u - free) * other).flatten(start_dim=1).sum(dim=1)
    torch.testing.assert_close(dot, torch.zeros(4).double(), rtol=0, atol=1e-10)
    mean = tuple(range(-d, 0))
    torch.testing.assert_close(free.mean(dim=mean), u.mean(dim=mean))


def test_without_periods_a_rotation_is_free():
    x, y = torch.meshgrid(torch.arange(5) * 0.3, torch.arange(6) * 0.5, indexing="ij")
    constraint = DivergenceFree(SPACINGS[2], tolerance=1e-20, scheme="open")
    assert constraint.is_feasible(torch.stack((-y, x))[None].double()).all()
    torch.testing.assert_close(
        constraint.violation(torch.stack((x, y))[None].double()), torch.tensor([4.0]).double()
    )


check = settings(derandomize=True, deadline=None, max_examples=20)
L = 3.0


def grid(n, closed=True):
    x = torch.arange(n, dtype=torch.float64)
    return x * L / n if closed else x * L / (n - 1)


@given(st.integers(9, 24), st.integers(0, 4), st.integers(1, 5), st.floats(-3, 3))
@check
def test_spectral_derivatives_of_resolved_waves_are_exact(n, waves, order, phase):
    k = 2 * math.pi * waves / L
    u = torch.cos(k * grid(n) + phase)
    # each derivative turns the phase by a quarter
    expected = k**order * torch.cos(k * grid(n) + phase + order * math.pi / 2)
    got = derivative(u[None], -1, L / n, order)
    highest = math.pi * n / L  # multiplies the rounding of the transform
    torch.testing.assert_close(got, expected[None], rtol=0, atol=1e-14 * highest**order)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("scheme", ["periodic", "open"])
def test_differences_are_of_second_order(scheme, order):
    errors = []
    for n in (32, 64):
        x = grid(n, scheme == "periodic")
        k, h = 2 * math.pi / L, float(x[1])
        expected = k**order * torch.cos(k * x + order * math.pi / 2)
        got = derivative(torch.cos(k * x), 0, h, order, scheme)
        errors.append((got - expected).abs().max().item())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("order", [1, 2])
def test_open_differences_are_exact_on_parabolas_at_the_ends_too(order):
    x = grid(6, closed=False)
    u = torch.stack((2 * x**2 - x, 5 - x**2), dim=1)  # the axis is the first
    slope = torch.stack((4 * x - 1, -2 * x), dim=1)
    expected = slope if order == 1 else torch.tensor([4.0, -2.0]).double().expand(6, 2)
    torch.testing.assert_close(derivative(u, 0, float(x[1]), order, "open"), expected)


def test_higher_differences_are_composed():
    x = grid(200)
    k = 2 * math.pi / L
    got = derivative(torch.sin(k * x), 0, L / 200, 3, "periodic")
    torch.testing.assert_close(got, -(k**3) * torch.cos(k * x), rtol=0, atol=1e-3 * k**3)


def test_axes_have_their_own_spacings():
    x, y = grid(8)[:, None], 2 * grid(10)
    k = 2 * math.pi / L
    u = torch.sin(k * x) * torch.cos(k / 2 * y)
    spacing = (L / 8, 2 * L / 10)
    torch.testing.assert_close(laplacian(u[None], spacing)[0], -(k**2 + k**2 / 4) * u)
    v = torch.stack((torch.sin(k * x) + 0 * y, torch.sin(k / 2 * y) + 0 * x))
    expected = k * torch.cos(k * x) + k / 2 * torch.cos(k / 2 * y)
    torch.testing.assert_close(divergence(v[None], spacing)[0], expected)
