"""The predictor: DDIM and DDPM, of first and second order."""

import math
from itertools import pairwise

import pytest
import torch

from feasibly import Ancestral
from feasibly.oracles import Gaussian
from feasibly.schedules import EDM, VE, VP, Cosine, LogLogit, Rectified, SubVP
from tests.helpers import on, sampled

D = 40
SCHEDULES = [VP(), SubVP(), VE(), EDM(), Cosine(), LogLogit(), Rectified()]


def normal(std, schedule):
    return Gaussian(torch.zeros(D).double(), std**2 * torch.eye(D).double(), schedule)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [LogLogit(1e-2, 1e2, 2.0), VE(1e-2, 1e2)], ids=repr)
def test_ddim_converges_with_order_one(schedule):
    """Against the flow's closed form on N(0, v): x is scaled by sqrt((v + s^2) / (v + t^2))."""
    v = 0.7
    prior = Gaussian(torch.zeros(1), torch.tensor([[v]]), schedule)
    ends = torch.tensor([1.0, 0.0], dtype=torch.float64)
    sigma_1, sigma_0 = schedule(ends)[1].tolist()
    exact = math.sqrt((v + sigma_0**2) / (v + sigma_1**2))
    steps = (64, 128, 256, 512)
    errors = []
    for T in steps:
        kernel = on(Ancestral(steps=T, eta=0.0), prior)
        x = torch.tensor([[100.0]], dtype=torch.float64)
        times = torch.linspace(1, 0, T + 1, dtype=torch.float64)
        for t, s in pairwise(times):
            x = kernel.step(x, t, s).x
        errors.append(abs(x.item() / 100 - exact))
    logs = torch.tensor([[math.log(T), math.log(e)] for T, e in zip(steps, errors, strict=True)])
    slope = (
        torch.linalg.lstsq(torch.stack((torch.ones(4), logs[:, 0]), dim=1), logs[:, 1:])
        .solution[1]
        .item()
    )
    assert slope == pytest.approx(-1, abs=0.1)


def test_ddpm_has_the_posterior_variance():
    """With x_0 known, x_s given x_t has variance s^2 (1 - s^2 / t^2), in VE (methods.md, 0.2)."""
    kernel = on(Ancestral(eta=1.0), Gaussian(torch.zeros(1), torch.eye(1), VE()))
    t, s = torch.tensor([0.7, 0.6], dtype=torch.float64)
    sigma_t, sigma_s = (kernel.denoiser.schedule(v)[1] for v in (t, s))
    x_t, x_0 = torch.full((2, 1), 3.0), torch.full((2, 1), 0.5)
    moves = [
        kernel.predict(x_t, x_0, t, s, lambda like, z=z: torch.full_like(like, z))
        for z in (0.0, 1.0)
    ]
    mean = x_0 + (x_t - x_0) * sigma_s**2 / sigma_t**2
    torch.testing.assert_close(moves[0].double(), mean.double())
    variance = (moves[1] - moves[0]).double() ** 2
    torch.testing.assert_close(
        variance,
        sigma_s**2 * (1 - sigma_s**2 / sigma_t**2) * 1.0 + torch.zeros(2, 1, dtype=torch.float64),
    )


@pytest.mark.slow
def test_samples_have_the_law_of_the_data(gaussian):
    """Mean and covariance of 20,000 DDPM samples. Their standard error is 0.01; with five
    numbers at five standard errors, the false-alarm rate is 3e-6, plus a bias of 0.01."""
    x = sampled(on(Ancestral(steps=64), gaussian), 20_000, (2,)).samples.double()
    assert x.mean(dim=0).abs().max() < 0.05
    torch.testing.assert_close(
        x.T.cov(), torch.tensor([[1.0, 0.6], [0.6, 1.0]]).double(), rtol=0, atol=0.06
    )


def test_without_a_constraint_finite_members_are_feasible(gaussian):
    result = sampled(on(Ancestral(steps=4), gaussian), 3, (2,))
    assert result.feasible.all()
    assert result.tolerance == math.inf
    assert result.evaluations.forward == 5  # four steps and the denoised output
    assert math.isnan(result.trace[-1].median)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_default_is_within_two_per_cent_of_the_spread(schedule):
    # the standard deviation of 500 members of 40 values has a standard error of 0.5 %, and the
    # bias is below 0.6 %: each of 14 comparisons fails for one seed in 400
    for std in (0.1, 1.0):
        found = sampled(on(Ancestral(), normal(std, schedule)), 500, (D,), dtype=torch.float64)
        assert found.samples.std().item() == pytest.approx(std, rel=0.02)


def test_noise_levels_are_uniform_in_their_logarithm():
    for schedule in SCHEDULES:
        kernel = on(Ancestral(steps=16), normal(1.0, schedule))
        times = kernel.times()
        assert (times[0], times[-1]) == (1, 0)
        steps = kernel.log_level(times).diff()
        torch.testing.assert_close(steps, steps.mean().expand(16), rtol=1e-6, atol=0)
        assert [kernel.index(times[k]) for k in (0, 5, 16)] == [0, 5, 16]
        inner = times[1:-1]
        found = kernel.times_at(kernel.log_level(inner))
        torch.testing.assert_close(found, inner, rtol=0, atol=1e-12)


def test_a_first_order_step_is_the_published_one():
    """DDPM's, whose recursion for a Gaussian is known: the spread is too narrow by a tenth."""
    prior = normal(0.5, VP())
    kernel = on(Ancestral(order=1, spacing="time", eta=0.0), prior)
    x, times = torch.ones(1, D).double(), kernel.times()
    t, s = times[10], times[11]
    step = kernel.step(x, t, s, memory=kernel.step(x, times[9], t).memory)
    d = prior(x, t).mean
    (a_t, s_t), (a_s, s_s) = prior.schedule(t), prior.schedule(s)
    torch.testing.assert_close(step.x, a_s * d + s_s * (x - a_t * d) / s_t)


def test_a_second_order_step_is_exact_where_estimates_are_linear_in_the_log_level():
    """Then the midpoint rule has no error but that of its weight."""
    prior = normal(1.0, LogLogit())
    kernel = on(Ancestral(eta=0.0), prior)
    times = kernel.times()
    x = torch.zeros(1, D).double()
    slope = torch.full_like(x, 0.3)
    last, now, then = (kernel.log_level(t) for t in times[10:13])
    before = kernel.step(x, times[10], times[11]).memory._replace(x_0=slope * last)
    mean, _ = kernel.second(x, slope * now, times[11], times[12], before)
    ahead, _ = kernel.transition(x, slope * (now + then) / 2, times[11], times[12])
    torch.testing.assert_close(mean, ahead)


def test_a_step_of_second_order_has_the_variance_of_the_data_given_a_state():
    """For white noise the step before tells it exactly, and a share 2 / D is left out. The mean
    is then that of x_s given x_t, but for this share of an extrapolation."""
    prior = normal(0.7, LogLogit())
    kernel = on(Ancestral(steps=16), prior)
    times = kernel.times()
    x = torch.randn(5, D, generator=torch.Generator().manual_seed(0)).double()
    _, before, last = kernel.step(x, times[6], times[7])
    x, (t, s) = last.mean + x, times[7:9]
    now = prior(x, t).mean
    mean, std = kernel.second(x, now, t, s, last)
    _, fresh = kernel.transition(x, now, t, s)
    (a_t, s_t), (a_s, s_s) = prior.schedule(t), prior.schedule(s)
    variance, factor = a_s**2 * 0.49 + s_s**2, a_t / a_s  # x_t is x_s plus noise after a factor
    gain = factor * variance / (a_t**2 * 0.49 + s_t**2)
    more = variance * (1 - factor * gain) - fresh**2
    left = 2 / D
    torch.testing.assert_close(std.square().flatten() - fresh**2, ((1 - left) * more).expand(5))
    extrapolated = kernel.reach(t, s) * (now - before) / 2
    torch.testing.assert_close(mean, gain * x + left * extrapolated)
