import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from feasibly.denoisers import Correlated, Karras, Posterior, broadcast
from feasibly.oracles import Checkerboard, Gaussian, GaussianMixture
from feasibly.schedules import EDM, VE, VP, LogLogit, Rectified, Schedule

check = settings(derandomize=True, deadline=None, max_examples=20)


class Fixed(Schedule):
    """The same pair of scales at every time."""

    def __init__(self, alpha, sigma):
        self.alpha, self.sigma = alpha, sigma

    def __call__(self, t):
        return torch.full_like(t, self.alpha), torch.full_like(t, self.sigma)


class Zero(nn.Module):
    def forward(self, x, label):
        return torch.zeros_like(x)


class Wavy(nn.Module):
    """A fixed smooth function of the input and the label."""

    def forward(self, x, label):
        return torch.sin(3 * x + broadcast(label, x)) + x.roll(1, dims=-1) / 2


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize(
    ("scale", "x", "shape"),
    [((), (4, 2), ()), ((4,), (4, 2), (4, 1)), ((4,), (4, 3, 5), (4, 1, 1)), ((4,), (4,), (4,))],
    ids=str,
)
def test_broadcast_gives_one_scale_to_each_sample(scale, x, shape):
    assert broadcast(torch.ones(scale), torch.ones(x)).shape == shape


def test_karras_without_a_network_is_the_denoiser_of_a_normal():
    for sigma_data in (0.5, 2.0):
        denoiser = Karras(Zero(), VP(), sigma_data)
        oracle = Gaussian(torch.zeros(3), sigma_data**2 * torch.eye(3), VP())
        x_t, t = normal(9, 3), torch.linspace(0, 1, 9).double()
        torch.testing.assert_close(denoiser(x_t, t).mean, oracle(x_t, t).mean, rtol=1e-10, atol=0)


@pytest.mark.parametrize("shape", [(5,), (3, 4)], ids=str)
def test_karras_scales_what_the_network_sees(shape):
    seen = {}

    class Spy(nn.Module):
        def forward(self, x, label):
            seen["x"], seen["label"] = x, label
            return x

    sigma, x = double([0.1, 1.0, 20.0]), normal(3, *shape)
    Karras(Spy(), LogLogit(), sigma_data=2.0).mean(x, broadcast(sigma, x))
    torch.testing.assert_close(seen["x"], x / broadcast(torch.sqrt(sigma**2 + 4), x))
    torch.testing.assert_close(seen["label"], sigma.log() / 4)

    Karras(Spy(), LogLogit(), sigma_data=2.0).mean(x, double(0.1))
    assert seen["label"].shape == ()
    torch.testing.assert_close(seen["label"], double(math.log(0.1) / 4))


def test_karras_scales_what_the_network_returns():
    sigma, s, x = 0.7, 1.5, normal(2, 4)
    scale = math.sqrt(sigma**2 + s**2)
    expected = s**2 / scale**2 * x + sigma * s / scale * Wavy()(
        x / scale, double(math.log(sigma) / 4)
    )
    denoiser = Karras(Wavy(), LogLogit(), s)
    torch.testing.assert_close(denoiser.mean(x, double(sigma)), expected)


@pytest.mark.parametrize("schedule", [LogLogit(), VP(), Rectified()], ids=repr)
@pytest.mark.parametrize("shape", [(2,), (3, 4)], ids=str)
def test_karras_loss_of_a_zero_network_is_the_one_worked_by_hand(schedule, shape):
    s = 1.3
    x_0, noise = normal(5, *shape), normal(5, *shape, seed=1)
    t = torch.linspace(0.1, 0.9, 5).double()
    loss = Karras(Zero(), schedule, s).loss(x_0, t, noise)
    assert loss.shape == (5,)

    for i in range(5):
        alpha, sigma = (scale.item() for scale in schedule(t[i]))
        sigma = sigma / alpha
        estimate = s**2 / (sigma**2 + s**2) * (x_0[i] + sigma * noise[i])
        weight = (sigma**2 + s**2) / (sigma**2 * s**2)
        expected = weight * (estimate - x_0[i]).square().mean()
        torch.testing.assert_close(loss[i], expected, rtol=1e-9, atol=0)


def mixture(schedule):
    cov = torch.stack((torch.diag(double([0.3, 0.1])), torch.diag(double([0.05, 0.4]))))
    return GaussianMixture(double([0.3, 0.7]), double([[-1.0, 0.0], [1.0, 0.5]]), cov, schedule)


KINDS = {
    "karras": lambda schedule: Karras(Wavy(), schedule, 0.8),
    "gaussian": lambda s: Gaussian(double([0.5, -1]), double([[1.0, 0.3], [0.3, 0.5]]), s),
    "mixture": mixture,
    "checkerboard": lambda schedule: Checkerboard(4, schedule),
}
kind_of_all = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


@kind_of_all
@given(
    st.floats(-2, 2).map(lambda e: 10**e),
    st.floats(-2, 2).map(lambda e: 10**e),
    st.lists(st.floats(-3, 3), min_size=2, max_size=2),
)
@check
def test_rescaling_signal_and_noise_together_leaves_the_estimate(make, alpha, ratio, x):
    # the same d for variance exploding (alpha = 1) and any other schedule, at x_t / alpha_t
    x, t = double([x]), double(0.5)
    exploding = make(Fixed(1.0, ratio))(x, t).mean
    scaled = make(Fixed(alpha, alpha * ratio))(alpha * x, t).mean
    torch.testing.assert_close(scaled, exploding, rtol=1e-8, atol=1e-8)


@kind_of_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_posterior_mean_has_the_shape_and_dtype_of_the_state(make, dtype):
    x_t = normal(5, 2).to(dtype)
    for t in (torch.tensor(0.4, dtype=dtype), torch.full((5,), 0.4, dtype=dtype)):
        posterior = make(VE())(x_t, t)
        assert isinstance(posterior, Posterior)
        assert posterior.mean.shape == x_t.shape
        assert posterior.mean.dtype == dtype


@kind_of_all
def test_one_time_for_all_equals_the_same_time_for_each(make):
    x_t, denoiser = normal(5, 2), make(EDM())
    shared, each = (
        denoiser(x_t, t).mean for t in (double(0.6), torch.full((5,), 0.6, dtype=torch.float64))
    )
    torch.testing.assert_close(shared, each, rtol=1e-12, atol=1e-14)


@kind_of_all
def test_estimate_of_one_sample_ignores_the_others(make):
    x_t, t, denoiser = 2 * normal(5, 2), torch.linspace(0.1, 0.9, 5).double(), make(VE())
    together = denoiser(x_t, t).mean
    for i in range(5):
        alone = denoiser(x_t[i : i + 1], t[i : i + 1]).mean
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-12, atol=1e-14)


class Diagonal(nn.Module):
    """The covariance of independent values, coarsely that of other ones."""

    def __init__(self, variance, other=None):
        super().__init__()
        self.variance, self.other = variance, variance if other is None else other

    def forward(self, f, x, sigma):
        return f(self.variance, sigma) * x

    def coarse(self, f, x, sigma):
        return f(self.other, sigma) * x


VARIANCE = double([9.0, 1.0, 0.04])


def test_without_a_network_correlated_is_the_posterior_of_a_gaussian():
    for sigma in (0.01, 0.3, 5.0):
        oracle = Gaussian(torch.zeros(3).double(), VARIANCE.diag(), LogLogit())
        x = normal(8, 3)
        model = Correlated(Zero(), LogLogit(), Diagonal(VARIANCE, double(1.0)))
        found = model.mean(x, double(sigma))
        torch.testing.assert_close(found, oracle.mean(x, double(sigma)))


def test_the_network_of_correlated_works_in_units_of_the_coarse_covariance():
    x, sigma, other = normal(4, 3), double([0.02, 0.3, 1.0, 9.0])[:, None], double([1.0, 2.0, 0.3])
    found = Correlated(Wavy(), LogLogit(), Diagonal(VARIANCE, other)).mean(x, sigma)
    scale = (sigma**2 + other).sqrt()
    output = Wavy()(x / scale, sigma.log().reshape(-1) / 4)
    expected = VARIANCE / (sigma**2 + VARIANCE) * x + sigma * other.sqrt() / scale * output
    torch.testing.assert_close(found, expected)
    alike = Correlated(Wavy(), LogLogit(), Diagonal(double(4.0))).mean(x, sigma)
    torch.testing.assert_close(alike, Karras(Wavy(), LogLogit(), 2.0).mean(x, sigma))


def test_the_loss_weighs_components_by_how_much_they_vary():
    """Without a network it is v / (v + 0.01) of each, by expectation; the standard error is 0.4 %
    of it."""
    generator = torch.Generator().manual_seed(2)
    t = torch.rand(100_000, generator=generator, dtype=torch.float64)
    x = VARIANCE.sqrt() * normal(100_000, 3)
    model = Correlated(Zero(), LogLogit(), Diagonal(VARIANCE))
    loss = model.loss(x, t, normal(100_000, 3, seed=3)).mean().item()
    assert loss == pytest.approx((VARIANCE / (VARIANCE + 0.01)).mean().item(), rel=0.02)
