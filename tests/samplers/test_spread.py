"""Unconditional ensembles have the spread of the data, under every schedule."""

import pytest
import torch

from feasibly import Ancestral, Equality, Linear
from feasibly.errors import InfeasibleWarning
from feasibly.oracles import Gaussian
from feasibly.samplers import MMPS
from feasibly.schedules import EDM, VE, VP, Cosine, LogLogit, Rectified, SubVP

D = 40
SCHEDULES = [VP(), SubVP(), VE(), EDM(), Cosine(), LogLogit(), Rectified()]


def normal(std, schedule):
    return Gaussian(torch.zeros(D).double(), std**2 * torch.eye(D).double(), schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_default_is_within_two_per_cent_of_the_spread(schedule):
    # the standard deviation of 500 members of 40 values has a standard error of 0.5 %, and the
    # bias is below 0.6 %: each of 21 comparisons fails for one seed in 400
    for std in (0.1, 0.5, 1.0):
        found = Ancestral(normal(std, schedule)).sample(500, (D,), dtype=torch.float64)
        assert found.samples.std().item() == pytest.approx(std, rel=0.02)


def test_noise_levels_are_uniform_in_their_logarithm():
    for schedule in SCHEDULES:
        sampler = Ancestral(normal(1.0, schedule), steps=16)
        times = sampler.times()
        assert (times[0], times[-1]) == (1, 0)
        steps = sampler.log_level(times).diff()
        torch.testing.assert_close(steps, steps.mean().expand(16), rtol=1e-6, atol=0)
        assert [sampler.index(times[k]) for k in (0, 5, 16)] == [0, 5, 16]
        inner = times[1:-1]
        found = sampler.times_at(sampler.log_level(inner))
        torch.testing.assert_close(found, inner, rtol=0, atol=1e-12)


def test_a_first_order_step_is_the_published_one():
    """DDPM's, whose recursion for a Gaussian is known: the spread is too narrow by a tenth."""
    prior = normal(0.5, VP())
    sampler = Ancestral(prior, order=1, spacing="time", eta=0.0)
    x, times = torch.ones(1, D).double(), sampler.times()
    t, s = times[10], times[11]
    step = sampler.step(x, t, s, memory=sampler.step(x, times[9], t).memory)
    d = prior(x, t).mean
    (a_t, s_t), (a_s, s_s) = prior.schedule(t), prior.schedule(s)
    torch.testing.assert_close(step.x, a_s * d + s_s * (x - a_t * d) / s_t)


def test_a_second_order_step_is_exact_where_estimates_are_linear_in_the_log_level():
    """Then the midpoint rule has no error but that of its weight."""
    prior = normal(1.0, LogLogit())
    sampler = Ancestral(prior, eta=0.0)
    times = sampler.times()
    x = torch.zeros(1, D).double()
    slope = torch.full_like(x, 0.3)
    last, now, then = (sampler.log_level(t) for t in times[10:13])
    before = sampler.step(x, times[10], times[11]).memory._replace(x_0=slope * last)
    mean, _ = sampler.second(x, slope * now, times[11], times[12], before)
    ahead, _ = sampler.transition(x, slope * (now + then) / 2, times[11], times[12])
    torch.testing.assert_close(mean, ahead)


def test_a_step_of_second_order_has_the_variance_of_the_data_given_a_state():
    """For white noise the step before tells it exactly, and a share 2 / D is left out. The mean
    is then that of x_s given x_t, but for this share of an extrapolation."""
    prior = normal(0.7, LogLogit())
    sampler = Ancestral(prior, steps=16)
    times = sampler.times()
    x = torch.randn(5, D, generator=torch.Generator().manual_seed(0)).double()
    _, before, last = sampler.step(x, times[6], times[7])
    x, (t, s) = last.mean + x, times[7:9]
    now = prior(x, t).mean
    mean, std = sampler.second(x, now, t, s, last)
    _, fresh = sampler.transition(x, now, t, s)
    (a_t, s_t), (a_s, s_s) = prior.schedule(t), prior.schedule(s)
    variance, factor = a_s**2 * 0.49 + s_s**2, a_t / a_s  # x_t is x_s plus noise after a factor
    gain = factor * variance / (a_t**2 * 0.49 + s_t**2)
    more = variance * (1 - factor * gain) - fresh**2
    left = 2 / D
    torch.testing.assert_close(std.square().flatten() - fresh**2, ((1 - left) * more).expand(5))
    extrapolated = sampler.reach(t, s) * (now - before) / 2
    torch.testing.assert_close(mean, gain * x + left * extrapolated)


@pytest.mark.filterwarnings("error")
def test_noise_that_is_given_on_purpose_is_no_miss():
    constraint = Linear(torch.ones(1, D).double(), torch.zeros(1).double(), tolerance=1e-8)
    prior = normal(1.0, LogLogit())
    noisy = MMPS(prior, constraint, steps=16, sigma_y=0.3).sample(8, (D,))
    assert not noisy.feasible.any()
    assert noisy.warnings == []
    nowhere = Equality(lambda x: x[:, :1] ** 2 + 1, tolerance=1e-8)
    with pytest.warns(InfeasibleWarning, match="None of the 8 members"):
        MMPS(prior, nowhere, steps=2).sample(8, (D,))
