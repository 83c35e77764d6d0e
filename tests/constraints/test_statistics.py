"""Histograms, quantiles and spectra."""

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.constraints import Histogram, Quantiles, Spectrum, energy_spectrum
from tests.tensors import double, normal

check = settings(derandomize=True, deadline=None, max_examples=30)


def test_a_histogram_ignores_the_order():
    constraint = Histogram(double([3.0, 1.0, 2.0]), tolerance=1e-9)
    assert constraint.residual(double([[2.0, 3.5, 1.0]])).tolist() == [[0.0, 0.0, 0.5]]
    assert constraint.projection(double([[5.0, -1.0, 0.0]])).tolist() == [[3.0, 1.0, 2.0]]


@given(st.integers(0, 2**16))
@check
def test_the_projection_on_a_histogram_is_the_nearest_arrangement(seed):
    y = normal(4, seed=seed)
    x = normal(1, 2, 2, seed=seed + 1)
    nearest = Histogram(y, tolerance=1e-9).projection(x)
    every = y[torch.tensor(list(permutations(range(4))))]
    best = (every - x.flatten()).square().sum(dim=1).min()
    torch.testing.assert_close((nearest - x).square().sum(), best)


@given(st.integers(0, 2**16), st.lists(st.floats(0, 1), min_size=1, max_size=5))
@check
def test_quantiles_are_torchs(seed, levels):
    x, q = normal(3, 7, seed=seed), double(sorted(levels))
    constraint = Quantiles(q, torch.zeros_like(q), tolerance=1e-9)
    torch.testing.assert_close(constraint.residual(x), torch.quantile(x, q, dim=1).T)


@pytest.mark.parametrize(("shape", "dims"), [((8,), 1), ((6, 7), 2), ((4, 6, 5), 3)], ids=str)
def test_energies_sum_to_half_the_mean_square(shape, dims):
    u = normal(3, *shape)
    total = energy_spectrum(u, dims).sum(dim=-1)
    torch.testing.assert_close(total, u.flatten(start_dim=1).square().mean(dim=1) / 2)


def test_a_wave_is_in_the_shell_of_its_length():
    i, j = torch.arange(16)[:, None], torch.arange(16)
    u = 0.5 + 3 * torch.cos(2 * math.pi * (3 * i + 4 * j) / 16)
    energies = energy_spectrum(u[None].double(), 2)[0]
    expected = torch.zeros_like(energies)
    expected[0], expected[5] = 0.5**2 / 2, 3**2 / 4
    torch.testing.assert_close(energies, expected)


def test_a_residual_is_the_relative_error_of_an_amplitude():
    t = 2 * math.pi * torch.arange(16, dtype=torch.float64) / 16
    x = (1.1 * torch.cos(t) + 2 * torch.sin(3 * t))[None]
    constraint = Spectrum(torch.tensor([0.25, 1.0, 1.0]), 1, tolerance=1e-6)
    expected = torch.tensor([[0.1, -1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(constraint.residual(x), expected, rtol=0, atol=1e-9)


def test_the_projection_scales_shells_and_leaves_the_rest():
    energy = torch.tensor([0.5, 0.2])
    constraint = Spectrum(energy, 2, tolerance=1e-20)
    x = normal(2, 3, 6, 8)
    after = constraint.projection(x)
    got, before = energy_spectrum(after, 2), energy_spectrum(x, 2)
    torch.testing.assert_close(got[..., 1:3], energy.double().expand(2, 3, 2))
    torch.testing.assert_close(got[..., 3:], before[..., 3:])
    torch.testing.assert_close(after.mean(dim=(-2, -1)), x.mean(dim=(-2, -1)))
    # each shell is a sphere: the move is along the radius, as long as the radii differ
    distance = (after - x).square().mean(dim=(-2, -1)) / 2
    radii = (energy.double().sqrt() - before[..., 1:3].sqrt()).square().sum(dim=-1)
    torch.testing.assert_close(distance, radii)
