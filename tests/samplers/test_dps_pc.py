"""DPS with a corrector."""

import pytest
import torch

from feasibly import Linear, PredictorCorrector
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.oracles import Gaussian
from feasibly.samplers import DPS, DPSPC
from feasibly.schedules import LogLogit, Rectified

CONSTRAINT = LevelSet(GaussianRandomField(3))
pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("corrections", [0, 1, 3])
def test_without_guidance_it_is_the_predictor_corrector(corrections, checkerboard):
    options = {"steps": 8, "corrections": corrections, "delta": 0.3}
    guided = DPSPC(checkerboard, CONSTRAINT, zeta=0.0, **options).sample(6, (2,), seed=3)
    free = PredictorCorrector(checkerboard, **options).sample(6, (2,), seed=3)
    assert torch.equal(guided.samples, free.samples)


@pytest.mark.parametrize("units", ["vp", "state"])
def test_without_corrections_it_is_dps(units, checkerboard):
    options = {"steps": 8, "zeta": 0.2, "units": units}
    none = DPSPC(checkerboard, CONSTRAINT, corrections=0, **options).sample(6, (2,), seed=3)
    dps = DPS(checkerboard, CONSTRAINT, **options).sample(6, (2,), seed=3)
    assert torch.equal(none.samples, dps.samples)


@pytest.mark.parametrize("schedule", [LogLogit(), Rectified()], ids=repr)
@pytest.mark.parametrize("units", ["vp", "state"])
def test_the_correctors_guidance_is_scaled_with_its_noise(schedule, units):
    """From the end of DPS's step, sqrt(delta) zeta_s times the gradient at s: of N(0, I) and a
    linear constraint, A^T r / |r| over alpha (1 + sigma^2 / alpha^2)."""
    prior = Gaussian(torch.zeros(4), torch.eye(4), schedule)
    constraint = Linear(normal(2, 4), normal(2, seed=1), tolerance=1e-6)
    options = {"zeta": 0.6, "units": units}
    sampler = DPSPC(prior, constraint, corrections=1, delta=0.3, **options)
    x, noise = normal(3, 4, seed=2), normal(2, 3, 4, seed=3)
    draws = iter(noise)
    x_s, x_0, _ = sampler.step(x, T, S, lambda like: next(draws))

    y = DPS(prior, constraint, **options).step(x, T, S, lambda like: noise[0]).x
    alpha, sigma = schedule(S)
    shrink = alpha / (alpha**2 + sigma**2)
    estimate = shrink * y
    r = estimate @ constraint.A.T - constraint.y
    gradient = shrink * r / r.norm(dim=1, keepdim=True) @ constraint.A
    unit = alpha**2 + sigma**2 if units == "vp" else 1.0
    langevin = alpha * estimate + 0.7**0.5 * (y - alpha * estimate)
    expected = langevin + 0.3**0.5 * (sigma * noise[1] - 0.6 * unit * gradient)
    torch.testing.assert_close(x_s, expected)
    torch.testing.assert_close(x_0, estimate)  # the latest


def test_every_correction_costs_a_forward_and_a_backward_evaluation(gaussian):
    sampler = DPSPC(gaussian, CONSTRAINT, steps=5, corrections=3)
    spent = sampler.sample(2, (2,)).evaluations
    assert (spent.forward, spent.backward) == (21, 20) == sampler.budget()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zeta": -1.0}, "DPSPC.*zeta=.*negative"),
        ({"units": "edm"}, "DPSPC.*one of .*got 'edm'"),
        ({"corrections": -1}, "corrections"),
        ({"delta": 0.0}, "delta"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        DPSPC(gaussian, CONSTRAINT, **options)
