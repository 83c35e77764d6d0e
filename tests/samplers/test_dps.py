"""Diffusion Posterior Sampling."""

import pytest
import torch

from feasibly import Ancestral, Inequality, Linear
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.oracles import Gaussian
from feasibly.samplers import DPS
from feasibly.schedules import VP, Cosine, LogLogit, Rectified, Schedule

CONSTRAINT = LevelSet(GaussianRandomField(3))
pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plane():
    return Linear(normal(2, 5), normal(2, seed=1), tolerance=1e-6)


def correlated(schedule, D=5):
    half = normal(D, D, seed=2)
    return Gaussian(normal(D, seed=3), half @ half.T / D + torch.eye(D) / 5, schedule)


def gain(prior, t):
    """The derivative of the Gaussian denoiser with respect to x_t / alpha_t."""
    alpha, sigma = prior.schedule(t)
    cov = prior.vectors * prior.values @ prior.vectors.T
    eye = torch.eye(len(cov), dtype=torch.float64)
    return cov @ torch.linalg.inv(cov + (sigma / alpha) ** 2 * eye)


def test_without_guidance_it_is_ddpm(checkerboard):
    dps = DPS(checkerboard, CONSTRAINT, steps=12, zeta=0.0).sample(8, (2,), seed=3)
    first = Ancestral(checkerboard, steps=12, order=1, spacing="time")
    ddpm = first.sample(8, (2,), seed=3)
    assert torch.equal(dps.samples, ddpm.samples)
    assert not torch.equal(
        DPS(checkerboard, CONSTRAINT, steps=12, zeta=0.1).sample(8, (2,), seed=3).samples,
        ddpm.samples,
    )


@pytest.mark.parametrize("schedule", [LogLogit(), Rectified(), Cosine()], ids=repr)
@pytest.mark.parametrize("units", ["vp", "state"])
def test_guidance_is_the_gradient_of_the_residuals_norm(schedule, units):
    """On a Gaussian and a linear constraint, (A G / alpha)^T r / |r|."""
    prior, constraint = correlated(schedule), plane()
    sampler = DPS(prior, constraint, zeta=0.7, units=units)
    x, z = normal(4, 5, seed=4), normal(4, 5, seed=5)
    x_s, x_0, _ = sampler.step(x, T, S, lambda like: z)

    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(T), schedule(S)
    estimate = prior.mu + (x / alpha_t - prior.mu) @ gain(prior, T).T
    r = estimate @ constraint.A.T - constraint.y
    gradient = r / r.norm(dim=1, keepdim=True) @ constraint.A @ gain(prior, T) / alpha_t
    zeta = 0.7
    if units == "vp":
        zeta *= ((alpha_t**2 + sigma_t**2) * (alpha_s**2 + sigma_s**2)).sqrt()
    free = Ancestral(prior).step(x, T, S, lambda like: z).x
    torch.testing.assert_close(x_0, estimate)
    torch.testing.assert_close(x_s, free - zeta * gradient)


def test_guidance_goes_through_a_nonlinear_denoiser_and_constraint(checkerboard):
    """Against central differences."""
    sampler = DPS(checkerboard, CONSTRAINT, units="state")
    x, h = normal(6, 2), 1e-5
    t, s = torch.tensor([0.5, 0.45], dtype=torch.float64)

    def norm(x):
        return CONSTRAINT.residual(checkerboard(x, t).mean).norm(dim=1)

    shifts = h * torch.eye(2, dtype=torch.float64)
    gradient = torch.stack([(norm(x + e) - norm(x - e)) / (2 * h) for e in shifts], dim=1)
    free = Ancestral(checkerboard).step(x, t, s, torch.zeros_like).x
    guided = sampler.step(x, t, s, torch.zeros_like).x
    torch.testing.assert_close(free - guided, gradient, rtol=1e-5, atol=1e-7)
    assert gradient.norm(dim=1).min() > 1e-3


@pytest.mark.parametrize("schedule", [VP(), Cosine()], ids=repr)
def test_units_agree_where_the_schedule_preserves_the_variance(schedule):
    samples = [
        DPS(correlated(schedule), plane(), steps=6, units=units)
        .sample(4, (5,), dtype=torch.float64)
        .samples
        for units in ("vp", "state")
    ]
    torch.testing.assert_close(*samples)


class Exploding(Schedule):
    """The variance-exploding schedule with the same sigma / alpha as another."""

    def __init__(self, base):
        self.base = base

    def __call__(self, t):
        alpha, sigma = self.base(t)
        return torch.ones_like(t), sigma / alpha


@pytest.mark.parametrize("base", [VP(), Cosine()], ids=repr)
def test_every_schedule_takes_the_steps_of_its_variance_preserving_twin(base):
    x, z = normal(4, 5, seed=4), normal(4, 5, seed=5)
    constraint = plane()
    ends = {}
    for units in ("vp", "state"):
        for schedule in (base, Exploding(base)):
            sampler = DPS(correlated(schedule), constraint, units=units)
            start = x * schedule(T)[0] / base(T)[0]
            x_s, x_0, _ = sampler.step(start, T, S, lambda like: z)
            ends[units, type(schedule)] = torch.cat((x_s / schedule(S)[0], x_0))
    torch.testing.assert_close(ends["vp", type(base)], ends["vp", Exploding])
    # which the units are there for
    assert not torch.allclose(ends["state", type(base)], ends["state", Exploding], rtol=1e-2)


def test_the_norm_is_that_of_each_member():
    """One norm over the batch would shorten the steps of a batch of copies."""
    sampler, x = DPS(correlated(LogLogit()), plane()), normal(1, 5)
    alone = sampler.step(x, T, S, torch.zeros_like).x
    copies = sampler.step(x.expand(9, 5), T, S, torch.zeros_like).x
    torch.testing.assert_close(copies, alone.expand(9, 5))


def test_a_member_that_satisfies_the_constraint_is_not_guided(gaussian):
    """Where the norm has a kink; and its batch is guided all the same."""
    half_plane = Inequality(lambda x: x[:, :1], tolerance=1e-6)
    x = torch.tensor([[-1.0, -1.0], [1.0, 1.0]]).double()
    guided = DPS(gaussian, half_plane).step(x, T, S, torch.zeros_like).x
    free = Ancestral(gaussian).step(x, T, S, torch.zeros_like).x
    assert torch.equal(guided[0], free[0])
    assert guided[1, 0] < free[1, 0]


def test_a_step_costs_a_forward_and_a_backward_evaluation(gaussian):
    sampler = DPS(gaussian, CONSTRAINT, steps=7)
    spent = sampler.sample(3, (2,)).evaluations
    assert (spent.forward, spent.backward) == (8, 7) == sampler.budget()
    assert spent.member_backward == 21


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zeta": -0.1}, "zeta=.*negative, got -0.1"),
        ({"zeta": float("nan")}, "zeta"),
        ({"units": "ve"}, "one of .*'vp', 'state'.*got 've'"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        DPS(gaussian, CONSTRAINT, **options)
