"""Proposition 3.1 and the bias of PPR, by quadrature and in closed form: nothing is drawn."""

import math
from itertools import pairwise

import pytest
import torch

from feasibly import PPR, Equality
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Empirical, Gaussian
from feasibly.schedules import VE
from tests.helpers import on, sampled

POINTS = torch.tensor([[-2.0], [-1.2], [-0.3], [0.4], [1.1], [2.3]], dtype=torch.float64)
FEASIBLE = torch.tensor([True, False, True, False, True, False])
GRID = torch.linspace(-20, 20, 2001, dtype=torch.float64)[:, None]
STEP = 0.02


def normal(x, mean, sigma):
    return torch.exp(-(((x - mean) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))


def ideal_kernel(sigma):
    """K(x' | x) of Proposition 3.1 on the grid, for an empirical prior: rows x, columns x'."""
    log_w = Empirical(POINTS, VE()).log_weights(GRID, torch.tensor(sigma))
    w = log_w.masked_fill(~FEASIBLE, -math.inf).softmax(dim=1)  # p^C(x_0 | x)
    return w @ normal(GRID.T, POINTS, sigma)


def constrained_marginal(sigma):
    return normal(GRID, POINTS[FEASIBLE].T, sigma).mean(dim=1)


@pytest.mark.parametrize("sigma", [0.2, 0.5, 2.0])
def test_ideal_kernel_leaves_the_constrained_marginal_invariant(sigma):
    p = constrained_marginal(sigma)
    torch.testing.assert_close(STEP * p @ ideal_kernel(sigma), p, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 0.95), (2.0, 0.5)])
def test_ideal_kernel_converges_from_elsewhere(sigma, rate):
    """Total variation shrinks at every application, and fast where the noise is high."""
    p, q = constrained_marginal(sigma), normal(GRID[:, 0], 2.3, sigma)
    K = ideal_kernel(sigma)
    distance = [STEP * (q - p).abs().sum().item() / 2]
    for _ in range(30):
        q = STEP * q @ K
        distance.append(STEP * (q - p).abs().sum().item() / 2)
    assert all(b <= a + 1e-12 for a, b in pairwise(distance))
    assert distance[30] < distance[0] * rate**30 + 1e-9


@pytest.mark.parametrize("t", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("v", [0.5, 1.0])
def test_ppr_kernel_on_a_gaussian_has_the_closed_form_variance(t, v):
    r"""Without a constraint, (v + sigma^2)^2 / (2 v + sigma^2) instead of v + sigma^2.

    The kernel is x' = rho x + sigma z, whose factors are read off the code with z = 0 and 1."""
    prior = Gaussian(torch.zeros(1), torch.tensor([[v]]), VE())
    kernel = on(PPR(), prior, Equality(lambda x: 0 * x, tolerance=1e-9))
    t = torch.tensor(t, dtype=torch.float64)
    x = torch.tensor([[1.7]], dtype=torch.float64)
    still = kernel.kernel(x, t, 1.0, torch.zeros_like).x
    moved = kernel.kernel(x, t, 1.0, torch.ones_like).x
    rho, sigma = (still / x).item(), (moved - still).item()
    assert sigma == pytest.approx(prior.schedule(t)[1].item())
    stationary = sigma**2 / (1 - rho**2)
    assert stationary == pytest.approx((v + sigma**2) ** 2 / (2 * v + sigma**2), rel=1e-9)


def test_ppr_is_underdispersed_as_the_theory_says():
    """N(0, I) in 30 dimensions with the mean fixed: about 0.73, where 0.983 is exact.

    The paper's kernel at every level; 512 members of 30 elements give a standard error of
    0.006, so that the bounds are five of them away."""
    prior = Gaussian(torch.zeros(30), torch.eye(30), VE(1e-3, 1e2))
    constraint = Equality(lambda x: x.mean(dim=1), tolerance=1e-8)
    kernel = on(PPR(repeats=1, minimize=GaussNewton()), prior, constraint)
    result = sampled(kernel, 512, (30,))
    assert result.feasible.all()
    assert 0.69 < result.samples.std().item() < 0.77
