r"""Spherical harmonic transforms: fields on a grid to coefficients and back, and derivatives.

A field is :math:`s(\lambda, \phi) = \sum_{l, m} s_l^m \bar P_l^m(\sin \phi) e^{i m \lambda}`, with
triangular truncation :math:`|m| \leq l \leq T`. The associated Legendre functions are normalised
to :math:`\tfrac{1}{2} \int (\bar P_l^m)^2 d\mu = 1` over :math:`\mu = \sin \phi \in [-1, 1]`, and
have no Condon-Shortley sign. So :math:`s_0^0` is the mean over the sphere.

Real fields need :math:`m \geq 0` only. Coefficients are complex, with shape :math:`(*, L, M)` and
:math:`L = M = T + 1`. They are zero where :math:`m > l`. Grids have the shape :math:`(*,
\mathrm{nlat}, \mathrm{nlon})`. Latitudes increase; longitudes are equidistant and begin at 0.
Everything is in double precision.

References:
    | Numerical Methods for Fluid Dynamics, Section 6.4 (Durran, 2010)
    | https://doi.org/10.1007/978-1-4419-6412-0
"""

__all__ = ["Gaussian", "Sphere", "equiangular", "legendre"]

import math

import numpy as np
import torch
from torch import Tensor


def legendre(degree: int, mu: Tensor) -> Tensor:
    r"""Returns the normalised associated Legendre functions :math:`\bar P_l^m(\mu)`.

    They follow from :math:`\bar P_m^m` by the recursion :math:`\varepsilon_l^m \bar P_l^m = \mu
    \bar P_{l-1}^m - \varepsilon_{l-1}^m \bar P_{l-2}^m`, which is stable upwards in :math:`l`. For
    sines of latitudes with shape :math:`(J)` they have the shape :math:`(M, L, J)`, and are zero
    where :math:`m > l`.
    """
    mu = mu.double()
    epsilon = _epsilon(degree)
    P = mu.new_zeros(degree + 1, degree + 1, len(mu))
    P[0, 0] = 1
    for m in range(1, degree + 1):
        P[m, m] = math.sqrt(1 + 1 / (2 * m)) * (1 - mu**2).sqrt() * P[m - 1, m - 1]
    for l in range(1, degree + 1):
        e, below = epsilon[:l, l, None], epsilon[:l, l - 1, None]
        P[:l, l] = (mu * P[:l, l - 1] - below * P[:l, max(l - 2, 0)]) / e
    return P


def _epsilon(degree: int) -> Tensor:
    """Returns sqrt((l^2 - m^2) / (4 l^2 - 1)), with shape (M, L), zero where m >= l."""
    l = torch.arange(degree + 1, dtype=torch.float64)
    m = l[:, None]
    return ((l**2 - m**2).clamp(min=0) / (4 * l**2 - 1)).sqrt()


class Sphere:
    r"""Synthesis of fields and their gradients, exact on any latitudes except the poles.

    Arguments:
        truncation: The highest degree :math:`T` of the coefficients.
        latitudes: The latitudes in degrees, with shape :math:`(\mathrm{nlat})`.
        nlon: The number of longitudes.
        radius: The radius of the sphere.

    Raises:
        ValueError: If a latitude is a pole, or there are too few longitudes.
    """

    def __init__(self, truncation: int, latitudes: Tensor, nlon: int, radius: float = 1.0) -> None:
        if truncation < 1:
            raise ValueError(f"Sphere(truncation=...) must be at least 1, got {truncation}.")
        if nlon <= 2 * truncation:
            raise ValueError(
                f"Sphere(nlon=...) must be more than {2 * truncation} longitudes for a truncation "
                f"at {truncation}, got {nlon}."
            )
        if not (latitudes.abs() < 90).all():
            raise ValueError(
                "Sphere(latitudes=...) must lie strictly between -90 and 90 degrees, since a wind "
                "has no direction at a pole. Use cell centres."
            )
        self.truncation, self.radius = truncation, radius
        self.latitudes = latitudes.double()
        self.longitudes = 360 / nlon * torch.arange(nlon, dtype=torch.float64)

        phi = self.latitudes.deg2rad()
        P = legendre(truncation + 1, phi.sin())
        epsilon = _epsilon(truncation + 1)[..., None]
        l = torch.arange(truncation + 1, dtype=torch.float64)
        m = torch.arange(truncation + 1, dtype=torch.float64)[:, None, None]
        # cos(phi)^2 dP/dmu, by degrees l - 1 and l + 1; the former has no weight at l = 0
        slope = -l[:, None] * (epsilon * P)[:-1, 1:]
        slope[:, 1:] += (l[1:, None] + 1) * (epsilon[:-1, 1:-1] * P[:-1, :-2])
        self.P = P[:-1, :-1].contiguous()
        self.east = m * self.P / (radius * phi.cos())  # d/dlambda / (i a cos(phi))
        self.north = slope / (radius * phi.cos())  # d/dphi / a
        self.laplacian = -l[:, None] * (l[:, None] + 1) / radius**2  # of each degree, (L, 1)
        self.triangle = l[:, None] >= l

    def synthesis(self, s: Tensor) -> Tensor:
        """Returns the field of coefficients: (*, L, M) to (*, nlat, nlon)."""
        return self._fields(_at_latitudes(s, self.P))

    def gradient(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the eastward and the northward derivative of coefficients, on the grid."""
        east, north = _at_latitudes(s, self.east), _at_latitudes(s, self.north)
        return self._fields(1j * east), self._fields(north)

    def wind(self, vorticity: Tensor, divergence: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the wind with a vorticity and a divergence (Helmholtz decomposition).

        .. math:: (u, v) = k \times \nabla \psi + \nabla \chi , \quad
            \nabla^2 \psi = \zeta , \quad \nabla^2 \chi = \delta

        The means of both, with shape :math:`(*, L, M)`, are ignored. The eastward and the
        northward wind have the shape :math:`(*, nlat, nlon)`.
        """
        psi_chi = self.inverse_laplacian(torch.stack((vorticity, divergence)))
        psi_east, chi_east = 1j * _at_latitudes(psi_chi, self.east)
        psi_north, chi_north = _at_latitudes(psi_chi, self.north)
        u, v = self._fields(torch.stack((chi_east - psi_north, psi_east + chi_north)))
        return u, v

    def analysis(self, field: Tensor) -> Tensor:
        """Returns the coefficients of a field by least squares: (*, nlat, nlon) to (*, L, M).

        They are exact if the field has no higher degrees, and there are at least as many
        latitudes as degrees.
        """
        inverse = torch.linalg.pinv(self.P.transpose(1, 2)).transpose(1, 2)
        return _at_latitudes(self._waves(field), inverse.contiguous())

    def power(self, s: Tensor) -> Tensor:
        r"""Returns the mean square over the sphere of each degree, with shape :math:`(*, L)`.

        For coefficients `s` it is :math:`\sum_m |s_l^m|^2` over all :math:`|m| \leq l`.
        """
        square = s.abs().square()
        return square[..., 0] + 2 * square[..., 1:].sum(dim=-1)

    def inverse_laplacian(self, s: Tensor) -> Tensor:
        r"""Returns the coefficients of :math:`\nabla^{-2} s`, with mean zero."""
        return s * torch.cat((torch.zeros(1, 1), 1 / self.laplacian[1:]))

    def _waves(self, field: Tensor) -> Tensor:
        return torch.fft.rfft(field, norm="forward")[..., : self.truncation + 1]

    def _fields(self, waves: Tensor) -> Tensor:
        return torch.fft.irfft(waves, n=len(self.longitudes), norm="forward")


class Gaussian(Sphere):
    r"""Transforms both ways, on Gauss-Legendre latitudes.

    The analysis of a product of two fields has no aliasing if
    :math:`\mathrm{nlon} \geq 3 T + 1` and :math:`\mathrm{nlat} \geq (3 T + 1) / 2`.

    Arguments:
        truncation: The highest degree :math:`T`.
        nlat: The number of latitudes, more than :math:`T`. There are twice as many longitudes.
        radius: The radius of the sphere.

    Raises:
        ValueError: If there are too few latitudes.
    """

    def __init__(self, truncation: int, nlat: int, radius: float = 1.0) -> None:
        if nlat <= truncation:
            raise ValueError(
                f"Gaussian(nlat=...) must be more than {truncation} latitudes for a truncation at "
                f"{truncation}, got {nlat}."
            )
        mu, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(nlat))
        super().__init__(truncation, mu.arcsin().rad2deg(), 2 * nlat, radius)
        self.weights = weights / 2
        """The share of the sphere's area of each latitude. They sum to 1."""
        self._P, self._east, self._north = (
            (table * self.weights).transpose(1, 2).contiguous()
            for table in (self.P, self.east, self.north)
        )

    def analysis(self, field: Tensor) -> Tensor:
        """Returns the coefficients of a field by quadrature: (*, nlat, nlon) to (*, L, M)."""
        return _at_latitudes(self._waves(field), self._P)

    def curl_divergence(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the coefficients of the curl and the divergence of a vector field.

        They are integrated by parts, :math:`\langle Y, \nabla \cdot w \rangle = - \langle \nabla
        Y, w \rangle`, so that no field, with shape :math:`(*, nlat, nlon)`, is differentiated.
        """
        waves = self._waves(torch.stack((u, v)))
        u_east, v_east = 1j * _at_latitudes(waves, self._east)
        u_north, v_north = _at_latitudes(waves, self._north)
        return v_east + u_north, u_east - v_north


def equiangular(truncation: int, nlat: int, radius: float = 1.0) -> Sphere:
    """Returns the synthesis on WeatherBench2's grid without poles, whose latitudes are centres,
    with twice as many longitudes as latitudes."""
    latitudes = 180 / nlat * (torch.arange(nlat, dtype=torch.float64) + 0.5) - 90
    return Sphere(truncation, latitudes, 2 * nlat, radius)


def _at_latitudes(waves: Tensor, table: Tensor) -> Tensor:
    """Multiplies (*, I, M) by a real table (M, I, J), for each m: to (*, J, M)."""
    product = torch.einsum("...imr,mij->...jmr", torch.view_as_real(waves), table)
    return torch.view_as_complex(product.contiguous())
