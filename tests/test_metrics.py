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


def test_every_other_point_is_a_neighbour_if_k_is_large_enough():
    # each of 3 + 4 points has edges to all others: 2 * 3 * 4 of 7 * 6 cross
    x, y = normal(3), normal(4, seed=1)
    assert knn_cross_edge_rate(x, y, k=6) == pytest.approx(24 / 42)


def test_a_point_is_not_its_own_neighbour_even_where_points_coincide():
    x = normal(20)
    assert knn_cross_edge_rate(x, x.clone(), k=1) == 1


def test_sets_far_apart_share_no_edge():
    assert knn_cross_edge_rate(normal(50), normal(50, seed=1) + 1e3, k=20) == 0


@pytest.mark.parametrize(("k", "bound"), [(1, 0.07), (5, 0.03), (20, 0.02)])
def test_half_of_the_edges_cross_between_sets_of_one_distribution(k, bound):
    # At 1024 + 1024 points the standard deviation is 0.014 (k = 1), 0.006 (5) and 0.004 (20),
    # from 60 draws each; the bounds are 5 of them: a false alarm of 6e-7 each.
    rate = knn_cross_edge_rate(normal(1024), normal(1024, seed=1), k=k)
    assert rate == pytest.approx(0.5, abs=bound)


def test_fewer_edges_cross_between_sets_of_different_distributions():
    # with twice the spread the rate is 0.354 with a standard deviation of 0.011 (20 draws); the
    # bound is 7 of them above: a false alarm of 1e-12
    assert knn_cross_edge_rate(normal(1024), 2 * normal(1024, seed=1)) < 0.43


def test_the_rate_equals_that_of_another_implementation():
    for k in (1, 3, 5, 10, 20):
        neighbors = pytest.importorskip("sklearn.neighbors")
        x, y = normal(130, dim=3), normal(90, dim=3, seed=1) + 0.3
        union, label = np.concatenate((x, y)), np.repeat([0, 1], (130, 90))
        found = neighbors.NearestNeighbors(n_neighbors=k).fit(union)
        edges = found.kneighbors(return_distance=False)
        expected = (label[edges] != label[:, None]).mean()
        assert knn_cross_edge_rate(x, y, k=k) == pytest.approx(expected, abs=1e-12)


def test_the_rate_does_not_depend_on_order_place_or_scale():
    x, y = normal(60), normal(40, seed=1) + 0.5
    rotation = torch.linalg.qr(normal(2, seed=3)).Q
    rate = knn_cross_edge_rate(x, y)
    assert knn_cross_edge_rate(y, x) == rate
    assert knn_cross_edge_rate(x.flip(0), y.roll(7, dims=0)) == rate
    assert knn_cross_edge_rate(3 * x @ rotation + 5, 3 * y @ rotation + 5) == rate


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


def test_sliced_wasserstein_of_a_shift_is_its_mean_projection():
    x, shift = normal(200, dim=3), torch.tensor([1.0, -2.0, 2.0])
    once, twice = (sliced_wasserstein(x, x + k * shift) for k in (1, 2))
    assert twice == pytest.approx(2 * once)
    # |shift|^2 / 3 on average; of 256 directions the standard error is 6 % of it
    assert once**2 == pytest.approx(3.0, rel=0.3)


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
