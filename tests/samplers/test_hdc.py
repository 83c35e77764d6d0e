"""Hard data consistency."""

import pytest
import torch

from feasibly import Ancestral, Equality, Linear
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.samplers import HDC
from feasibly.schedules import Cosine, LogLogit, Rectified

T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)
pytestmark = pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
EXACT = GaussNewton(steps=1, damping=0.0, max_distance=None)
LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ratio(schedule, t, s):
    """v / (gamma sigma_s^2)."""
    (alpha_t, sigma_t), (alpha_s, sigma_s) = schedule(t), schedule(s)
    return 1 - (alpha_t * sigma_s / (alpha_s * sigma_t)) ** 2


def test_without_resampling_the_states_are_those_of_ddim(checkerboard):
    options = {"steps": 10, "eta": 0.0, "output": "state"}
    hdc = HDC(checkerboard, LINE, gamma=0.0, **options)
    ddim = Ancestral(checkerboard, order=1, spacing="time", **options)
    a, b = (s.sample(6, (2,), seed=3, dtype=torch.float64).samples for s in (hdc, ddim))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def moments(sampler, x_s, x_0, t=T, s=S):
    """The mean and the standard deviation of a resampling, which is affine in its noise."""
    mean = sampler.resample(x_s, x_0, t, s, torch.zeros_like)
    return mean, sampler.resample(x_s, x_0, t, s, torch.ones_like) - mean


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)
@pytest.mark.parametrize("gamma", [0.1, 1.0, 40.0])
def test_resampling_multiplies_two_gaussians(schedule, gamma):
    """The renoised projection, N(alpha_s x_0, sigma_s^2), and N(x_s', v)."""
    sampler = HDC(Gaussian(torch.zeros(2), torch.eye(2), schedule), LINE, gamma=gamma)
    x_s, x_0 = normal(4, 2), normal(4, 2, seed=1)
    alpha, sigma = schedule(S)
    v = gamma * sigma**2 * ratio(schedule, T, S)
    variance = 1 / (1 / sigma**2 + 1 / v)
    mean, std = moments(sampler, x_s, x_0)
    torch.testing.assert_close(mean, variance * (alpha * x_0 / sigma**2 + x_s / v))
    torch.testing.assert_close(std.square(), variance.expand(4, 2))


def test_where_alpha_is_one_v_is_gamma_times_the_posterior_variance(gaussian):
    """Which DDPM's noise has: sigma_s^2 (1 - sigma_s^2 / sigma_t^2)."""
    _, std = Ancestral(gaussian).transition(normal(4, 2), normal(4, 2), T, S)
    sigma_t, sigma_s = gaussian.schedule(T)[1], gaussian.schedule(S)[1]
    torch.testing.assert_close(std**2, sigma_s**2 * (1 - sigma_s**2 / sigma_t**2))
    v = 7.0 * std**2
    _, std = moments(HDC(gaussian, LINE, gamma=7.0), normal(4, 2), normal(4, 2, seed=1))
    torch.testing.assert_close(std**2, (v * sigma_s**2 / (v + sigma_s**2)).expand(4, 2))


@pytest.mark.parametrize("schedule", [LogLogit(), Cosine()], ids=repr)
def test_much_resampling_is_renoising(schedule):
    sampler = HDC(Gaussian(torch.zeros(2), torch.eye(2), schedule), LINE, gamma=1e12)
    x_s, x_0 = normal(4, 2), normal(4, 2, seed=1)
    alpha, sigma = schedule(S)
    mean, std = moments(sampler, x_s, x_0)
    torch.testing.assert_close(mean, alpha * x_0)
    torch.testing.assert_close(std, sigma.expand(4, 2))


def test_a_step_resamples_between_the_projection_and_the_unprojected_prediction():
    prior = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), Cosine())
    sampler = HDC(prior, LINE, gamma=2.0, minimize=EXACT)
    x = normal(5, 2)
    x_s, x_0, _ = sampler.step(x, T, S, torch.zeros_like)
    estimate = prior(x, T).mean
    ddim = Ancestral(prior, eta=0.0).step(x, T, S).x
    v = 2.0 * ratio(prior.schedule, T, S)
    torch.testing.assert_close(x_0, LINE.projection(estimate))
    expected = (v * prior.schedule(S)[0] * LINE.projection(estimate) + ddim) / (v + 1)
    torch.testing.assert_close(x_s, expected)


@pytest.mark.parametrize("every", [1, 4, 100])
def test_it_projects_at_every_so_manieth_step_and_at_the_last(every, gaussian):
    violations = []
    sampler = HDC(gaussian, LINE, steps=10, every=every, minimize=EXACT)
    result = sampler.sample(
        4, (2,), dtype=torch.float64, callback=lambda snapshot: violations.append(snapshot.worst)
    )
    left = range(9, -1, -1)
    assert [c < 1e-12 for c in violations] == [n % every == 0 for n in left]
    assert result.feasible.all()


def test_between_projections_it_is_ddim(gaussian):
    x, t, s = normal(5, 2), *torch.tensor([0.4, 0.3], dtype=torch.float64)
    sampler = HDC(gaussian, LINE, steps=10, every=2)
    ddim = Ancestral(gaussian, eta=0.0).step(x, t, s)
    found = sampler.step(x, t, s)
    assert torch.equal(found.x, ddim.x)
    assert torch.equal(found.x_0, ddim.x_0)


def test_the_projection_asks_nothing_of_the_network(gaussian):
    unreachable = Equality(lambda x: x.square().sum(dim=1) + 1, tolerance=1e-6)
    with pytest.warns(match="None of the 3"):
        spent = HDC(gaussian, unreachable, steps=6).sample(3, (2,)).evaluations
    assert (spent.forward, spent.backward) == (6, 0)


def test_feasible_members_are_not_moved_by_the_projection(gaussian):
    sampler = HDC(gaussian, Equality(lambda x: 0 * x[:, :1], 1e-6))
    x = normal(5, 2)
    assert torch.equal(sampler.step(x, T, S).x_0, gaussian(x, T).mean)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gamma": -1.0}, r"HDC\(gamma=.*negative"),
        ({"every": 0}, r"HDC\(every=.*at least 1"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, words, gaussian):
    with pytest.raises(ValueError, match=words):
        HDC(gaussian, LINE, **options)
