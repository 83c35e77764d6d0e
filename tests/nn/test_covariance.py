import pytest
import torch

from feasibly.nn import ZonalCovariance

T, C, LAT, LON = 5, 2, 2, 4


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def waves(n=20_000):
    """Trajectories of waves that travel eastward, of which channels and latitudes see the same
    with a delay, and a little noise."""
    a, b = normal(2, n, 1, 1, 1, 1).unbind()
    t = torch.arange(T).double()[:, None, None, None]
    lag = normal(C, LAT, 1, seed=1)
    phase = 2 * torch.pi * torch.arange(LON).double() / LON - 0.3 * t + lag
    return a * phase.cos() + b * phase.sin() + 0.05 * normal(n, T, C, LAT, LON, seed=2)


@pytest.fixture(scope="module")
def fitted():
    model = ZonalCovariance(T, C, LAT, LON, leading=2).double()
    model.fit(waves())
    return model


def matrix(model, f, sigma=1.0):
    """What a function of the covariance is as a matrix."""
    unit = torch.eye(T * C * LAT * LON).double().unflatten(1, (T, C, LAT, LON))
    return model(f, unit, torch.tensor(sigma).double()).flatten(start_dim=1)


def test_the_covariance_is_that_of_the_data(fitted):
    flat = waves().flatten(start_dim=1)
    found = matrix(fitted, lambda v, s: v + 0 * s)
    expected = flat.T @ flat / len(flat)
    # of 20,000 samples, an entry has a standard error of 0.007; the largest are 1
    assert (found - expected).abs().max() < 0.04
    assert expected.abs().max() > 0.9


def test_a_function_of_the_covariance_is_one_of_its_matrix(fitted):
    covariance = matrix(fitted, lambda v, s: v + 0 * s)
    assert torch.equal(covariance.T, covariance) or (covariance.T - covariance).abs().max() < 1e-12
    eye = torch.eye(len(covariance)).double()
    inverse = matrix(fitted, lambda v, s: 1 / (v + s**2), sigma=0.3)
    torch.testing.assert_close(inverse @ (covariance + 0.09 * eye), eye)
    root = matrix(fitted, lambda v, s: v.sqrt() + 0 * s)
    torch.testing.assert_close(root @ root, covariance)


def test_each_sample_has_its_own_noise_level(fitted):
    x, sigma = waves(3), torch.tensor([0.1, 1.0, 7.0]).double()
    both = fitted(lambda v, s: v / (v + s**2), x, sigma[:, None, None, None, None])
    for i in range(3):
        alone = fitted(lambda v, s: v / (v + s**2), x[i : i + 1], sigma[i])
        torch.testing.assert_close(both[i : i + 1], alone)


def test_the_coarse_covariance_is_that_of_frames_alone(fitted):
    unit = torch.eye(T * C * LAT * LON).double().unflatten(1, (T, C, LAT, LON))
    sigma = torch.tensor(1.0).double()
    found = fitted.coarse(lambda v, s: v + 0 * s, unit, sigma).flatten(start_dim=1)
    frames = waves().transpose(0, 1).flatten(start_dim=1)
    expected = torch.kron(frames @ frames.T / frames.shape[1], torch.eye(C * LAT * LON).double())
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_before_it_is_fitted_it_is_the_identity():
    x = normal(3, T, C, LAT, LON)
    model = ZonalCovariance(T, C, LAT, LON, leading=2).double()
    torch.testing.assert_close(model(lambda v, s: v * s, x, torch.tensor(2.0).double()), 2 * x)


def test_half_precision_does_not_drown_the_small_components():
    """Frames that differ by a ten-thousandth of what they share."""
    shared = 10 * normal(4000, 1, C, LAT, LON).float()
    x = shared + 1e-3 * normal(4000, T, C, LAT, LON, seed=1).float()
    model = ZonalCovariance(T, C, LAT, LON, leading=2)
    model.fit(x)
    noisy = (x[:8] + normal(8, T, C, LAT, LON, seed=2).float()).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(lambda v, s: v / (v + s**2), noisy, torch.tensor(1.0))
    assert found.dtype == torch.float32
    assert (found - found.mean(dim=1, keepdim=True)).abs().max() < 0.05
