"""ReSample: three stages and time travel."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch

from feasibly import Ancestral, Decoded, Linear
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.samplers import HDC, ReSample
from feasibly.schedules import Cosine, LogLogit, Rectified

EXACT = GaussNewton(steps=1, damping=0.0, max_distance=None)
LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
COV = torch.tensor([[1.0, 0.6], [0.6, 1.0]])


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def times(steps):
    return torch.linspace(1, 0, steps + 1, dtype=torch.float64)


@dataclass(frozen=True, repr=False, eq=False)
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


def test_without_guidance_and_before_the_travels_the_states_are_those_of_ddim(checkerboard):
    """With `every` beyond the steps, only the last step travels."""
    sampler = ReSample(checkerboard, LINE, steps=9, every=100, zeta=0.0, minimize=EXACT)
    ddim = Ancestral(checkerboard, steps=9, eta=0.0)
    x = y = 50 * normal(4, 2)
    for t, s in list(pairwise(times(9)))[:-1]:
        x, x_0, _ = sampler.step(x, t, s)
        y, y_0, _ = ddim.step(y, t, s)
        assert torch.equal(x, y)
        assert torch.equal(x_0, y_0)
    last = sampler.step(x, *times(9)[-2:], torch.zeros_like).x
    assert not torch.allclose(last, ddim.step(x, *times(9)[-2:]).x)


@pytest.mark.parametrize("schedule", [LogLogit(), Rectified(), Cosine()], ids=repr)
def test_guidance_is_that_of_dps_scaled_by_the_share_of_the_signal(schedule):
    """zeta abar_t rho_s rho_t times the gradient of the norm; N(0, I) has d = shrink x."""
    prior = Gaussian(torch.zeros(4), torch.eye(4), schedule)
    plane = Linear(normal(2, 4), normal(2, seed=1), tolerance=1e-6)
    sampler = ReSample(prior, plane, steps=10, zeta=0.7, minimize=EXACT)
    x, (t, s) = normal(3, 4, seed=2), torch.tensor([0.9, 0.8], dtype=torch.float64)
    x_s, x_0, _ = sampler.step(x, t, s)  # in the first stage
    (alpha, sigma), (alpha_s, sigma_s) = schedule(t), schedule(s)
    total = alpha**2 + sigma**2
    shrink = alpha / total
    r = shrink * x @ plane.A.T - plane.y
    gradient = shrink * r / r.norm(dim=1, keepdim=True) @ plane.A
    zeta = 0.7 * alpha**2 / total * (total * (alpha_s**2 + sigma_s**2)).sqrt()
    free = Ancestral(prior, eta=0.0).step(x, t, s).x
    torch.testing.assert_close(x_s, free - zeta * gradient)
    torch.testing.assert_close(x_0, shrink * x)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_the_first_third_does_not_travel_and_the_second_projects_in_pixels(every, gaussian):
    sampler = Recorded(gaussian, LINE, steps=20, every=every, travel=1, zeta=0.0, minimize=EXACT)
    sampler.sample(2, (2,), dtype=torch.float64)
    assert sampler.left == [n for n in range(12, -1, -1) if n % every == 0]
    # stages of 7, 7 and 6 steps; the last projection is the sample's own
    assert sampler.in_pixels == [*(n > 5 for n in sampler.left), False]


@pytest.mark.parametrize("travel", [0, 1, 3, 50])
def test_time_travel_goes_on_by_ddim_and_stops_at_the_end_of_time(travel, checkerboard):
    sampler = ReSample(checkerboard, LINE, steps=10, travel=travel, minimize=EXACT)
    ddim = Ancestral(checkerboard, steps=10, eta=0.0)
    x = y = normal(4, 2)
    path = times(10)[6:]  # from four steps before the end
    for t, s in list(pairwise(path))[:travel]:
        y = ddim.step(y, t, s).x
    reached = path[min(travel, 4)]
    expected = checkerboard(y, reached).mean
    found = sampler.look_ahead(x, path[0], torch.randn_like)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("travel", [0, 2])
def test_a_travel_ends_in_the_resampling_of_hdc(travel, checkerboard):
    """Around the state that the travel set out from, at its level."""
    t, s = torch.tensor([0.5, 0.4], dtype=torch.float64)
    options = {"steps": 10, "every": 1, "gamma": 3.0, "minimize": EXACT}
    sampler = ReSample(checkerboard, LINE, zeta=0.2, travel=travel, **options)
    silent = ReSample(checkerboard, LINE, zeta=0.2, travel=travel, **(options | {"every": 7}))
    x, z = normal(4, 2), normal(4, 2, seed=1)
    x_s, x_0, _ = sampler.step(x, t, s, lambda like: z)
    before = silent.step(x, t, s).x
    assert round(s.item() * 10) % 7 != 0
    expected = LINE.projection(sampler.look_ahead(before, s, torch.zeros_like))
    torch.testing.assert_close(x_0, expected)
    hdc = HDC(checkerboard, LINE, gamma=3.0)
    torch.testing.assert_close(x_s, hdc.resample(before, expected, t, s, lambda like: z))


M = torch.tensor([[2.0, 1.0], [0.0, 0.5]]).double()


def decode(z):
    return z @ M.T


def encode(x):
    return x @ torch.linalg.inv(M).T


def test_an_encoder_lets_the_second_stage_project_decoded_estimates(gaussian):
    """The nearest sample is not the decoded nearest latent: M is no rotation."""
    with_encoder = ReSample(gaussian, Decoded(LINE, decode, encode), minimize=EXACT)
    without = ReSample(gaussian, Decoded(LINE, decode), minimize=EXACT)
    z = normal(6, 2)
    in_latents = Linear(LINE.A @ M, LINE.y, tolerance=1e-6).projection(z)
    in_pixels = encode(LINE.projection(decode(z)))
    assert not torch.allclose(in_latents, in_pixels, atol=1e-2)
    torch.testing.assert_close(with_encoder.correct(z, in_pixels=True), in_pixels)
    torch.testing.assert_close(with_encoder.correct(z), in_latents)
    torch.testing.assert_close(without.correct(z, in_pixels=True), in_latents)
    plain = ReSample(gaussian, LINE, minimize=EXACT)
    torch.testing.assert_close(plain.correct(z, in_pixels=True), LINE.projection(z))


def test_the_pixels_are_projected_in_the_second_stage_of_a_step(gaussian):
    decoded = Decoded(Linear(LINE.A, LINE.y, tolerance=1e-20), decode, encode)
    sampler = ReSample(gaussian, decoded, steps=9, every=1, zeta=0.0, travel=0, minimize=EXACT)
    x = normal(4, 2)
    for t, s in pairwise(times(9)[3:]):
        x_s, x_0, _ = sampler.step(x, t, s, torch.zeros_like)
        ddim = Ancestral(gaussian, eta=0.0).step(x, t, s).x
        look = gaussian(ddim, s).mean
        if round(9 * s.item()) >= 3:
            expected = encode(LINE.projection(decode(look)))
        else:
            expected = Linear(LINE.A @ M, LINE.y, tolerance=1e-6).projection(look)
        torch.testing.assert_close(x_0, expected)
        x = x_s


@pytest.mark.parametrize("output", ["state", "denoised", "projected"])
def test_the_sample_itself_is_projected_in_the_end(output, checkerboard):
    curve = LevelSet(GaussianRandomField(3))
    sampler = ReSample(
        checkerboard,
        curve,
        steps=9,
        zeta=0.0,
        output=output,
        minimize=GaussNewton(steps=32, max_distance=None),
    )
    result = sampler.sample(32, (2,), dtype=torch.float64)
    assert result.feasible.double().mean() > 0.9
    assert curve.residual(result.samples).square().median() <= sampler.stop


@pytest.mark.parametrize(("every", "travel"), [(1, 2), (3, 5), (10, 0), (100, 5)])
def test_a_run_costs_no_more_than_its_budget_and_a_gradient_a_step(every, travel, gaussian):
    sampler = ReSample(
        gaussian, LINE, steps=12, every=every, travel=travel, zeta=0.0, minimize=EXACT
    )
    spent = sampler.sample(2, (2,)).evaluations
    forward, backward = sampler.budget()
    assert spent.backward == backward == 12
    # travels are shorter at the end of time, by travel (travel + 1) / 2 steps at most
    assert forward - travel * (travel + 1) / 2 <= spent.forward <= forward


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_travels_with_fresh_noise_stay_finite(schedule, dtype):
    """A travel's times are sums of rounded steps, and end within rounding of zero."""
    prior = Gaussian(torch.zeros(2), COV, schedule)
    for steps in (7, 30, 49):
        sampler = ReSample(prior, LINE, steps=steps, eta=1.0, every=1, travel=steps, zeta=0.0)
        for left in (1, 2, 5, steps // 2):
            t = torch.linspace(1, 0, steps + 1, dtype=dtype)[-1 - left]
            found = sampler.look_ahead(normal(3, 2).to(dtype), t, torch.randn_like)
            assert found.isfinite().all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zeta": -1.0}, r"ReSample\(zeta=.*negative"),
        ({"travel": -1}, r"ReSample\(travel=.*whole number of at least 0, got -1"),
        ({"gamma": -1.0}, r"ReSample\(gamma="),
        ({"every": 0}, r"ReSample\(every="),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        ReSample(gaussian, LINE, **options)
