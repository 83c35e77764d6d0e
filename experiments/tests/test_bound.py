import pytest
import torch

from experiments.studies import bound
from experiments.studies.bound import LEVELS, REPEATS, V, gaussian_w2, problem

EYE = torch.eye(bound.D, dtype=torch.float64)


@pytest.fixture(scope="module")
def rows():
    return [
        setting | row for setting in bound.MEASUREMENT.settings for row in bound.measure(setting)
    ]


def states(members, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(members, bound.D, generator=generator, dtype=torch.float64)


def ideal_kernel(sigma, x):
    """Mean and covariance of x' ~ K*(.|x), from the joint distribution of (x_0, x, A x_0)."""
    _, constraint, _ = problem(sigma)
    A, y = constraint.A, constraint.y
    seen = torch.cat((EYE, A))  # of x_0: x = x_0 + noise, and y
    noise = torch.diag(torch.tensor([sigma**2] * bound.D + [0.0] * len(y), dtype=torch.float64))
    gain = V * seen.T @ torch.linalg.inv(V * seen @ seen.T + noise)
    mean = gain @ torch.cat((x, y))
    return mean, V * EYE - gain @ seen * V + sigma**2 * EYE


def moments(q, sigma):
    A, y = problem(sigma)[1].A, problem(sigma)[1].y
    return q.a * A.T @ y, q.covariance(A.T @ A)


@pytest.mark.parametrize("sigma", LEVELS)
def test_the_library_projects_as_the_closed_form_says(sigma):
    sampler, constraint, t = problem(sigma)
    A, y = constraint.A, constraint.y
    x = states(64)
    torch.testing.assert_close(A @ A.T, torch.eye(2, dtype=torch.float64))
    assert sampler.noise_level(t) == pytest.approx(sigma)
    expected = bound.shrink(sigma) * x @ (EYE - A.T @ A) + A.T @ y
    projected = sampler.project(x, t, sigma).x_0
    torch.testing.assert_close(projected, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sigma", LEVELS)
def test_the_discrepancy_is_the_largest_distance_of_the_kernels(sigma):
    sampler, _, t = problem(sigma)
    distances = []
    for x in states(32):
        mean, covariance = ideal_kernel(sigma, x)
        projected = sampler.project(x[None], t, sigma).x_0[0]
        distances.append(gaussian_w2(projected, sigma**2 * EYE, mean, covariance))
    assert max(distances) == pytest.approx(bound.discrepancy(sigma), rel=1e-6)


@pytest.mark.parametrize("sigma", LEVELS)
def test_the_target_is_stationary_under_the_ideal_kernel_and_the_other_under_pprs(sigma):
    q = bound.stationary(sigma)
    assert tuple(q.step(sigma)) == pytest.approx(tuple(q))
    mean, covariance = moments(bound.target(sigma), sigma)
    # the ideal kernel is x' = B x + b + noise
    b, noise = ideal_kernel(sigma, torch.zeros_like(mean))
    B = torch.stack([ideal_kernel(sigma, e)[0] - b for e in EYE], dim=1)
    torch.testing.assert_close(B @ mean + b, mean)
    torch.testing.assert_close(B @ covariance @ B.T + noise, covariance)


def test_the_general_distance_is_right_where_covariances_do_not_commute():
    """In two dimensions tr (S_1^1/2 S_2 S_1^1/2)^1/2 = sqrt(tr(S_1 S_2) + 2 sqrt(det S_1 S_2))."""
    one = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    other = torch.tensor([[1.0, -0.7], [-0.7, 3.0]], dtype=torch.float64)
    root = ((one @ other).trace() + 2 * torch.det(one @ other).sqrt()).sqrt()
    mean = torch.tensor([1.0, 2.0], dtype=torch.float64)
    expected = (5 + (one + other).trace() - 2 * root).sqrt().item()
    assert gaussian_w2(0 * mean, one, mean, other) == pytest.approx(expected)


def test_the_bound_holds_everywhere_and_is_the_sum_of_its_terms(rows):
    assert len(rows) == len(LEVELS) * len(REPEATS)
    for row in rows:
        assert row["exact"] <= row["bound"]
        assert row["bound"] == pytest.approx(row["mixing"] + row["bias"])
        assert row["bias"] == pytest.approx(row["delta"] / (1 - row["lipschitz"]))


def test_the_measured_distance_is_the_exact_one_within_its_sampling_error(rows):
    r"""It is off by no more than W_2(q^, q), whose square, in units of 1 / N, is a sum of 44
    weighted chi-squares of mean 26 for unit variances, of 27 of mean 16.5 where two of them
    vanish. By Chernoff it exceeds four times its mean with a probability below 1e-7, at each of
    36 places."""
    for row in rows:
        assert abs(row["measured"] - row["exact"]) <= 2 * row["error"]
