import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.constraints.operators import derivative, divergence, laplacian

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
