import math

import numpy as np
import pytest
import torch

from feasibly.problems.sphere import Gaussian, Sphere, equiangular, legendre

RADIUS = 2.5


def coefficients(sphere, n=3, seed=0, mean=True):
    """Random coefficients of real fields, up to the truncation."""
    generator = torch.Generator().manual_seed(seed)
    L = sphere.truncation + 1
    s = torch.randn(n, L, L, dtype=torch.complex128, generator=generator) * sphere.triangle
    s[..., 0] = s[..., 0].real.to(s.dtype)
    s[:, 0] *= mean
    return s


def points(sphere):
    """The sine and cosine of latitude, and the longitude, of each grid point."""
    phi = sphere.latitudes.deg2rad()[:, None]
    return phi.sin(), phi.cos(), sphere.longitudes.deg2rad()


@pytest.fixture(scope="module", params=[(21, 32), (42, 64)], ids=["T21", "T42"])
def sphere(request):
    return Gaussian(*request.param, radius=RADIUS)


def test_legendre_functions_are_those_of_the_book():
    mu = torch.linspace(-0.99, 0.99, 7, dtype=torch.float64)
    c = (1 - mu**2).sqrt()
    P = legendre(3, mu)
    expected = {
        (0, 0): torch.ones_like(mu),
        (1, 0): math.sqrt(3) * mu,
        (1, 1): math.sqrt(3 / 2) * c,
        (2, 0): math.sqrt(5) / 2 * (3 * mu**2 - 1),
        (2, 1): math.sqrt(15 / 2) * mu * c,
        (3, 2): math.sqrt(105 / 8) * mu * c**2,
        (3, 3): math.sqrt(35 / 16) * c**3,
    }
    for (l, m), values in expected.items():
        torch.testing.assert_close(P[m, l], values, rtol=1e-13, atol=1e-14)
    assert (P[2, 1] == 0).all()


@pytest.mark.parametrize("degree", [42, 170])
def test_legendre_functions_are_orthonormal(degree):
    mu, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(degree + 1))
    P = legendre(degree, mu)
    for m in (0, 1, degree // 2, degree - 1):
        gram = P[m] * weights / 2 @ P[m].T
        expected = torch.diag((torch.arange(degree + 1) >= m).double())
        torch.testing.assert_close(gram, expected, rtol=0, atol=1e-11)


def test_fields_survive_the_round_trip(sphere):
    s = coefficients(sphere)
    torch.testing.assert_close(sphere.analysis(sphere.synthesis(s)), s, rtol=0, atol=1e-12)


def test_the_curl_and_divergence_of_a_wind_are_those_it_was_made_of(sphere):
    zeta, delta = coefficients(sphere, 2, 1, mean=False), coefficients(sphere, 2, 2, mean=False)
    curl, divergence = sphere.curl_divergence(*sphere.wind(zeta, delta))
    torch.testing.assert_close(curl, zeta, rtol=0, atol=1e-11)
    torch.testing.assert_close(divergence, delta, rtol=0, atol=1e-11)


def test_solid_rotation_has_its_known_vorticity(sphere):
    sin, cos, _ = points(sphere)
    u = (3.0 * cos).expand(-1, len(sphere.longitudes))
    curl, divergence = sphere.curl_divergence(u, torch.zeros_like(u))
    vorticity = (2 * 3.0 / RADIUS * sin).expand_as(u)
    torch.testing.assert_close(sphere.synthesis(curl), vorticity, rtol=0, atol=1e-12)
    assert divergence.abs().max() < 1e-12
    back, v = sphere.wind(curl, divergence)
    torch.testing.assert_close(back, u, rtol=0, atol=1e-12)
    assert v.abs().max() < 1e-12


def test_the_gradient_is_the_derivative(sphere):
    """Of cos^2(phi) sin(phi) cos(2 lambda), worked by hand."""
    sin, cos, longitude = points(sphere)
    s = sphere.analysis(cos**2 * sin * torch.cos(2 * longitude))
    east, north = sphere.gradient(s)
    expected = -2 * cos * sin * torch.sin(2 * longitude) / RADIUS
    torch.testing.assert_close(east, expected, rtol=0, atol=1e-12)
    expected = (cos**3 - 2 * cos * sin**2) * torch.cos(2 * longitude) / RADIUS
    torch.testing.assert_close(north, expected, rtol=0, atol=1e-12)


def test_the_divergence_of_the_gradient_is_the_laplacian(sphere):
    s = coefficients(sphere)
    curl, divergence = sphere.curl_divergence(*sphere.gradient(s))
    l = torch.arange(sphere.truncation + 1, dtype=torch.float64)[:, None]
    torch.testing.assert_close(divergence, -l * (l + 1) / RADIUS**2 * s, rtol=0, atol=1e-9)
    assert curl.abs().max() < 1e-9
    restored = sphere.inverse_laplacian(divergence)
    torch.testing.assert_close(restored[:, 1:], s[:, 1:], rtol=0, atol=1e-11)
    assert (restored[:, 0] == 0).all()


def test_the_output_grid_is_weatherbenchs():
    grid = equiangular(31, 32)
    assert grid.latitudes[0] == -87.1875
    assert grid.latitudes[-1] == 87.1875
    assert (grid.latitudes.diff() == 5.625).all()
    assert grid.longitudes[0] == 0
    assert grid.longitudes[-1] == 354.375


def test_fields_are_the_same_function_on_another_grid():
    sphere, other = Gaussian(31, 48), equiangular(31, 32)
    sin, cos, longitude = points(other)
    s = sphere.analysis(_smooth(*points(sphere)))
    expected = _smooth(sin, cos, longitude)
    torch.testing.assert_close(other.synthesis(s), expected, rtol=0, atol=1e-11)


def _smooth(sin, cos, longitude):
    return 2 + sin**3 + 3 * cos**5 * torch.sin(5 * longitude) - cos * torch.cos(longitude)


def test_grids_that_cannot_hold_the_harmonics_are_refused():
    with pytest.raises(ValueError, match=r"truncation=\.\.\.\) must be at least 1, got 0"):
        Sphere(0, torch.zeros(1), 8)
    with pytest.raises(ValueError, match=r"more than 42 longitudes .* got 42"):
        Sphere(21, torch.zeros(1), 42)
    with pytest.raises(ValueError, match=r"no direction at a pole\. Use cell centres"):
        Sphere(21, torch.linspace(-90, 90, 33), 64)
    with pytest.raises(ValueError, match=r"more than 21 latitudes .* got 21"):
        Gaussian(21, 21)


def test_least_squares_analysis_undoes_synthesis_without_quadrature():
    sphere, gaussian = equiangular(31, 32), Gaussian(31, 48)
    s = gaussian.analysis(
        torch.randn(3, 48, 96, generator=torch.Generator().manual_seed(0)).double()
    )
    torch.testing.assert_close(sphere.analysis(sphere.synthesis(s)), s, atol=1e-9, rtol=0)


def test_power_by_degree_sums_to_the_mean_square():
    sphere = Gaussian(15, 32)
    noise = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(0)).double()
    s = sphere.analysis(noise)
    square = sphere.synthesis(s).square().mean(dim=-1) @ sphere.weights
    torch.testing.assert_close(sphere.power(s).sum(dim=-1), square)
