import math
from itertools import product

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.oracles import Checkerboard, Empirical, Gaussian, GaussianMixture, truncated_normal
from feasibly.schedules import VE

check = settings(derandomize=True, deadline=None, max_examples=80)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(dim, seed=0):
    root = normal(dim, dim + 1, seed=seed)
    return root @ root.T / dim


def make_mixture(dim, components=3, seed=1):
    cov = torch.stack([covariance(dim, seed=seed + k) for k in range(components)])
    weights = torch.arange(1, components + 1).double()
    return weights, 2 * normal(components, dim, seed=seed), cov


BOARD = Checkerboard(4, VE())
DATA = normal(7, 2, seed=5)
ORACLES = {
    "gaussian": Gaussian(normal(2), covariance(2), VE()),
    "mixture": GaussianMixture(*make_mixture(2), VE()),
    "empirical": Empirical(DATA, VE()),
    "checkerboard": BOARD,
}
oracle_of_all = pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES.keys())
SIGMAS = [10.0**e for e in range(-4, 5)]


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_gaussian_is_the_dense_posterior_mean(dim):
    for sigma in (1e-3, 0.1, 1.0, 10.0, 1e3):
        mu, cov, x = normal(dim), covariance(dim), 3 * normal(4, dim, seed=2)
        precision = torch.linalg.inv(cov)
        system = precision + torch.eye(dim) / sigma**2
        expected = torch.linalg.solve(system, (precision @ mu)[:, None] + x.T / sigma**2).T
        mean = Gaussian(mu, cov, VE()).mean(x, double(sigma))
        torch.testing.assert_close(mean, expected, rtol=1e-8, atol=1e-8)


def test_gaussian_refuses_an_indefinite_covariance():
    with pytest.raises(ValueError, match="positive semi-definite"):
        Gaussian(torch.zeros(2), torch.diag(double([1.0, -0.1])), VE())


def test_mixture_of_one_component_is_the_gaussian():
    for sigma in SIGMAS:
        mu, cov, x = normal(3), covariance(3), 3 * normal(6, 3, seed=2)
        mixture = GaussianMixture(double([4.2]), mu[None], cov[None], VE())
        expected = Gaussian(mu, cov, VE()).mean(x, double(sigma))
        torch.testing.assert_close(
            mixture.mean(x, double(sigma)), expected, rtol=1e-10, atol=1e-10
        )


def test_mixture_agrees_with_quadrature_on_the_line():
    for sigma in (0.1, 0.5, 2.0, 20.0):
        weights, mu, std = (
            double([0.2, 0.5, 0.3]),
            double([-2.0, 0.3, 3.0]),
            double([0.4, 0.2, 1.0]),
        )
        mixture = GaussianMixture(7 * weights, mu[:, None], std.square()[:, None, None], VE())
        x = torch.linspace(-6, 6, 13, dtype=torch.float64)[:, None]

        # the trapezoid rule is spectrally accurate for these integrands, which vanish at the ends
        x_0 = torch.linspace(-12, 14, 5001, dtype=torch.float64)
        prior = (weights / std * torch.exp(-(((x_0[:, None] - mu) / std) ** 2) / 2)).sum(dim=1)
        posterior = (prior.log() - ((x - x_0) / sigma) ** 2 / 2).softmax(dim=1)
        expected = posterior @ x_0[:, None]
        torch.testing.assert_close(mixture.mean(x, double(sigma)), expected, rtol=0, atol=1e-9)


def test_empirical_weights_are_those_of_bayes():
    for sigma in (0.1, 1.0, 5.0):
        x = normal(5, 2)
        likelihood = torch.exp(-(x[:, None] - DATA).square().sum(dim=2) / (2 * sigma**2))
        weights = ORACLES["empirical"].log_weights(x, double(sigma)).exp()
        expected = likelihood / likelihood.sum(dim=1, keepdim=True)
        torch.testing.assert_close(weights, expected, rtol=1e-8, atol=1e-15)


def test_empirical_tells_points_apart_at_the_smallest_noise():
    # two points 1e-3 apart, far from the origin, where |x|^2 - 2 x.y + |y|^2 would cancel
    data = double([[1e6, 0.0], [1e6, 1e-3]])
    mean = Empirical(data, VE()).mean(double([[1e6, 2e-4]]), double(1e-4))
    torch.testing.assert_close(mean, data[:1], rtol=0, atol=1e-8)


def board_quadrature(x, sigma, nodes=96):
    """Posterior mean and covariance on the 4 x 4 board by a product rule on each square."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    side = math.sqrt(12) / 4
    line = torch.from_numpy((node + 1) / 2) * side
    points, log_w = [], []
    for i in range(4):
        for j in range(4):
            if (i + j) % 2 == 0:
                corner = double([i - 2.0, j - 2.0]) * side
                points.append(corner + torch.cartesian_prod(line, line))
                log_w.append(torch.from_numpy(np.outer(weight, weight)).flatten().log())
    x_0 = torch.cat(points)
    distance = (x[:, None] - x_0).square().sum(dim=2)
    p = (torch.cat(log_w) - distance / (2 * sigma**2)).softmax(dim=1)
    mean = p @ x_0
    offset = x_0 - mean[:, None]
    return mean, torch.einsum("bn,bni,bnj->bij", p, offset, offset)


ON_AND_OFF_BOARD = double(
    [[0.1, 0.2], [0.3, -0.5], [0.0, 0.0], [1.7, 1.7], [-1.2, 0.4], [2.5, 0.0], [3.0, -4.0]]
)


def test_checkerboard_agrees_with_quadrature_on_the_plane():
    for sigma in (0.05, 0.3, 1.0, 5.0):
        expected, _ = board_quadrature(ON_AND_OFF_BOARD, sigma)
        mean = BOARD.mean(ON_AND_OFF_BOARD, double(sigma))
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-6)


def test_checkerboard_needs_an_even_number_of_squares():
    for m in (0, 1, 3, 5):
        with pytest.raises(ValueError, match="must be even"):
            Checkerboard(m, VE())


def exact_truncated_normal(mu, sigma, a, b):
    """The log-mass and the mean, in arithmetic of 120 digits."""
    with mpmath.workdps(120):
        mu, sigma, a, b = map(mpmath.mpf, (mu, sigma, a, b))
        # mirrored, so that both ends are not in the tail where 1 - erfc has no digits left
        flip = a + b < 2 * mu
        low, high = (mu - b, mu - a) if flip else (a - mu, b - mu)
        low, high = low / sigma, high / sigma
        root = mpmath.sqrt(2)
        mass = (mpmath.erfc(low / root) - mpmath.erfc(high / root)) / 2
        density = [mpmath.exp(-(z**2) / 2) / mpmath.sqrt(2 * mpmath.pi) for z in (low, high)]
        offset = sigma * (density[0] - density[1]) / mass
        return float(mpmath.log(mass)), float(mu - offset if flip else mu + offset)


def assert_matches_exact(mu, sigma, a, b):
    log_mass, mean = truncated_normal(*map(double, ([mu], [sigma], [a], [b])))
    exact_log_mass, exact_mean = exact_truncated_normal(mu, sigma, a, b)
    assert abs(mean.item() - exact_mean) <= 1e-9
    assert abs(log_mass.item() - exact_log_mass) <= 1e-9 * max(1, abs(exact_log_mass))


SIDE = math.sqrt(12) / 4


def test_truncated_normal_is_exact_from_the_centre_to_far_tails():
    for sigma in SIGMAS:
        for a, b in ((0.0, SIDE), (-2 * SIDE, -SIDE)):
            for mu in (0.5, a, b, -1.0, 1.7, 12.0, -12.0, 1e3):
                assert_matches_exact(mu, sigma, a, b)
            # far in units of the noise, where masses underflow
            for tails in (-40.0, -6.0, 3.0, 37.0):
                assert_matches_exact(a + tails * sigma, sigma, a, b)


@given(
    st.floats(-4, 4).map(lambda e: 10**e),
    st.floats(-8, 8),
    st.floats(-2, 2),
    st.floats(-2, 1).map(lambda e: 10**e),
)
@check
def test_truncated_normal_is_exact_where_its_formulas_meet(sigma, distance, a, length):
    # distances in noise units from the near end reach every formula and the seams between them
    assert_matches_exact(a + distance * sigma, sigma, a, a + length)


def test_truncated_normal_keeps_its_digits_with_one_noise_scale_for_all():
    mu, a, b = double([0.0, -1.0]), double([0.0, 0.0]), double([1.0, SIDE])
    for sigma in (1e-2, math.sqrt(10)):
        _, mean = truncated_normal(mu, double(sigma), a, b)
        _, expected = truncated_normal(mu, double([sigma]), a, b)
        assert mean.dtype == torch.float64
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-12)


@oracle_of_all
def test_estimates_and_gradients_are_finite_at_every_noise_level(oracle):
    for sigma, dtype in product(SIGMAS, (torch.float32, torch.float64)):
        near = torch.cat((ON_AND_OFF_BOARD, DATA, SIDE * double([[1.0, 1.0], [0.0, 2.0]])))
        x = torch.cat((near, near + sigma * normal(*near.shape))).to(dtype).requires_grad_()
        mean = oracle.mean(x, torch.tensor(sigma, dtype=dtype))
        (g,) = torch.autograd.grad(mean.sum(), x)
        assert mean.isfinite().all()
        assert g.isfinite().all()


@oracle_of_all
def test_single_precision_agrees_with_double(oracle):
    x = normal(6, 2, seed=3).float()
    for sigma in (1e-2, 1.0, 1e2):
        single = oracle.mean(x, torch.tensor(sigma))
        exact = oracle.mean(x.double(), torch.tensor(sigma).double())
        assert single.dtype == torch.float32
        torch.testing.assert_close(single, exact.float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(6,), (2, 3)], ids=str)
def test_samples_of_any_shape_are_flattened_and_restored(shape):
    mu, cov, x = normal(6), covariance(6), normal(4, 6, seed=2)
    weights, means, covs = make_mixture(6)
    data = normal(9, 6, seed=3)
    for flat, shaped in (
        (Gaussian(mu, cov, VE()),) * 2,
        (GaussianMixture(weights, means, covs, VE()),) * 2,
        (Empirical(data, VE()), Empirical(data.reshape(9, *shape), VE())),
    ):
        sigma = double([0.1, 0.5, 2.0, 9.0])
        expected = flat.mean(x, sigma[:, None])
        mean = shaped.mean(x.reshape(4, *shape), sigma.reshape(4, *(1,) * len(shape)))
        assert mean.shape == (4, *shape)
        torch.testing.assert_close(mean.reshape(4, 6), expected, rtol=1e-12, atol=1e-12)
