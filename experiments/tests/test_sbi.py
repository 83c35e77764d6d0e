"""The simulators of sbibm's tasks against closed forms, and the test of two samples."""

import math

import pytest
import torch
from torch import Generator, Tensor

from experiments.studies import sbi as study
from experiments.tasks import sbi
from experiments.tasks.sbi import TASKS

N = 4_000


def seeded() -> Generator:
    return Generator().manual_seed(0)


def test_an_epidemic_without_recovery_grows_as_a_logistic_curve() -> None:
    beta = torch.full((N, 1), 0.4)
    x = sbi.sir(torch.cat([beta, torch.zeros(N, 1)], dim=1), seeded()).exp() - 1
    exact = 1000 / (1 + (1e6 - 1) * torch.exp(-0.4 * 17.0 * torch.arange(10)))
    error = (exact * (1 - exact / 1000) + 1 / 12).sqrt() / math.sqrt(N)
    assert ((x.mean(dim=0) - exact).abs() < 5 * error + 1e-3 * exact).all()  # 1 in 10^5


def test_prey_and_predators_keep_what_their_equations_conserve() -> None:
    theta = torch.tensor([[0.9, 0.05, 0.8, 0.04]])
    x = sbi.lotka_volterra(theta.expand(N, 4), seeded()).mean(dim=0)  # logarithms, without errors
    prey, predators = x[:10].exp(), x[10:].exp()
    alpha, beta, gamma, delta = theta[0]
    kept = delta * prey - gamma * x[:10] + beta * predators - alpha * x[10:]
    assert kept.std() < 0.01
    assert prey.std() > 0.1 * prey.mean()  # they move


def test_a_radius_of_two_moons_is_a_tenth() -> None:
    theta = torch.tensor([[0.3, 0.5]]).expand(N, 2)
    x = sbi.two_moons(theta, seeded())
    middle = torch.tensor([0.25 - 0.8 / math.sqrt(2), 0.2 / math.sqrt(2)])
    radius = (x - middle).norm(dim=1)
    assert radius.mean().item() == pytest.approx(0.1, abs=5 * 0.01 / math.sqrt(N))
    assert (x[:, 0] >= middle[0] - 1e-6).all()


def test_points_of_slcp_have_the_covariance_of_their_parameters() -> None:
    theta = torch.tensor([[0.5, -1.0, 1.2, 0.9, 0.4]]).expand(N, 5)
    points = sbi.slcp(theta, seeded()).sinh().reshape(-1, 2)
    first, second, rho = 1.2**2, 0.9**2, math.tanh(0.4)
    exact = torch.tensor([[first**2, rho * first * second], [rho * first * second, second**2]])
    assert torch.allclose(points.T.cov(), exact, rtol=0.15, atol=0)  # five standard errors
    assert torch.allclose(points.mean(dim=0), theta[0, :2], atol=0.06)


def test_statistics_of_spikes_have_their_mean() -> None:
    theta = torch.linspace(-1, 1, 10)
    X = sbi.design()
    share = (X @ theta).sigmoid()
    x = sbi.bernoulli_glm(theta.expand(N, 10), seeded())
    error = (X.square().T @ (share * (1 - share)) + 1 / 12).sqrt() / math.sqrt(N)
    assert ((x.mean(dim=0) - share @ X).abs() < 5 * error).all()


@pytest.mark.parametrize(
    ("name", "noise"), [("gaussian_linear", 0.1), ("gaussian_mixture", 0.505)]
)
def test_data_are_the_parameters_and_noise_of_a_variance(name: str, noise: float) -> None:
    task = TASKS[name]
    theta = task.theta(task.prior(N, task.parameters, seeded()))
    gap = task.simulate(theta, seeded().manual_seed(1)) - theta
    assert gap.var().item() == pytest.approx(noise, rel=0.08)  # five standard errors
    assert (gap.mean(dim=0).abs() < 5 * (noise / N) ** 0.5).all()


@pytest.mark.parametrize(
    ("name", "quantile", "low", "high"),
    [
        ("two_moons", 0.9, 0.8, 0.8),
        ("gaussian_mixture", 0.9, 8.0, 8.0),
        ("gaussian_linear_uniform", 0.9, 0.8, 0.8),
        ("slcp", 0.9, 2.4, 2.4),
        ("gaussian_linear", 0.8413, 0.3162, 0.3162),
        ("sir", 0.8413, 0.125 * math.exp(0.2), 0.4 * math.exp(0.5)),
        ("lotka_volterra", 0.8413, math.exp(-2.5), math.exp(0.375)),
    ],
)
def test_parameters_have_the_quantiles_of_their_prior(
    name: str, quantile: float, low: float, high: float
) -> None:
    task = TASKS[name]
    theta = task.theta(task.prior(2**16, task.parameters, seeded()))
    found = theta.quantile(quantile, dim=0)
    assert found.min().item() == pytest.approx(low, rel=0.03)
    assert found.max().item() == pytest.approx(high, rel=0.03)


@pytest.mark.parametrize("name", TASKS)
def test_a_state_is_standardized_and_gives_its_parameters_back(name: str) -> None:
    task = TASKS[name]
    mean, std = sbi._standard(name)
    state = task.sample(512, seeded())
    z = (state - mean) / std
    assert z.shape == (512, task.dim)
    assert z.isfinite().all()
    assert (z.mean(dim=0).abs() < 5 / math.sqrt(512)).all()
    assert ((z.std(dim=0) - 1).abs() < 0.3).all()
    theta = task.theta(state[:, : task.parameters])
    assert torch.allclose(task.parameters_of(z), theta, rtol=1e-3, atol=1e-4)


def test_a_classifier_tells_two_samples_apart_only_where_they_differ() -> None:
    pytest.importorskip("sklearn")
    test = study._classifier()

    def normal(shift: float, generator: Generator) -> Tensor:
        return torch.randn(400, 1, generator=generator) + shift

    generator = seeded()
    x, same, other = normal(0, generator), normal(0, generator), normal(4, generator)
    assert abs(test(x, same) - 0.5) < 0.09  # five standard errors of a share
    assert test(x, other) > 0.9


def test_a_row_has_the_mean_of_each_label_over_its_observations() -> None:
    about = {"label": "default", "members": 1000, "task": "slcp"}
    records = [
        about | {"observation": 1, "c2st": 0.6},
        about | {"observation": 2, "c2st": 0.7},
        about | {"observation": 1, "label": "PPR", "error": "failed"},
    ]
    (row,) = study.rows(records)
    assert row["default"] == "0.650 (2)"
    assert row["PPR"] == "failed"
    assert row["published"] == "0.584"
