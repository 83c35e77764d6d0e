"""Methods that project the clean estimate: HDC, ReSample, CPS, ECI, PCFM and post-hoc."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch

from feasibly import Ancestral, Decoded, Equality, Linear
from feasibly.minimizers import LBFGS
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.run import trajectory
from feasibly.samplers import CPS, ECI, HDC, PCFM, PostHoc, ReSample
from feasibly.schedules import VE, VP, Cosine, LogLogit, Rectified
from tests.helpers import on, sampled
from tests.samplers.conftest import (
    COV,
    CURVE,
    LINE,
    SCHEDULES,
    STEP,
    S,
    T,
    correlated,
    denoised,
    given,
    normal,
    plane,
    times,
)

pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")


def plain(schedule):
    return Gaussian(torch.zeros(2), COV, schedule)


@SCHEDULES
@pytest.mark.parametrize("gamma", [0.1, 40.0])
def test_resampling_multiplies_two_gaussians(schedule, gamma):
    """The renoised projection, N(alpha_s x_0, sigma_s^2), and N(x_s', v)."""
    kernel = on(HDC(gamma=gamma), plain(schedule), LINE)
    x_s, x_0 = normal(4, 2), normal(4, 2, seed=1)
    (alpha_t, sigma_t), (alpha, sigma) = schedule(T), schedule(S)
    v = gamma * sigma**2 * (1 - (alpha_t * sigma / (alpha * sigma_t)) ** 2)
    variance = 1 / (1 / sigma**2 + 1 / v)
    mean = kernel.resample(x_s, x_0, T, S, torch.zeros_like)
    std = kernel.resample(x_s, x_0, T, S, torch.ones_like) - mean
    torch.testing.assert_close(mean, variance * (alpha * x_0 / sigma**2 + x_s / v))
    torch.testing.assert_close(std.square(), variance.expand(4, 2))


def test_hdc_resamples_between_the_projection_and_the_unprojected_prediction():
    prior, x, z = plain(Cosine()), normal(5, 2), normal(5, 2, seed=1)
    x_s, x_0, _ = on(HDC(minimize=STEP), prior, LINE).step(x, T, S, lambda like: z)
    ddim = on(Ancestral(eta=0.0), prior).step(x, T, S).x
    torch.testing.assert_close(x_0, LINE.projection(prior(x, T).mean))
    expected = on(HDC(), prior, LINE).resample(ddim, x_0, T, S, lambda like: z)
    torch.testing.assert_close(x_s, expected)


@pytest.mark.parametrize("every", [1, 4, 100])
def test_hdc_projects_at_every_so_manieth_step_and_at_the_last_and_else_is_ddim(every, gaussian):
    kernel = on(HDC(steps=10, every=every, minimize=STEP), gaussian, LINE)
    ddim, x = on(Ancestral(eta=0.0), gaussian), normal(4, 2)
    for left, (t, s) in zip(range(9, -1, -1), pairwise(times(10)), strict=True):
        step, free = kernel.step(x, t, s), ddim.step(x, t, s)
        projected = left % every == 0
        assert bool((LINE.violation(step.x_0) < 1e-12).all()) == projected
        assert torch.equal(step.x, free.x) == torch.equal(step.x_0, free.x_0) != projected


def test_feasible_samples_are_not_moved_by_the_projection(gaussian):
    kernel = on(HDC(), gaussian, Equality(lambda x: 0 * x[:, :1], 1e-6))
    x = normal(5, 2)
    assert torch.equal(kernel.step(x, T, S).x_0, gaussian(x, T).mean)


@dataclass(frozen=True)
class Recorded(ReSample):
    """Writes down how many steps are left wherever it looks ahead, and what it corrects."""

    left: list[int] = field(default_factory=list)
    in_pixels: list[bool] = field(default_factory=list)

    def look_ahead(self, x_t, t, randn):
        self.left.append(round(t.item() * self.steps))
        return super().look_ahead(x_t, t, randn)

    def correct(self, x_0, in_pixels=False):
        self.in_pixels.append(in_pixels)
        return super().correct(x_0, in_pixels)


@SCHEDULES
def test_resamples_guidance_is_that_of_dps_scaled_by_the_share_of_the_signal(schedule):
    """zeta abar_t rho_s rho_t times the gradient of the norm."""
    prior, constraint = correlated(schedule, 4), plane(2, 4)
    kernel = on(ReSample(steps=10, zeta=0.7, minimize=STEP), prior, constraint)
    x, (t, s) = normal(3, 4, seed=2), torch.tensor([0.9, 0.8], dtype=torch.float64)
    x_s, x_0, _ = kernel.step(x, t, s)  # in the first stage
    (alpha, sigma), (alpha_s, sigma_s) = schedule(t), schedule(s)
    estimate, slope = denoised(prior, x, t)
    r = constraint.residual(estimate)
    gradient = r / r.norm(dim=1, keepdim=True) @ constraint.A @ slope
    total = alpha**2 + sigma**2
    zeta = 0.7 * alpha**2 / total * (total * (alpha_s**2 + sigma_s**2)).sqrt()
    free = on(Ancestral(eta=0.0), prior).step(x, t, s).x
    torch.testing.assert_close(x_s, free - zeta * gradient)
    torch.testing.assert_close(x_0, estimate)


@pytest.mark.parametrize(("every", "travel"), [(1, 2), (2, 5), (5, 0), (100, 1)])
def test_the_first_third_does_not_travel_and_the_second_projects_in_pixels(
    every, travel, gaussian
):
    options = {"every": every, "travel": travel, "zeta": 0.0, "minimize": STEP}
    kernel = on(Recorded(steps=20, **options), gaussian, LINE)
    spent = sampled(kernel, 2, (2,), dtype=torch.float64).evaluations
    assert kernel.left == [n for n in range(12, -1, -1) if n % every == 0]
    # stages of 7, 7 and 6 steps; the last projection is the sample's own
    assert kernel.in_pixels == [*(n > 5 for n in kernel.left), False]
    forward, backward = kernel.budget()
    assert spent.backward == backward == 20
    # travels are shorter at the end of time, by travel (travel + 1) / 2 steps at most
    assert forward - travel * (travel + 1) / 2 <= spent.forward <= forward


@pytest.mark.parametrize("travel", [0, 1, 3, 50])
def test_time_travel_goes_on_by_ddim_and_stops_at_the_end_of_time(travel, checkerboard):
    kernel = on(ReSample(steps=10, travel=travel, minimize=STEP), checkerboard, LINE)
    ddim = on(Ancestral(steps=10, eta=0.0), checkerboard)
    x = y = normal(4, 2)
    path = times(10)[6:]  # from four steps before the end
    for t, s in list(pairwise(path))[:travel]:
        y = ddim.step(y, t, s).x
    expected = checkerboard(y, path[min(travel, 4)]).mean
    found = kernel.look_ahead(x, path[0], torch.randn_like)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("travel", [0, 2])
def test_a_travel_ends_in_the_resampling_of_hdc(travel, checkerboard):
    """Around the state that the travel set out from, at its level."""
    t, s = torch.tensor([0.5, 0.4], dtype=torch.float64)
    options = {"steps": 10, "zeta": 0.2, "travel": travel, "gamma": 3.0, "minimize": STEP}
    kernel = on(ReSample(every=1, **options), checkerboard, LINE)
    silent = on(ReSample(every=7, **options), checkerboard, LINE)
    x, z = normal(4, 2), normal(4, 2, seed=1)
    x_s, x_0, _ = kernel.step(x, t, s, lambda like: z)
    before = silent.step(x, t, s).x
    expected = LINE.projection(kernel.look_ahead(before, s, torch.zeros_like))
    torch.testing.assert_close(x_0, expected)
    hdc = on(HDC(gamma=3.0), checkerboard, LINE)
    torch.testing.assert_close(x_s, hdc.resample(before, expected, t, s, lambda like: z))


M = torch.tensor([[2.0, 1.0], [0.0, 0.5]]).double()


def decode(z):
    return z @ M.T


def encode(x):
    return x @ torch.linalg.inv(M).T


def test_the_correction_in_pixels_is_encoded_and_that_in_latents_goes_through_the_decoder(
    gaussian,
):
    """The nearest sample is not the decoded nearest latent: M is no rotation."""
    with_encoder = on(ReSample(minimize=STEP), gaussian, Decoded(LINE, decode, encode))
    without = on(ReSample(minimize=STEP), gaussian, Decoded(LINE, decode))
    z = normal(6, 2)
    in_latents = Linear(LINE.A @ M, LINE.y, tolerance=1e-6).projection(z)
    in_pixels = encode(LINE.projection(decode(z)))
    assert not torch.allclose(in_latents, in_pixels, atol=1e-2)
    torch.testing.assert_close(with_encoder.correct(z, in_pixels=True), in_pixels)
    for found in (with_encoder.finish(z), without.correct(z, in_pixels=True)):
        torch.testing.assert_close(found, in_latents)
    plain = on(ReSample(minimize=STEP), gaussian, LINE)
    torch.testing.assert_close(plain.correct(z, in_pixels=True), LINE.projection(z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_travels_with_fresh_noise_stay_finite(dtype):
    """A travel's times are sums of rounded steps, and end within rounding of zero."""
    for schedule in (LogLogit(), Cosine(), Rectified()):
        for steps in (7, 30, 49):
            kernel = on(ReSample(steps=steps, eta=1.0, travel=steps), plain(schedule), LINE)
            for left in (1, 5, steps // 2):
                t = torch.linspace(1, 0, steps + 1, dtype=dtype)[-1 - left]
                found = kernel.look_ahead(normal(3, 2).to(dtype), t, torch.randn_like)
                assert found.isfinite().all()


@pytest.mark.parametrize("schedule", [VE(1e-2, 1e2), VP(), Cosine()], ids=repr)
def test_the_penalty_of_cps_follows_the_noise_level_to_its_limit(schedule):
    prior = plain(schedule)
    kernel = on(CPS(), prior, LINE)
    for level in (1.0, 0.5, 2.0, 50.0):
        t = kernel.times_at(torch.tensor(level).double().log())
        assert kernel.gamma(t) == pytest.approx(math.exp(1 + level**-2))
    assert kernel.gamma(torch.tensor(0.0)) == 1e5
    assert on(CPS(gamma_max=300.0), prior, LINE).gamma(torch.tensor(0.0)) == 300.0
    unlimited = on(CPS(gamma_max=math.inf), prior, LINE).gamma(torch.tensor(0.0))
    assert 1e100 < unlimited < math.inf


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine()], ids=repr)
@pytest.mark.parametrize(
    "minimize", [STEP, LBFGS(steps=60, max_step=None)], ids=["gauss-newton", "l-bfgs"]
)
def test_cps_predicts_from_the_penalised_solution(minimize, schedule):
    """x_0 - A^T (A A^T + I / gamma_s)^-1 (A x_0 - y), and noise that is recomputed from it."""
    prior, constraint, x = correlated(schedule, 6), plane(2, 6), 2 * normal(4, 6, seed=2)
    kernel = on(CPS(minimize=minimize), prior, constraint)
    for t, s in torch.tensor([[0.95, 0.9], [0.6, 0.5], [0.3, 0.2]]).double():
        x_s, x_0, _ = kernel.step(x, t, s)
        estimate = prior(x, t).mean
        (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
        gram = constraint.A @ constraint.A.T + torch.eye(2).double() / kernel.gamma(s)
        moved = torch.linalg.solve(gram, constraint.residual(estimate).T).T @ constraint.A
        torch.testing.assert_close(x_0, estimate - moved, rtol=0, atol=1e-6)
        expected = alpha_s * x_0 + sigma_s * (x - alpha_t * x_0) / sigma_t
        torch.testing.assert_close(x_s, expected)


KEPT = [
    (ECI(steps=7, mixes=1), [0] * 7),
    (ECI(steps=7, mixes=3), [0] * 7),
    (ECI(steps=7, mixes=3, resample=1), [3, 6, 9, 12, 15, 18, 21]),
    # the initial noise is used once less, as the state at the start has used it
    (ECI(steps=7, resample=3), [0, 0, 1, 1, 1, 2, 2]),
    (PCFM(steps=7), [0] * 7),
]


@pytest.mark.parametrize("schedule", [LogLogit(), Rectified()], ids=repr)
@pytest.mark.parametrize(("method", "drawn"), KEPT)
def test_noise_is_used_again_until_it_is_resampled(schedule, method, drawn):
    """At the last level of LogLogit it is a thousandth of the state, and found to 1e-12."""
    kernel = on(method, plain(schedule), LINE)
    streams = [MemberNoise(5, range(4), (2,), dtype=torch.float64) for _ in range(2)]
    draws = [streams[0]() for _ in range(22)]
    path = [(s, step) for k, s, step in trajectory(kernel, streams[1]) if k]
    for (s, step), number in zip(path, drawn, strict=True):
        alpha, sigma = schedule(s)
        noise = (step.x - alpha * step.x_0) / sigma
        torch.testing.assert_close(noise, draws[number], rtol=0, atol=1e-8)


@SCHEDULES
@pytest.mark.parametrize("mixes", [1, 4])
def test_eci_mixes_at_its_own_level_before_it_goes_on(schedule, mixes):
    prior = plain(schedule)
    kernel = on(ECI(mixes=mixes, resample=1), prior, LINE)
    x, noise = normal(4, 2), normal(mixes, 4, 2, seed=1)
    x_s, x_0, _ = kernel.step(x, T, S, given(noise))
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(T), schedule(S)
    for z in noise[:-1]:
        x = alpha_t * LINE.projection(prior(x, T).mean) + sigma_t * z
    clean = LINE.projection(prior(x, T).mean)
    torch.testing.assert_close(x_0, clean)
    torch.testing.assert_close(x_s, alpha_s * clean + sigma_s * noise[-1])


@SCHEDULES
def test_pcfm_makes_one_gauss_newton_iteration_on_the_estimate(schedule):
    prior, A = correlated(schedule, 4), normal(2, 4, seed=5)

    def h(x):
        return torch.sin(x @ A.T) + x[..., :2] ** 2 - 0.3

    x, z = normal(3, 4, seed=6), normal(3, 4, seed=7)
    kernel = on(PCFM(minimize=STEP), prior, Equality(h, 1e-6))
    x_s, x_0, _ = kernel.step(x, T, S, lambda like: z)
    for i, d in enumerate(prior(x, T).mean):
        J = torch.func.jacrev(h)(d)
        step = d - J.T @ torch.linalg.solve(J @ J.T, h(d))
        # the iteration is kept if it is better
        better = h(step).square().sum() < h(d).square().sum()
        torch.testing.assert_close(x_0[i], step if better else d)
    assert (x_0 != prior(x, T).mean).any()
    alpha, sigma = schedule(S)
    torch.testing.assert_close(x_s, alpha * x_0 + sigma * z)


@SCHEDULES
def test_the_relaxation_of_pcfm_is_twenty_gradient_steps(schedule):
    """On |x - x_s|^2 + lambda |r(x + delta)|^2: for a linear constraint, an affine iteration."""
    prior, constraint, penalty = correlated(schedule, 4), plane(2, 4), 3.0
    x, z = normal(3, 4, seed=6), normal(3, 4, seed=7)
    (relaxed, x_0, _), (x_s, same, _) = (
        on(PCFM(penalty=p, minimize=STEP), prior, constraint).step(x, T, S, lambda like: z)
        for p in (penalty, 0.0)
    )
    torch.testing.assert_close(x_0, same)
    # delta leads from the end of the unconstrained step to its clean estimate
    end, estimate, _ = on(Ancestral(eta=0.0), prior).step(x, T, S)
    y = x_s
    for _ in range(20):
        r = (y + estimate - end) @ constraint.A.T - constraint.y
        y = y - 0.01 * 2 * (y - x_s + penalty * r @ constraint.A)
    torch.testing.assert_close(relaxed, y)
    assert (relaxed - x_s).norm(dim=1).min() > 1e-3


def test_the_last_projection_of_pcfm_is_the_one_given(gaussian):
    """A circle from afar: one Gauss-Newton iteration does not get there, many do."""
    circle = Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-8)
    x = 5 * torch.nn.functional.normalize(normal(4, 2))
    once = on(PCFM(last=STEP), gaussian, circle).finish(x)
    assert not circle.is_feasible(once).any()
    torch.testing.assert_close(once, x * (5 + 1 / 5) / 2 / 5)  # Heron's iteration
    assert circle.is_feasible(on(PCFM(), gaussian, circle).finish(x)).all()


@pytest.mark.parametrize("method", [PCFM, ReSample])
def test_the_sample_itself_is_projected_in_the_end(method, checkerboard):
    result = sampled(on(method(steps=8, output="state"), checkerboard, CURVE), 16, (2,))
    assert result.feasible.all()


def test_post_hoc_is_the_projection_of_the_unconditional_sample(gaussian):
    constraint = Linear(torch.tensor([[1.0, 2.0]]), torch.tensor([0.5]), tolerance=1e-6)
    free = sampled(on(Ancestral(steps=8), gaussian), 32, (2,), seed=4)
    projected = sampled(on(PostHoc(steps=8), gaussian, constraint), 32, (2,), seed=4)
    expected = constraint.projection(free.samples)
    torch.testing.assert_close(projected.samples, expected, atol=2e-3, rtol=0)
    assert projected.feasible.all()
    assert projected.evaluations.forward == free.evaluations.forward
    assert projected.evaluations.backward == 0
