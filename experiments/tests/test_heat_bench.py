import pytest
import torch

from experiments.benches import heat
from experiments.benches.data2d import CURVES, Curves
from experiments.benches.exact import total_variation
from experiments.benches.exact_learned import initial_and_mass, solution
from experiments.benches.heat import CASES, HeatBench
from experiments.tasks.heat import fields, fitted


def draw(n, seed=0):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_solution_nearest_to_a_noisy_one_is_found():
    phi, nu = 6.28 * draw(16) - 3.14, 1 + 4 * draw(16, 1)
    clean = fields(phi, nu, 32)
    found = fitted(clean)
    assert (found[1] - nu).abs().max() <= 0.0025 + 1e-9
    torch.testing.assert_close(
        torch.cos(found[0] - phi), torch.ones(16).double(), atol=1e-9, rtol=0
    )
    noise = torch.randn(16, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    noisy = fitted(clean + 0.05 * noise)
    # two directions of 1,024 are along the solutions
    assert noisy[2] == pytest.approx(torch.full((16,), 0.05).double(), rel=0.15)
    assert (noisy[1] - nu).abs().max() < 0.2


def test_the_truth_of_each_case_scores_as_such(monkeypatch):
    monkeypatch.setattr(heat, "MANY", 2**11)
    for name in CASES:
        bench = HeatBench((name,), range(1), members=256)
        truth = bench.case(bench.settings()[0]).truth(256)
        assert truth["feasible"] == 1
        assert truth["p"] > 1e-4  # false alarms: one in ten thousand
        assert truth["off"] < 2e-3
        # a variance of at most 0.1 at a point, and 256 samples
        assert truth["mmse"] < 20 * 0.1 / 256


def test_the_flow_undoes_a_little_noise():
    posterior = solution(initial_and_mass)
    x = posterior.sample(8, torch.Generator().manual_seed(0)).float()
    assert posterior.constraint.is_feasible(x).all()
    t = torch.tensor(0.1)
    alpha, sigma = posterior.denoiser.schedule(t)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    off = posterior.denoiser(alpha * x + sigma * noise, t).mean - x
    assert off.square().mean().sqrt() < 0.5 * sigma / alpha


@pytest.mark.parametrize("prior", ["checkerboard", "banana"])
def test_curves_pass_through_the_data(prior):
    problem = Curves(prior, denoiser=object())
    x = problem.distribution.sample(2**14, torch.Generator().manual_seed(0)).double()
    for k, name in enumerate(CURVES):
        constraint = problem.constraint(k)
        share = (constraint.violation(x) <= 1e-2).double().mean()
        assert share > 0.01, name
        assert len(problem.ground_truth(constraint, x)) > 0.8 * share * len(x), name


def test_the_total_variation_of_equal_samples_is_zero_and_of_apart_ones_is_one():
    u = draw(5000)
    assert total_variation(u, u) == pytest.approx(0, abs=1e-3)
    assert total_variation(u, u + 2) == pytest.approx(0.9)  # the last bin has no end
    assert total_variation(u, u / 2) == pytest.approx(0.5, abs=0.02)
