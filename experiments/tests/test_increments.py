import math

import pytest
import torch

from experiments.studies import increments as study
from experiments.tasks.increments import (
    INCREMENTS,
    LENGTH,
    Increments,
    factor,
    gaussian,
    steps,
    task,
)
from feasibly.oracles import Gaussian
from feasibly.schedules import EDM


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", INCREMENTS)
@pytest.mark.parametrize("u", [1.0, 3.0])
def test_variances_given_an_increment_have_the_slope_of_its_density(name, u):
    """As (log p)'(u) = -E[1 / s | u] u. The false-alarm rate is below 1e-6."""
    of, at = INCREMENTS[name], torch.tensor(u, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(of.log_density(at), at)
    precision = 1 / of.variances(torch.full((200_000,), u).double(), seeded(), (200_000,))
    error = precision.std().item() / math.sqrt(len(precision))
    assert precision.mean().item() == pytest.approx(-slope.item() / u, abs=5 * error + 1e-12)


def test_the_density_is_that_of_the_increments():
    """The false-alarm rate is below 1e-6."""
    u = torch.linspace(-300, 300, 600_001, dtype=torch.float64)
    for of in INCREMENTS.values():
        p = of.log_density(u).exp()
        sample = of.increments((100_000,), seeded())
        inside = p[u.abs() <= 1].sum() / p.sum()
        assert (sample.abs() <= 1).double().mean() == pytest.approx(inside.item(), abs=0.01)


def test_factors_solve_and_sample_with_a_precision():
    """The false-alarm rate is below 1e-6."""
    s = torch.rand(1, 6, generator=seeded(), dtype=torch.float64) + 0.1
    D = steps(torch.eye(6).double()).T
    P = D.T @ torch.diag(1 / s[0]) @ D + 2 * torch.eye(6).double()
    L = factor(D, s, 2 * torch.eye(6).double()).expand(50_000, -1, -1)
    b = torch.arange(6).double().expand(50_000, -1)
    noise = torch.randn(50_000, 6, generator=seeded(), dtype=torch.float64)
    mean, sample = gaussian(L, b, noise)
    torch.testing.assert_close(mean[0], torch.linalg.solve(P, b[0]))
    torch.testing.assert_close(sample.T.cov(), torch.linalg.inv(P), rtol=0, atol=0.02)


def test_normal_increments_have_the_denoiser_of_a_gaussian_and_its_derivative():
    D = torch.linalg.inv(steps(torch.eye(LENGTH).double()).T)
    schedule = EDM(2e-3, 80.0)
    exact = Gaussian(torch.zeros(LENGTH), 0.25 * D @ D.T, schedule)
    found = Increments(INCREMENTS["normal"], schedule)
    x = torch.randn(3, LENGTH, generator=seeded(), dtype=torch.float64)
    v = torch.randn(3, LENGTH, generator=seeded(1), dtype=torch.float64)
    results = []
    for model in (exact, found):
        state = x.clone().requires_grad_()
        mean = model.mean(state, torch.tensor(0.7))
        results.append((mean.detach(), torch.autograd.grad(mean, state, v)[0]))
    torch.testing.assert_close(results[0], results[1])


def test_the_denoiser_of_laplace_s_increments_is_the_mean_of_the_posterior():
    """The posterior's Gibbs sampler is other code. Over 40 seeds the error was 0.027 at most."""
    posed = task("Laplace", "denoising", 1)
    exact, mean = posed.posterior(16, seeded(5))
    found = posed.denoiser().mean(posed.y, torch.tensor(posed.noise))
    spread = exact.var(dim=1).mean().sqrt()
    assert (found - mean).square().mean().sqrt() < 0.1 * spread
    assert (exact.mean(dim=1) - mean).square().mean().sqrt() < 2 * spread / math.sqrt(16)


def test_the_truth_has_no_gap_and_covers_what_is_asked():
    """The false-alarm rate is below 1e-6."""
    best = torch.full((1, 4), 0.1)
    assert study.gap(best, best, torch.zeros(1, 4)).item() == 0
    assert study.gap(torch.ones(1, 4), torch.full((1, 4), 0.1), torch.zeros(1, 4)).item() == (
        pytest.approx(20)
    )
    log_p = torch.rand(500, 32, generator=seeded(), dtype=torch.float64)
    exact = torch.rand(500, 64, generator=seeded(1), dtype=torch.float64)
    assert study.coverage(log_p, exact).mean().item() == pytest.approx(0.9, abs=0.015)
    assert study.coverage(log_p / 2 + 0.5, exact).mean().item() < 0.6


@pytest.mark.parametrize("label", [study.TRUTH, study.DEFAULT, study.THEIRS])
def test_a_setting_is_measured(label, monkeypatch):
    for name, few in (("SIGNALS", 2), ("MEMBERS", 20), ("REFERENCES", 8)):
        monkeypatch.setattr(study, name, few)
    study._posed.cache_clear()
    setting = {"increments": "normal", "operator": "imputation", "label": label}
    if found := study.measure(setting):  # else there is no checkout
        assert [len(found[0][name]) for name in ("gap", "coverage", "std")] == [2, 2, 2]
    study._posed.cache_clear()
