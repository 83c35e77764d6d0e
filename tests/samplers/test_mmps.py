"""Moment Matching Posterior Sampling."""

import pytest
import torch

from feasibly import Equality, Inequality, Linear
from feasibly.errors import InfeasibleWarning
from feasibly.network import Evaluations, counted
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.samplers import MMPS
from feasibly.schedules import Cosine, LogLogit, Rectified
from tests.helpers import on, sampled
from tests.samplers.conftest import correlated, covariance, normal, plane

T = torch.tensor(0.5, dtype=torch.float64)
both_solvers = pytest.mark.parametrize("solver", ["gmres", "cg"])


def conditional_mean(prior, cov, constraint, sigma_y, x_t, t):
    """Of x_0, given x_t = alpha x_0 + sigma e and y = A x_0 + sigma_y n: precisions add up."""
    alpha, sigma = prior.schedule(t)
    A, y = constraint.A, constraint.y
    precision = torch.linalg.inv(cov)
    pull = precision @ prior.mu + alpha / sigma**2 * x_t + y @ A / sigma_y**2
    total = precision + alpha**2 / sigma**2 * torch.eye(len(cov)) + A.T @ A / sigma_y**2
    return torch.linalg.solve(total, pull[..., None]).squeeze(-1)


@both_solvers
@pytest.mark.parametrize("schedule", [LogLogit(), Rectified()], ids=repr)
def test_the_estimate_is_exact_for_a_gaussian_and_a_linear_constraint(solver, schedule):
    prior = correlated(schedule, 6)
    for m in (1, 4):
        constraint = plane(m, 6)
        kernel = on(MMPS(sigma_y=0.1, solver=solver, iterations=m, rtol=0.0), prior, constraint)
        for t in torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64):
            alpha, sigma = schedule(t)
            x = alpha * normal(5, 6, seed=4) + sigma * normal(5, 6, seed=5)
            expected = conditional_mean(prior, covariance(6), constraint, 0.1, x, t)
            torch.testing.assert_close(kernel.estimate(x, t), expected, rtol=1e-6, atol=1e-7)


@both_solvers
def test_the_estimate_is_the_linearised_formula_in_general(solver):
    """A mixture, whose Jacobian is symmetric, and residuals that are not linear."""
    cov = torch.stack((covariance(4), torch.eye(4, dtype=torch.float64) / 2))
    prior = GaussianMixture(torch.tensor([0.4, 0.6]), normal(2, 4, seed=1), cov, Cosine())
    A = normal(2, 4, seed=5)

    def h(x):
        return torch.sin(x @ A.T) + x[..., :2] ** 2 - 0.3

    kernel = on(MMPS(sigma_y=0.2, solver=solver, rtol=0.0), prior, Equality(h, 1e-6))
    x = normal(3, 4, seed=6)
    found = kernel.estimate(x, T)
    alpha, sigma = prior.schedule(T)
    for i in range(3):
        d = prior(x[i : i + 1], T).mean[0]
        V = torch.func.jacrev(lambda v: prior(v[None], T).mean[0])(x[i]) * sigma**2 / alpha
        J = torch.func.jacrev(h)(d)
        S = 0.04 * torch.eye(2) + J @ V @ J.T
        torch.testing.assert_close(found[i], d - V @ J.T @ torch.linalg.solve(S, h(d)))


def test_the_noise_of_a_residual_is_the_tolerances_share_whatever_the_shape():
    """All residuals are in one system, not one for each last axis."""
    prior, x = correlated(LogLogit(), 6), normal(4, 6, seed=4)
    default = on(MMPS(rtol=0.0), prior, plane(3, 6, tolerance=0.27)).estimate(x, T)
    given = on(MMPS(sigma_y=0.3, rtol=0.0), prior, plane(3, 6))
    torch.testing.assert_close(default, given.estimate(x, T))
    torch.testing.assert_close(default, given.estimate(x.reshape(4, 2, 3), T).reshape(4, 6))


@both_solvers
@pytest.mark.parametrize("iterations", [1, 3, 9])
def test_an_estimate_costs_one_backward_evaluation_an_iteration(solver, iterations):
    """None is spent on the product with the solution; and m iterations are enough for m."""
    prior, spent = correlated(LogLogit(), 6), Evaluations()
    kernel = on(MMPS(solver=solver, iterations=iterations, rtol=0.0), prior, plane(4, 6))
    with counted(spent):
        kernel.estimate(normal(5, 6, seed=4), T)
    assert (spent.forward, spent.backward) == (1, min(iterations, 4))
    assert kernel.cost(4) == (2, 2 * min(iterations, 4))


@both_solvers
def test_the_solver_stops_where_it_is_done(solver):
    """With orthogonal rows and an isotropic prior, all eigenvalues are one."""
    prior = Gaussian(torch.zeros(6), torch.eye(6), LogLogit())
    rows, x = torch.linalg.qr(normal(6, 4)).Q.T, normal(5, 6, seed=4)
    white, spent = on(MMPS(solver=solver, iterations=4), prior, Linear(rows, normal(4), 1e-6)), []
    # and does not begin where nothing is violated
    met = on(MMPS(solver=solver), prior, Inequality(lambda x: x[:, :1] - 50, 1e-6))
    for kernel in (white, met):
        spent.append(Evaluations())
        with counted(spent[-1]):
            found = kernel.estimate(x, T)
    assert torch.equal(found, prior(x, T).mean)
    assert [one.backward for one in spent] == [1, 0]


@pytest.mark.filterwarnings("error")
def test_noise_that_is_given_on_purpose_is_no_miss():
    prior = Gaussian(torch.zeros(40), torch.eye(40), LogLogit())
    constraint = Linear(torch.ones(1, 40).double(), torch.zeros(1).double(), tolerance=1e-8)
    noisy = sampled(on(MMPS(steps=16, sigma_y=0.3), prior, constraint), 8, (40,))
    assert not noisy.feasible.any()
    assert noisy.warnings == []
    nowhere = Equality(lambda x: x[:, :1] ** 2 + 1, tolerance=1e-8)
    with pytest.warns(InfeasibleWarning, match="None of the 8 samples"):
        sampled(on(MMPS(steps=2), prior, nowhere), 8, (40,))
