import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.constraints import Histogram, Quantiles

check = settings(derandomize=True, deadline=None, max_examples=30)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
    every = y[torch.tensor(list(_permutations(4)))]
    best = (every - x.flatten()).square().sum(dim=1).min()
    torch.testing.assert_close((nearest - x).square().sum(), best)


def _permutations(n):
    from itertools import permutations

    return permutations(range(n))


@given(st.integers(0, 2**16), st.lists(st.floats(0, 1), min_size=1, max_size=5))
@check
def test_quantiles_are_torchs(seed, levels):
    x, q = normal(3, 7, seed=seed), double(sorted(levels))
    constraint = Quantiles(q, torch.zeros_like(q), tolerance=1e-9)
    torch.testing.assert_close(constraint.residual(x), torch.quantile(x, q, dim=1).T)


@pytest.mark.parametrize(
    ("levels", "y", "message"),
    [
        ([0.5, 1.5], [0.0, 1.0], "levels in"),
        ([0.5], [0.0, 1.0], "as many values"),
        ([0.5, 0.2], [0.0, 1.0], "must not decrease"),
    ],
    ids=["range", "count", "order"],
)
def test_contradictory_quantiles_are_refused(levels, y, message):
    with pytest.raises(ValueError, match=message):
        Quantiles(double(levels), double(y), 1e-6)


def test_a_histogram_of_another_size_is_refused():
    with pytest.raises(ValueError, match="a sample has 3 values, but y has 2"):
        Histogram(torch.zeros(2), 1e-6).residual(torch.zeros(1, 3))
