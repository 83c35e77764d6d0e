"""Whole equations: the exact posterior of Poisson's equation, Darcy flow's data, and the study."""

import pytest
import torch

import feasibly
from experiments.benches.exact_laws import KNOWN, POINTS, burgers
from experiments.benches.exact_poisson import Poisson, poisson
from experiments.tasks.darcy import Physics
from feasibly.schedules import EDM

N = 6
MEMBERS = 128


def normalised(x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Samples in units of the truth's standard deviations, along its principal axes."""
    y = truth.flatten(start_dim=1)
    values, vectors = torch.linalg.eigh(y.T.cov())
    kept = values > 1e-8 * values[-1]
    return (x.flatten(start_dim=1).double() - y.mean(dim=0)) @ (vectors / values.sqrt())[:, kept]


@pytest.mark.parametrize("solved", [True, False])
def test_solutions_are_the_conditional_distribution(solved):
    """By the dense conditional, of the same equation with hardly any noise."""
    one, other = (poisson(N, solved, "edm", form) for form in ("one", "matrix"))
    x = one.sample(4096, torch.Generator().manual_seed(0))
    assert other.constraint.violation(x).max() < 1e-16
    prior = one.denoiser
    assert isinstance(prior, Poisson)
    unit = torch.eye(2 * N * N).double().reshape(-1, 2, N, N)
    C = prior.filtered(prior.values, unit).flatten(start_dim=1)
    A, y = other.constraint.A.double(), other.constraint.y.double()
    S = A @ C @ A.T + 1e-10 * torch.eye(len(A))
    gain = torch.linalg.solve(S, A @ C).T
    mean, cov = gain @ y, C - gain @ A @ C
    apart = (x.flatten(start_dim=1).mean(dim=0) - mean) / cov.diagonal().clamp_min(1e-4).sqrt()
    assert apart.abs().max() < 0.1
    found = x.flatten(start_dim=1).T.cov()
    assert (found - cov).abs().max() < 0.1 * cov.diagonal().max()


@pytest.mark.filterwarnings("ignore:100% of unconditional samples")  # as `solved` means
@pytest.mark.parametrize(
    ("form", "solved"),
    [("one", False), ("noise", False), ("noisy points", False), ("noisy points", True)],
)
def test_default_samples_the_exact_posterior(form, solved):
    """Along each principal axis. Of 128 members, a mean is off by 0.41 with a probability of 3e-6,
    and a standard deviation by a factor of 1.34 likewise."""
    problem = poisson(N, solved, "edm", form)
    result = feasibly.sample(problem.denoiser, problem.constraint, MEMBERS, problem.shape, seed=0)
    assert result.feasible.all()
    z = normalised(result.samples, problem.sample(16384, torch.Generator().manual_seed(0)))
    assert z.mean(dim=0).abs().max() < 0.41
    assert z.std(dim=0).max() < 1.34
    assert z.std(dim=0).min() > 1 / 1.34


@pytest.mark.parametrize("speed", [0.0, 1.0])
def test_samples_of_a_law_meet_it_and_have_the_density_of_their_first_state(speed):
    """By Stein's identities, E[g] = 0 and E[v g] = 1 for a value v and the derivative g of minus
    the log-density: 26 means are within five standard errors of them, all but once in 60,000."""
    law = burgers(speed, "edm")
    x = law.sample(1024, torch.Generator().manual_seed(0))
    assert law.constraint.violation(x).max() < 1e-16
    J = torch.func.vmap(torch.func.jacrev(lambda one: law.constraint.residual(one[None])[0]))(x)
    known = [i for i in range(POINTS) if i in KNOWN]
    free = [i for i in range(POINTS) if i not in KNOWN]
    later = [*known, *range(POINTS, x.shape[1])]
    volume = torch.linalg.slogdet(J[:, :, later])[1]
    assert volume.std() < 1e-9 * volume.abs().mean()
    prior = law.denoiser
    slope = (x - prior.mu) @ (prior.vectors / prior.values) @ prior.vectors.T
    through = torch.linalg.solve(J[:, :, later].mT, slope[:, later, None])
    g = slope[:, free] - (J[:, :, free].mT @ through)[..., 0]
    v = x[:, free]
    for found in (g, (v - v.mean(dim=0)) * g - 1):
        z = found.mean(dim=0) / found.std(dim=0) * len(x) ** 0.5
        assert z.abs().max() < 5


def test_darcy_data_solve_their_equation():
    physics = Physics()
    x = physics.sample(8, torch.Generator().manual_seed(0))
    assert physics.residual(x).abs().max() < 1e-10
    # where a is constant, the residual is that of Poisson's equation
    x[:, 0] = 0
    prior = Poisson(physics.n, EDM(), True)
    u = (physics.mean_p + physics.std_p * x[:, 1]) / prior.unit
    other = prior.equation(torch.stack([u, torch.ones_like(u)], dim=1))
    assert torch.allclose(physics.residual(x).flatten(start_dim=1), -other)
