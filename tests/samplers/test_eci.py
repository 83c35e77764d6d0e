"""Extrapolation, correction, interpolation."""

import pytest
import torch

from feasibly import Bounds, Linear
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.samplers import ECI
from feasibly.sampling import trajectory
from feasibly.schedules import Cosine, LogLogit, Rectified

LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)
COV = torch.tensor([[1.0, 0.6], [0.6, 1.0]])


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stream():
    return MemberNoise(5, range(4), (2,), dtype=torch.float64)


def draws(n):
    noise = stream()
    return [noise() for _ in range(n)]


def noise_of(sampler):
    """The noise in the state after every step of a run, which is the last that was drawn."""
    found = []
    for k, s, step in trajectory(sampler, stream()):
        if k:
            alpha, sigma = sampler.denoiser.schedule(s)
            found.append((step.x - alpha * step.x_0) / sigma)
    return found


# at the last level of LogLogit the noise is a thousandth of the state, and found to 1e-12
TOLERANCE = {"rtol": 0, "atol": 1e-8}


@pytest.mark.parametrize("schedule", [LogLogit(), Rectified()], ids=repr)
@pytest.mark.parametrize("mixes", [1, 3])
def test_without_resampling_the_initial_noise_is_used_for_ever(schedule, mixes):
    sampler = ECI(Gaussian(torch.zeros(2), COV, schedule), LINE, steps=6, mixes=mixes)
    first = draws(1)[0]
    for noise in noise_of(sampler):
        torch.testing.assert_close(noise, first, **TOLERANCE)


@pytest.mark.parametrize("mixes", [1, 3])
def test_with_resampling_every_interpolation_has_fresh_noise(mixes, gaussian):
    sampler = ECI(gaussian, LINE, steps=6, mixes=mixes, resample=1)
    expected = draws(1 + 6 * mixes)[mixes::mixes]  # the first is that of x_1
    for noise, draw in zip(noise_of(sampler), expected, strict=True):
        torch.testing.assert_close(noise, draw, **TOLERANCE)


def test_noise_is_resampled_after_so_many_interpolations(gaussian):
    """The initial noise is used once less, as the state at the start has used it."""
    sampler = ECI(gaussian, LINE, steps=7, resample=3)
    one, two, three = draws(3)
    for noise, draw in zip(
        noise_of(sampler), [one, one, two, two, two, three, three], strict=True
    ):
        torch.testing.assert_close(noise, draw, **TOLERANCE)


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)
@pytest.mark.parametrize("mixes", [1, 2, 4])
def test_a_step_mixes_at_its_own_level_before_it_goes_on(schedule, mixes):
    prior = Gaussian(torch.zeros(2), COV, schedule)
    sampler = ECI(prior, LINE, mixes=mixes, resample=1)
    x, noise = normal(4, 2), normal(mixes, 4, 2, seed=1)
    given = iter(noise)
    x_s, x_0, _ = sampler.step(x, T, S, lambda like: next(given))
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(T), schedule(S)
    for z in noise[:-1]:
        x = alpha_t * LINE.projection(prior(x, T).mean) + sigma_t * z
    clean = LINE.projection(prior(x, T).mean)
    torch.testing.assert_close(x_0, clean)
    torch.testing.assert_close(x_s, alpha_s * clean + sigma_s * noise[-1])


@pytest.mark.parametrize("constraint", [LINE, Bounds(-0.2, 0.1, 1e-8)], ids=repr)
@pytest.mark.parametrize("resample", [None, 1])
def test_samples_are_feasible_to_rounding(constraint, resample, checkerboard):
    sampler = ECI(checkerboard, constraint, steps=8, resample=resample)
    result = sampler.sample(16, (2,), dtype=torch.float64)
    assert result.violation.max() < 1e-24


def test_every_attempt_has_noise_of_its_own(gaussian):
    """With an output that is never feasible; a member keeps the better attempt."""
    narrow = Linear(LINE.A, LINE.y, tolerance=1e-16)
    sampler, runs = ECI(gaussian, narrow, steps=3, output="state"), []
    for attempts in (1, 2):
        with pytest.warns(match="None of the 16"):
            found = sampler.sample(16, (2,), attempts=attempts, dtype=torch.float64)
        runs.append(found.samples)
    resampled = (runs[0] != runs[1]).any(dim=1)
    assert 0 < resampled.sum() < 16


def test_mixes_are_forward_evaluations(gaussian):
    sampler = ECI(gaussian, LINE, steps=5, mixes=3)
    spent = sampler.sample(2, (2,)).evaluations
    assert (spent.forward, spent.backward) == (15, 0) == sampler.budget()


def test_a_constraint_without_a_closed_form_is_refused(gaussian):
    sampler = ECI(gaussian, LevelSet(GaussianRandomField(0)), steps=3)
    with pytest.raises(ValueError, match=r"closed form.*LevelSet.*no `projection`.*PCFM"):
        sampler.sample(2, (2,))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mixes": 0}, "mixes=.*at least 1, got 0"),
        ({"resample": 0}, "resample=.*whole number of at least 1, got 0"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        ECI(gaussian, LINE, **options)


def test_there_is_no_eta(gaussian):
    with pytest.raises(TypeError, match="eta"):
        ECI(gaussian, LINE, eta=0.0)
