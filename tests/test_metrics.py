import math

import numpy as np
import pytest
import torch

from feasibly.metrics import is_outlying, knn_cross_edge_rate, sliced_wasserstein, weight_error


def normal(n, dim=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=generator, dtype=torch.float64)


def column(*values):
    return torch.tensor(values)[:, None]


@pytest.mark.parametrize(
    ("x", "y", "rate"),
    [
        (column(0.0, 10.0), column(1.0, 10.4), 1.0),  # two mixed pairs
        (column(0.0, 1.0), column(1.4, 5.0), 0.5),  # 0 -> 1, 1 -> 1.4*, 1.4 -> 1*, 5 -> 1.4
        (column(0.0, 1.0), column(2.5, 5.0), 0.25),  # 0 -> 1, 1 -> 0, 2.5 -> 1*, 5 -> 2.5
        (column(0.0, 1.0), column(5.0, 6.0), 0.0),  # two pure pairs
    ],
    ids=["all", "half", "quarter", "none"],
)
def test_cross_edges_of_two_and_two_points_are_those_counted_by_hand(x, y, rate):
    assert knn_cross_edge_rate(x, y, k=1) == rate
    assert knn_cross_edge_rate(y, x, k=1) == rate


def test_a_point_is_not_its_own_neighbour_even_where_points_coincide():
    x = normal(20)
    assert knn_cross_edge_rate(x, x.clone(), k=1) == 1


@pytest.mark.slow
def test_the_rate_equals_that_of_another_implementation():
    for k in (1, 3, 5, 10, 20):
        neighbors = pytest.importorskip("sklearn.neighbors")
        x, y = normal(130, dim=3), normal(90, dim=3, seed=1) + 0.3
        union, label = np.concatenate((x, y)), np.repeat([0, 1], (130, 90))
        found = neighbors.NearestNeighbors(n_neighbors=k).fit(union)
        edges = found.kneighbors(return_distance=False)
        expected = (label[edges] != label[:, None]).mean()
        assert knn_cross_edge_rate(x, y, k=k) == pytest.approx(expected, abs=1e-12)


def test_axes_of_a_sample_are_flattened():
    x, y = normal(30, dim=6), normal(30, dim=6, seed=1)
    rate = knn_cross_edge_rate(x, y)
    assert knn_cross_edge_rate(x.reshape(30, 2, 3), y.reshape(30, 3, 2)) == rate


def test_points_that_are_not_finite_are_left_out():
    x, y = normal(30), normal(20, seed=1)
    bad = torch.tensor([[math.nan, 0.0], [math.inf, 0.0], [0.0, -math.inf]])
    rate = knn_cross_edge_rate(x, y)
    assert knn_cross_edge_rate(torch.cat((bad, x)), torch.cat((y, bad))) == rate


def test_the_rate_is_that_of_doubles_far_from_the_origin():
    # x^2 - 2 x y + y^2 would lose all digits here
    x, y = normal(60), normal(60, seed=1)
    assert knn_cross_edge_rate(x + 1e8, y + 1e8) == knn_cross_edge_rate(x, y)


@pytest.mark.parametrize(
    ("x", "y", "distance"),
    [
        ([0, 0, 1, 2], [0, 1, 1, 2], 0.25),  # (2 1 1) and (1 2 1) fourths
        ([0, 1], [0, 1, 1, 0], 0.0),
        ([0, 0, 0], [1, 3], 1.0),
        ([0, 1], [2, 3], 1.0),
        ([0, 1, 2, 3], [3], 0.75),
    ],
    ids=["partly", "equal", "disjoint", "disjoint and spread", "collapsed"],
)
def test_the_weight_error_is_half_the_difference_of_weights(x, y, distance):
    assert weight_error(torch.tensor(x), torch.tensor(y), modes=4) == pytest.approx(distance)
    assert weight_error(torch.tensor(y), torch.tensor(x), modes=4) == pytest.approx(distance)


def test_sliced_wasserstein_on_a_line_is_that_of_quantiles():
    """Of N(0, 1) and N(m, s^2): (m^2 + (s - 1)^2)^(1/2)."""
    levels = (torch.arange(2000).double() + 0.5) / 2000
    x = torch.special.ndtri(levels)[:, None]
    assert sliced_wasserstein(x, 0.3 + 1.4 * x) == pytest.approx(0.5, rel=0.005)
    assert sliced_wasserstein(x, x.flip(0)) == 0


def test_sliced_wasserstein_takes_sizes_that_differ():
    x = normal(300, seed=1)
    assert sliced_wasserstein(x, x.repeat(3, 1)) == pytest.approx(0, abs=1e-12)
    assert sliced_wasserstein(x.repeat(2, 1), x + 1) == pytest.approx(sliced_wasserstein(x, x + 1))


def test_zero_is_outlying_in_a_gap_and_beyond_the_ends_whatever_the_units():
    x = normal(64, dim=2)
    apart = torch.cat([x[:32] + 6, x[32:] - 6])
    for r, expected in ((x, False), (apart, True), (x + 6, True), (apart - 6, False)):
        assert is_outlying(r) == expected
        assert is_outlying(r * torch.tensor([1e6, 1e-6])) == expected
    assert not is_outlying(apart[:5])  # too few to tell
