"""Moment Matching Posterior Sampling."""

import pytest
import torch

from feasibly import Equality, Inequality, Linear, PredictorCorrector
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.network import Evaluations, Network
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.samplers import MMPS
from feasibly.schedules import Cosine, LogLogit, Rectified

CONSTRAINT = LevelSet(GaussianRandomField(3))
pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
T = torch.tensor(0.5, dtype=torch.float64)
both_solvers = pytest.mark.parametrize("solver", ["gmres", "cg"])


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(D):
    half = normal(D, D, seed=2)
    return half @ half.T / D + torch.eye(D, dtype=torch.float64) / 5


def correlated(schedule, D=6):
    return Gaussian(normal(D, seed=3), covariance(D), schedule)


def plane(m, D=6, tolerance=1e-6):
    return Linear(normal(m, D), normal(m, seed=1), tolerance)


def conditional_mean(prior, cov, constraint, sigma_y, x_t, t):
    """Of x_0, given x_t = alpha x_0 + sigma e and y = A x_0 + sigma_y n: precisions add up."""
    alpha, sigma = prior.schedule(t)
    A, y = constraint.A, constraint.y
    precision = torch.linalg.inv(cov)
    pull = precision @ prior.mu + alpha / sigma**2 * x_t + y @ A / sigma_y**2
    total = precision + alpha**2 / sigma**2 * torch.eye(len(cov)) + A.T @ A / sigma_y**2
    return torch.linalg.solve(total, pull[..., None]).squeeze(-1)


@both_solvers
@pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)
def test_the_estimate_is_exact_for_a_gaussian_and_a_linear_constraint(solver, schedule):
    prior = correlated(schedule)
    for m in (1, 2, 4):
        constraint = plane(m)
        sampler = MMPS(prior, constraint, sigma_y=0.1, solver=solver, iterations=m, rtol=0.0)
        for t in torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64):
            alpha, sigma = schedule(t)
            x = alpha * normal(5, 6, seed=4) + sigma * normal(5, 6, seed=5)
            expected = conditional_mean(prior, covariance(6), constraint, 0.1, x, t)
            torch.testing.assert_close(sampler.estimate(x, t), expected, rtol=1e-6, atol=1e-7)


@both_solvers
def test_without_observation_noise_the_estimate_satisfies_a_linear_constraint(solver):
    constraint = plane(3)
    sampler = MMPS(correlated(LogLogit()), constraint, sigma_y=0.0, solver=solver, rtol=0.0)
    x_0 = sampler.estimate(normal(5, 6, seed=4), T)
    assert constraint.violation(x_0).max() < 1e-16


@both_solvers
def test_the_estimate_is_the_linearised_formula_in_general(solver):
    """A mixture, whose Jacobian is symmetric, and residuals that are not linear."""
    cov = torch.stack((covariance(4), torch.eye(4, dtype=torch.float64) / 2))
    prior = GaussianMixture(torch.tensor([0.4, 0.6]), normal(2, 4, seed=1), cov, Cosine())
    A = normal(2, 4, seed=5)

    def h(x):
        return torch.sin(x @ A.T) + x[..., :2] ** 2 - 0.3

    sampler = MMPS(prior, Equality(h, 1e-6), sigma_y=0.2, solver=solver, rtol=0.0)
    x = normal(3, 4, seed=6)
    found = sampler.estimate(x, T)
    alpha, sigma = prior.schedule(T)
    for i in range(3):
        d = prior(x[i : i + 1], T).mean[0]
        V = torch.func.jacrev(lambda v: prior(v[None], T).mean[0])(x[i]) * sigma**2 / alpha
        J = torch.func.jacrev(h)(d)
        S = 0.04 * torch.eye(2) + J @ V @ J.T
        torch.testing.assert_close(found[i], d - V @ J.T @ torch.linalg.solve(S, h(d)))


def test_samples_may_have_any_shape():
    """All residuals are in one system, not one for each last axis."""
    prior, constraint = correlated(LogLogit()), plane(3)
    sampler = MMPS(prior, constraint, sigma_y=0.1, rtol=0.0)
    x = normal(4, 6, seed=4)
    torch.testing.assert_close(
        sampler.estimate(x.reshape(4, 2, 3), T), sampler.estimate(x, T).reshape(4, 2, 3)
    )


def test_the_noise_of_a_residual_is_the_tolerances_share():
    prior, x = correlated(LogLogit()), normal(4, 6, seed=4)
    default = MMPS(prior, plane(3, tolerance=0.27), rtol=0.0).estimate(x, T)
    given = MMPS(prior, plane(3), sigma_y=0.3, rtol=0.0).estimate(x, T)
    torch.testing.assert_close(default, given)


def test_with_much_observation_noise_it_is_the_predictor_corrector(checkerboard):
    options = {"steps": 8, "corrections": 2, "delta": 0.3, "output": "projected"}
    loose = MMPS(checkerboard, CONSTRAINT, sigma_y=1e6, **options)
    free = PredictorCorrector(checkerboard, **options)
    a, b = (s.sample(6, (2,), seed=3, dtype=torch.float64).samples for s in (loose, free))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    near = MMPS(checkerboard, CONSTRAINT, **options).sample(6, (2,), seed=3, dtype=torch.float64)
    assert (near.samples - b).norm(dim=1).min() > 1e-4


@both_solvers
@pytest.mark.parametrize("iterations", [1, 2, 3, 9])
def test_an_estimate_costs_one_backward_evaluation_an_iteration(solver, iterations):
    """None is spent on the product with the solution; and m iterations are enough for m."""
    network = Network(correlated(LogLogit()), Evaluations())
    sampler = MMPS(network, plane(4), solver=solver, iterations=iterations, rtol=0.0)
    sampler.estimate(normal(5, 6, seed=4), T)
    spent = network.evaluations
    assert (spent.forward, spent.backward) == (1, min(iterations, 4))
    assert sampler.cost(4) == (2, 2 * min(iterations, 4))


@both_solvers
def test_the_solver_stops_where_it_is_done(solver):
    """With orthogonal rows and an isotropic prior, all eigenvalues are one."""
    prior = Network(Gaussian(torch.zeros(6), torch.eye(6), LogLogit()), Evaluations())
    rows = torch.linalg.qr(normal(6, 4)).Q.T
    sampler = MMPS(prior, Linear(rows, normal(4), 1e-6), solver=solver, iterations=4)
    sampler.estimate(normal(5, 6, seed=4), T)
    assert prior.evaluations.backward == 1


@both_solvers
def test_where_nothing_is_violated_the_estimate_is_the_denoisers(solver, gaussian):
    network = Network(gaussian, Evaluations())
    sampler = MMPS(network, Inequality(lambda x: x[:, :1] - 50, 1e-6), solver=solver)
    x = normal(5, 2)
    assert torch.equal(sampler.estimate(x, T), gaussian(x, T).mean)
    assert network.evaluations.backward == 0


def test_a_run_costs_what_it_says(gaussian):
    sampler = MMPS(gaussian, CONSTRAINT, steps=5, corrections=3)
    spent = sampler.sample(2, (2,)).evaluations
    assert (spent.forward, spent.backward) == (20, 20) == sampler.budget(residuals=1)


def test_samples_have_the_moments_of_the_conditioned_gaussian():
    """Mean and covariance of a Gaussian given A x = y. For 2000 members and variances up to 0.85
    the standard errors are below 0.021 and 0.027; the bounds are five of them and a bias of 0.03
    from 128 steps: a false-alarm rate below 6e-6 for nine numbers."""
    cov, constraint = covariance(3), plane(1, 3)
    prior = Gaussian(torch.zeros(3), cov / cov.diagonal().max(), LogLogit())
    cov = cov / cov.diagonal().max()
    x = MMPS(prior, constraint, steps=128).sample(2000, (3,), dtype=torch.float64).samples
    A, y = constraint.A, constraint.y
    K = cov @ A.T @ torch.linalg.inv(A @ cov @ A.T)
    torch.testing.assert_close(x.mean(dim=0), K @ y, rtol=0, atol=0.13)
    torch.testing.assert_close(x.T.cov(), cov - K @ A @ cov, rtol=0, atol=0.165)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sigma_y": -1.0}, "sigma_y=.*negative, got -1"),
        ({"solver": "lu"}, "'gmres', 'cg'.*got 'lu'"),
        ({"iterations": 0}, "iterations=.*whole number of at least 1, got 0"),
        ({"corrections": -1}, "corrections"),
        ({"delta": 2.0}, "delta"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        MMPS(gaussian, CONSTRAINT, **options)
