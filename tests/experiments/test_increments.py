import math

import pytest
import torch

from experiments.benches.increments import (
    INCREMENTS,
    LENGTH,
    Increments,
    gaussian,
    operators,
    steps,
    task,
    tridiagonal,
)
from experiments.studies import increments as study
from feasibly.oracles import Gaussian
from feasibly.schedules import EDM


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_study_has_all_laws_and_operators():
    assert tuple(INCREMENTS) == study.LAWS
    assert tuple(operators()) == study.OPERATORS


@pytest.mark.parametrize("name", INCREMENTS)
def test_variances_given_increments_have_the_law_of_both(name):
    """Increments of sampled variances have the law again: a Gibbs step keeps it. The false-alarm
    rate of the test of quantiles is below 1e-4."""
    law, n = INCREMENTS[name], 200_000
    u = law.increments((n,), seeded())
    s = law.variances(u, seeded(1))
    again = s.sqrt() * torch.randn(n, generator=seeded(2), dtype=torch.float64)
    levels = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    shares = (again <= u.quantile(levels)[:, None]).double().mean(dim=1)
    assert ((shares - levels).abs() < 5 * (levels * (1 - levels) * 2 / n).sqrt()).all()


def test_the_density_is_that_of_the_increments():
    u = torch.linspace(-300, 300, 600_001, dtype=torch.float64)
    for law in INCREMENTS.values():
        p = law.log_density(u).exp()
        sample = law.increments((100_000,), seeded())
        inside = p[u.abs() <= 1].sum() / p.sum()
        assert (sample.abs() <= 1).double().mean() == pytest.approx(inside.item(), abs=0.01)


def test_factors_solve_and_sample_with_a_precision():
    s = torch.rand(1, 6, generator=seeded(), dtype=torch.float64) + 0.1
    diagonal, beside = tridiagonal(s, torch.full((1, 1), 2.0).double())
    D = steps(torch.eye(6).double()).T
    P = D.T @ torch.diag(1 / s[0]) @ D + 2 * torch.eye(6).double()
    torch.testing.assert_close(diagonal[0], P.diagonal())
    torch.testing.assert_close(beside[0], P.diagonal(1))
    b = torch.arange(6).double()[None].expand(50_000, -1)
    many = diagonal.expand(50_000, -1), beside.expand(50_000, -1)
    mean, sample = gaussian(*many, b, seeded())
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
    """Whose samples are of other code. Errors of six standard errors are no chance."""
    posed = task("Laplace", "denoising", 1)
    exact, mean = posed.posterior(48, seeded(5))
    found = posed.denoiser().mean(posed.y, torch.tensor(posed.noise))
    spread = exact.var(dim=1).mean().sqrt()
    assert (found - mean).square().mean().sqrt() < 0.2 * spread
    assert (exact.mean(dim=1) - mean).square().mean().sqrt() < 2 * spread / math.sqrt(48)


def test_the_truth_has_no_gap_and_covers_what_is_asked():
    assert study.gap(torch.ones(1, 4), torch.full((1, 4), 0.1), torch.zeros(1, 4)).item() == (
        pytest.approx(20)
    )
    log_p = torch.rand(500, 32, generator=seeded(), dtype=torch.float64)
    exact = torch.rand(500, 64, generator=seeded(1), dtype=torch.float64)
    assert study.coverage(log_p, exact).mean().item() == pytest.approx(0.9, abs=0.015)
    assert study.coverage(log_p / 2 + 0.5, exact).mean().item() < 0.6
