"""Trust Sampling."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from feasibly import Ancestral, Linear
from feasibly.denoisers import Denoiser
from feasibly.errors import SamplingError
from feasibly.network import Evaluations, counted
from feasibly.oracles import Gaussian
from feasibly.problem import DryRun
from feasibly.randomness import MemberNoise
from feasibly.samplers import TrustSampling
from feasibly.schedules import Cosine, LogLogit
from tests.helpers import on, sampled
from tests.samplers.conftest import COV, CURVE, SCHEDULES, S, T, normal, plane, times

pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")


def size_of_noise(prior, mean, t):
    alpha, sigma = prior.schedule(t)
    return ((mean - alpha * prior(mean, t).mean) / sigma).norm(dim=1)


def seen(*shape, dtype=torch.float64):
    return DryRun(torch.zeros(2, *shape, dtype=dtype), None)


class Isotropic(Denoiser):
    """Of N(0, I), for samples of any shape; counts its calls."""

    calls = 0

    def mean(self, x, sigma):
        self.calls += 1
        return x / (1 + sigma**2)


@SCHEDULES
@pytest.mark.parametrize("iterations", [1, 3])
def test_trusted_means_take_steps_of_fixed_length_down_the_gradient(schedule, iterations):
    """Before the noise is added, and with the network at the time that the step came from."""
    prior = Gaussian(torch.zeros(4), torch.eye(4), schedule)
    constraint = plane(2, 4)
    kernel = on(
        TrustSampling(iterations=iterations, length=0.2, bound=math.inf), prior, constraint
    )
    x, z = normal(3, 4, seed=2), normal(3, 4, seed=3)
    x_s, x_0, _ = kernel.step(x, T, S, lambda like: z)

    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(T), schedule(S)
    shrink = alpha_t / (alpha_t**2 + sigma_t**2)
    free = on(Ancestral(), prior)
    mean = free.step(x, T, S, torch.zeros_like).x
    noise = free.step(x, T, S, lambda like: z)[0] - mean
    for _ in range(iterations):
        estimate = shrink * mean
        gradient = constraint.residual(estimate) @ constraint.A  # up to its length
        length = 0.2 * (alpha_s**2 + sigma_s**2).sqrt()
        mean = mean - length * gradient / gradient.norm(dim=1, keepdim=True)
    torch.testing.assert_close(x_s, mean + noise)
    torch.testing.assert_close(x_0, estimate)


def test_members_beyond_the_bound_do_not_move(gaussian):
    x = 3 * normal(12, 2)
    mean = on(Ancestral(), gaussian).step(x, T, S, torch.zeros_like).x
    sizes = size_of_noise(gaussian, mean, T)
    bound = sizes.median().item()
    kernel = on(TrustSampling(iterations=1, bound=bound), gaussian, CURVE)
    moved = kernel.step(x, T, S, torch.zeros_like).x
    beyond = sizes > bound
    assert 0 < beyond.sum() < 12
    assert torch.equal(moved[beyond], mean[beyond])
    # the others by one length each
    rho = (1 + gaussian.schedule(S)[1] ** 2).sqrt()
    torch.testing.assert_close(
        (moved - mean)[~beyond].norm(dim=1), (0.1 * rho).expand(int((~beyond).sum()))
    )


def test_a_member_that_leaves_the_bound_rests(gaussian):
    """After a step across the bound, no more are made, although trust might come back."""
    away = Linear(torch.tensor([[1.0, 0.0]]).double(), torch.tensor([50.0]).double(), 1e-6)
    x = torch.tensor([[1.0, 0.5]]).double()
    options = {"length": 1.0}
    mean = on(Ancestral(), gaussian).step(x, T, S, torch.zeros_like).x
    single = on(TrustSampling(iterations=1, bound=math.inf, **options), gaussian, away)
    once = single.step(x, T, S, torch.zeros_like).x
    sizes = [size_of_noise(gaussian, v, T).item() for v in (mean, once)]
    assert sizes[0] < sizes[1]
    spent = Evaluations()
    kernel = on(TrustSampling(iterations=9, bound=sum(sizes) / 2, **options), gaussian, away)
    with counted(spent):
        found = kernel.step(x, T, S, torch.zeros_like).x
    torch.testing.assert_close(found, once)
    assert (spent.forward, spent.backward) == (3, 1)


@pytest.mark.parametrize("quantile", [0.5, 0.99, 1.0])
@pytest.mark.parametrize("schedule", [LogLogit(), Cosine()], ids=repr)
def test_the_bound_is_the_quantile_of_an_unconditional_run(quantile, schedule):
    prior = Gaussian(torch.zeros(2), COV, schedule)
    kernel = on(TrustSampling(steps=7, quantile=quantile), prior, CURVE).prepare(seen(2))

    free = on(Ancestral(steps=7), prior)
    noise = MemberNoise(2**32 - 1, range(64), (2,), dtype=torch.float64)
    alpha, sigma = schedule(times(7)[0])
    x, expected = (alpha**2 + sigma**2).sqrt() * noise(), []
    for t, s in pairwise(times(7)):
        mean = free.step(x, t, s, torch.zeros_like).x
        expected.append(size_of_noise(prior, mean, t).quantile(quantile).item())
        x = free.step(x, t, s, noise).x
    assert [kernel.bound_at(t) for t in times(7)[:-1]] == pytest.approx(expected)


def test_every_step_is_tested_against_the_bound_of_its_own(gaussian):
    """Between the extremes of the bounds, so that one bound for all would decide otherwise."""
    kernel = on(TrustSampling(steps=5, iterations=1), gaussian, CURVE).prepare(seen(2))
    assert max(kernel.bounds) > 1.2 * min(kernel.bounds)
    x = 2 * normal(64, 2)
    for bound, (t, s) in zip(kernel.bounds, pairwise(times(5)), strict=True):
        given = replace(kernel, bound=bound)
        a, b = (v.step(x, t, s, torch.zeros_like).x for v in (kernel, given))
        assert torch.equal(a, b)


def test_bounds_are_calibrated_once_and_for_the_shape_of_the_problem():
    denoiser = Isotropic(LogLogit())
    kernel = on(TrustSampling(steps=6), denoiser, CURVE)
    small, large = (kernel.prepare(seen(n)) for n in (4, 400))
    assert denoiser.calls == 2 * 4 * 2 * 6  # four groups of 16 members, two calls a step
    assert small.prepare(seen(4)) is small
    assert kernel.bounds is None
    # the noise has sqrt(D) of size, within its spread of about one
    for few, many in zip(small.bounds, large.bounds, strict=True):
        assert few < 0.5 * many


def test_steps_without_bounds_and_bounds_of_other_steps_are_refused(gaussian):
    with pytest.raises(ValueError, match="needs its bounds"):
        on(TrustSampling(), gaussian, CURVE).step(normal(1, 2), T, S)
    kernel = on(TrustSampling(steps=6), gaussian, CURVE).prepare(seen(2))
    with pytest.raises(ValueError, match="a bound for each of 12 steps, got 6"):
        replace(kernel, steps=12)
    assert len(replace(kernel, steps=12, bounds=None).prepare(seen(2)).bounds) == 12


def test_calibration_is_not_counted():
    denoiser = Isotropic(LogLogit())
    line = Linear(torch.tensor([[1.0, -2.0]]), torch.tensor([0.3]), tolerance=1e-6)
    kernel = on(TrustSampling(steps=6, iterations=2), denoiser, line)
    spent = sampled(kernel, 3, (2,), attempts=2).evaluations.forward
    prepared = kernel.prepare(seen(2, dtype=torch.float32))
    again = sampled(prepared, 3, (2,), attempts=2).evaluations.forward
    assert spent == again <= 2 * kernel.budget()[0]
    # the dry runs make 20 calls each, the calibrations of the first run and of `prepare` 48
    assert denoiser.calls == 2 * spent + 2 * 20 + 2 * 4 * 2 * 6


def test_a_calibration_that_breaks_down_says_so():
    def broken(x_t, t):
        return x_t * torch.where(t < 0.4, torch.nan, 0.5)

    broken.schedule = LogLogit()
    with pytest.raises(SamplingError, match="calibrates the bound"):
        sampled(on(TrustSampling(steps=6), broken, CURVE), 3, (2,))


def test_a_given_bound_needs_no_calibration():
    denoiser = Isotropic(LogLogit())
    kernel = on(TrustSampling(steps=3, bound=2.5), denoiser, CURVE)
    assert kernel.prepare(seen(2)) is kernel
    assert kernel.bound_at(T) == 2.5
    assert denoiser.calls == 0


def test_rested_members_are_asked_no_more(gaussian):
    """One forward evaluation for the prediction, one for the test."""
    kernel = on(TrustSampling(steps=4, iterations=5, bound=1e-9), gaussian, CURVE)
    spent = sampled(kernel, 3, (2,)).evaluations
    assert (spent.forward, spent.backward) == (8, 0)
    assert spent.member_forward == 24
