"""Importance weights against ArviZ and closed forms."""

import math

import pytest
import torch
from arviz_stats.base import array_stats

from feasibly.samplers.weights import effective_size, log_mean, shares, smoothed, systematic
from tests.samplers.conftest import double, normal

INF = math.inf


@pytest.mark.parametrize("spread", [0.1, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("n", [25, 64, 256, 1024])
def test_smoothed_weights_are_those_of_arviz(n, spread):
    log_w = spread * normal(n, seed=n)
    found, k_hat = smoothed(log_w + 123.0)
    expected, k = array_stats.psislw(-log_w.numpy())
    assert k_hat == pytest.approx(float(k), rel=1e-6, abs=1e-9)
    normed = found - found.logsumexp(dim=0)
    torch.testing.assert_close(normed, torch.from_numpy(expected), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("shape", [0.2, 0.5, 1.0])
def test_k_hat_is_the_shape_of_pareto_weights(shape):
    """The standard error is that of maximum likelihood for a tail of 379."""
    u = torch.rand(16000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, k_hat = smoothed(-shape * u.log())
    assert k_hat == pytest.approx(shape, abs=4 * (1 + shape) / math.sqrt(379))


@pytest.mark.parametrize("n", [1, 4, 24])
def test_a_tail_of_fewer_than_five_weights_is_never_reliable(n):
    found, k_hat = smoothed(normal(n))
    assert k_hat == INF
    torch.testing.assert_close(found - found[0], normal(n) - normal(n)[0])


def test_weights_of_which_few_are_not_zero_are_never_reliable():
    log_w = torch.full((64,), -INF).double()
    for count in range(5):
        log_w[:count] = normal(5)[:count]
        assert smoothed(log_w)[1] == INF
    log_w[:4] += 2000.0  # next to these the others are zero in double precision
    log_w[4:] = normal(60)
    assert smoothed(log_w)[1] == INF
    assert smoothed(torch.full((64,), math.nan).double())[1] == INF


def test_what_is_not_a_number_has_a_weight_of_zero():
    log_w = normal(64)
    log_w[5], log_w[9] = math.nan, -INF
    found, k_hat = smoothed(log_w)
    zero = log_w.clone()
    zero[5] = -INF
    expected, k = smoothed(zero)
    assert (k_hat, found[[5, 9]].tolist()) == (k, [-INF, -INF])
    assert torch.equal(found, expected)
    assert shares(log_w).min(dim=0).values + 1 > 0
    assert shares(log_w)[[5, 9]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(log_mean(log_w), log_mean(zero))


@pytest.mark.parametrize("noise", [0.0, 1e-17, 1e-16, 1e-15])
@pytest.mark.parametrize("n", [32, 1024])
def test_equal_weights_are_reliable(n, noise):
    """Also if rounding tells them apart, and if one in ten is zero."""
    log_w = 7.0 + noise * normal(n)
    assert smoothed(log_w)[1] == 0
    log_w[::10] = -INF
    assert smoothed(log_w)[1] == 0
    assert smoothed(log_w[:20])[1] == INF, "of few weights nothing is known"


def test_shares_add_up_to_one_and_are_equal_where_all_weights_are_zero():
    log_w = double([[0.0, -INF, 1000.0], [math.log(3.0), math.nan, -1000.0]])
    torch.testing.assert_close(shares(log_w), double([[0.25, 0.5, 1.0], [0.75, 0.5, 0.0]]))


def test_the_effective_size_is_that_of_equal_weights():
    w = double([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 3.0, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(effective_size(w.log()), double([4.0, 16 / 10, 4.0]))
    torch.testing.assert_close(effective_size(w.log() - 800.0), double([4.0, 16 / 10, 4.0]))


def test_the_mean_of_weights_is_taken_of_their_logarithms():
    log_w = double([[0.0, -INF, 900.0], [math.log(3.0), -INF, -INF]])
    torch.testing.assert_close(log_mean(log_w), double([math.log(2.0), -INF, 900 - math.log(2.0)]))


def test_systematic_draws_each_row_as_often_as_its_weight_says_but_for_one():
    """Over evenly spaced numbers the average is exact."""
    n = 1000
    u = (torch.arange(n).double() + 0.5) / n
    for count in (1, 5, 40):
        w = shares(1.5 * normal(8))
        rows = systematic(w[:, None].expand(8, n), u, count)
        assert rows.shape == (count, n)
        assert (rows.diff(dim=0) >= 0).all()
        counts = torch.stack([(rows == k).sum(dim=0) for k in range(8)]).double()
        assert ((counts - count * w[:, None]).abs() < 1).all()
        torch.testing.assert_close(counts.mean(dim=1), count * w, rtol=0, atol=2 / n)


def test_at_zero_no_row_without_a_weight_is_drawn():
    w = double([0.0, 0.25, 0.0, 0.75])
    assert systematic(w[:, None], double([0.0]), 4)[:, 0].tolist() == [1, 3, 3, 3]
    even = torch.full((8, 1), 1 / 8).double()
    assert systematic(even, double([0.0]), 8)[:, 0].tolist() == list(range(8))
