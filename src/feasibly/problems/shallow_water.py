r"""A small planet: rotating shallow water on the sphere, with jets and weather.

The variables are vorticity :math:`\zeta`, divergence :math:`\delta` and geopotential :math:`\Phi`.
With absolute vorticity :math:`\eta = \zeta + f` and kinetic energy
:math:`K = (u^2 + v^2) / 2`, the equations are

.. math::
    \zeta_t & = - \nabla \cdot (\eta \, \mathbf{u}) \\
    \delta_t & = k \cdot \nabla \times (\eta \, \mathbf{u}) - \nabla^2 (\Phi + K) \\
    \Phi_t & = - \nabla \cdot (\Phi \, \mathbf{u})

in SI units and double precision. States are coefficients of :math:`(\zeta, \delta, \Phi)` in
spherical harmonics, with shape :math:`(B, 3, L, M)`.

References:
    | A standard test set for numerical approximations to the shallow water equations in spherical
      geometry (Williamson et al., 1992)
    | https://doi.org/10.1016/S0021-9991(05)80016-6
"""

__all__ = ["RESOLUTIONS", "Planet", "ShallowWater", "initial_conditions", "simulate"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from .sphere import Gaussian, equiangular

RADIUS = 6.37122e6
OMEGA = 7.292e-5
GRAVITY = 9.80616
HOUR = 3600.0
DAY = 24 * HOUR

BLOCK = 16
"""The number of members that are simulated together."""

SPIN_UP = 20
"""The days that are simulated before the first hour that is kept."""

LATITUDES = 32
"""The number of latitudes of the output, on WeatherBench2's grid with 64 longitudes."""

RESOLUTIONS = {"T21": (21, 32, 1800.0), "T31": (31, 48, 1200.0), "T42": (42, 64, 900.0)}
"""The truncation, the number of Gaussian latitudes, and the time step in s. There is no aliasing.
The time step divides the hour, and is stable to winds of 150 m/s."""


@dataclass(frozen=True)
class Planet:
    r"""The settings of a planet's climate, in SI units.

    One layer of water has no baroclinic instability that feeds eddies. In its place, the vorticity
    of zonal wavenumbers :math:`m \geq 1` grows at a constant rate in a band of degrees. The
    dynamics stay deterministic and the same at all longitudes, and become chaotic.
    `results/weather/planet.txt` has the measurements.

    Arguments:
        jet: The speed of the two jets that the flow is relaxed towards.
        latitude: The latitude of the jets, north and south, in degrees.
        width: The width of the jets in degrees, where :math:`e^{-1}` of the speed is left.
        geopotential: The mean of :math:`\Phi`, which is conserved. The default is that of 5500 m.
        relaxation: The time scale of the relaxation.
        growth: The growth rate in the band, before the relaxation damps it.
        band: The first and the last degree of the band.
        diffusion: The time scale of the hyperdiffusion :math:`\nabla^8` at the truncation.
    """

    jet: float = 60.0
    latitude: float = 45.0
    width: float = 12.0
    geopotential: float = 5500 * GRAVITY
    relaxation: float = 5 * DAY
    growth: float = 0.4 / DAY
    band: tuple[int, int] = (8, 14)
    diffusion: float = 6 * HOUR


class ShallowWater:
    r"""The equations, with a linear term and a source: :math:`x_t = N(x) + r x + s`.

    Arguments:
        sphere: The transforms.
        rate: The rate :math:`r`, in 1/s, which broadcasts to the shape of the states.
        source: The source :math:`s`.
    """

    def __init__(
        self, sphere: Gaussian, rate: Tensor | float = 0.0, source: Tensor | float = 0.0
    ) -> None:
        self.sphere, self.rate, self.source = sphere, rate, source
        self.coriolis = 2 * OMEGA * sphere.latitudes.deg2rad().sin()[:, None]

    def tendency(self, x: Tensor) -> Tensor:
        """Returns the time derivative of states, both with shape (B, 3, L, M)."""
        zeta, delta, phi = x.unbind(-3)
        u, v = self.sphere.wind(zeta, delta)
        eta = self.sphere.synthesis(zeta) + self.coriolis
        carried = torch.stack((eta, self.sphere.synthesis(phi)))
        curl, divergence = self.sphere.curl_divergence(carried * u, carried * v)
        K = self.sphere.analysis((u**2 + v**2) / 2)
        delta_t = curl[0] - self.sphere.laplacian * (phi + K)
        x_t = torch.stack((-divergence[0], delta_t, -divergence[1]), dim=-3)
        return x_t + self.rate * x + self.source

    def step(self, x: Tensor, dt: float) -> Tensor:
        """Makes one time step of the classical fourth-order Runge-Kutta method."""
        k_1 = self.tendency(x)
        k_2 = self.tendency(x + dt / 2 * k_1)
        k_3 = self.tendency(x + dt / 2 * k_2)
        k_4 = self.tendency(x + dt * k_3)
        return x + dt / 6 * (k_1 + 2 * k_2 + 2 * k_3 + k_4)

    def balance(self, zeta: Tensor, geopotential: float) -> Tensor:
        r"""Returns the states without divergence, :math:`\delta = \delta_t = 0`, with shape
        :math:`(*, 3, L, M)`, of a vorticity :math:`(*, L, M)` and a mean of :math:`\Phi`."""
        still = torch.zeros_like(zeta)
        u, v = self.sphere.wind(zeta, still)
        eta = self.sphere.synthesis(zeta) + self.coriolis
        curl, _ = self.sphere.curl_divergence(eta * u, eta * v)
        K = self.sphere.analysis((u**2 + v**2) / 2)
        phi = self.sphere.inverse_laplacian(curl) - K
        phi[..., 0, 0] = geopotential
        return torch.stack((zeta, still, phi), dim=-3)

    @classmethod
    def of(cls, planet: Planet, sphere: Gaussian) -> "ShallowWater":
        """Returns the equations of a planet: relaxed to its jets, fed in its band, diffused."""
        l = torch.arange(sphere.truncation + 1)[:, None]
        first, last = planet.band
        fed = (first <= l) & (l <= last) & (l.T >= 1)
        diffused = (sphere.laplacian / sphere.laplacian[-1]) ** 4 / planet.diffusion
        rate = -(1 / planet.relaxation + diffused).expand(3, *fed.shape).clone()
        rate[0] += planet.growth * fed
        jets = cls(sphere).balance(_jets(planet, sphere), planet.geopotential)
        return cls(sphere, rate, jets / planet.relaxation)


def _jets(planet: Planet, sphere: Gaussian) -> Tensor:
    """Returns the coefficients of the vorticity of the planet's jets."""
    distance = (sphere.latitudes.abs() - planet.latitude) / planet.width
    u = planet.jet * torch.exp(-(distance**2))[:, None].expand(-1, len(sphere.longitudes))
    return sphere.curl_divergence(u, torch.zeros_like(u))[0]


def initial_conditions(n: int, generator: Generator, planet: Planet, sphere: Gaussian) -> Tensor:
    """Returns random states in balance, with shape (n, 3, L, M): the planet's jets, and eddies of
    degrees 3 to 15, which are the same at all resolutions."""
    noise = torch.randn(n, 16, 16, 2, generator=generator, dtype=torch.float64)
    noise[:, :, 0, 1] = 0  # the zonal means of a real field are real
    noise[:, :3] = 0
    jets = _jets(planet, sphere)
    eddies = jets.new_zeros(n, *jets.shape)
    eddies[:, :16, :16] = 1e-6 * torch.view_as_complex(noise) * sphere.triangle[:16, :16]
    return ShallowWater(sphere).balance(jets + eddies, planet.geopotential)


def simulate(
    block: int,
    seed: int,
    hours: int = 24,
    resolution: str = "T31",
    planet: Planet | None = None,
    members: Sequence[int] | None = None,
) -> Tensor:
    r"""Simulates one block of members, and returns their weather hour by hour.

    Arguments:
        block: The number of the block. With `seed`, less than :math:`2^{32}`, it determines the
            members.
        hours: The number of hours to keep, after 20 days of spin-up.
        resolution: The truncation, one of :data:`RESOLUTIONS`.
        planet: The climate. The default is `Planet()`.
        members: Which members of the block to simulate; None for all.

    Returns:
        Geopotential in m²/s², eastward and northward wind in m/s, with shape (members, hours, 3,
        32, 64) in single precision, on WeatherBench2's grid, of the degrees that it resolves.

    Raises:
        ValueError: If there is no such resolution, or there are no hours to keep.
        ArithmeticError: If the flow of a member is too fast for the time step.
    """
    if resolution not in RESOLUTIONS:
        raise ValueError(
            f"simulate(resolution=...) must be one of {list(RESOLUTIONS)}, got {resolution!r}."
        )
    if hours < 1:
        raise ValueError(f"simulate(hours=...) must be at least 1, got {hours}.")
    truncation, nlat, dt = RESOLUTIONS[resolution]
    planet = planet or Planet()
    sphere = Gaussian(truncation, nlat, RADIUS)
    degrees = min(truncation, LATITUDES - 1)
    output = equiangular(degrees, LATITUDES, RADIUS)
    equations = ShallowWater.of(planet, sphere)
    generator = Generator().manual_seed(seed * 2**31 + block)
    members = range(BLOCK) if members is None else members
    x = initial_conditions(BLOCK, generator, planet, sphere)[list(members)]

    weather = torch.empty(len(x), hours, 3, LATITUDES, 2 * LATITUDES)
    for hour in range(-24 * SPIN_UP, hours):
        if hour >= 0:
            zeta, delta, phi = x[..., : degrees + 1, : degrees + 1].unbind(-3)
            fields = (output.synthesis(phi), *output.wind(zeta, delta))
            weather[:, hour] = torch.stack(fields, dim=1)
        for _ in range(round(HOUR / dt)):
            x = equations.step(x, dt)
        finite = x.isfinite().flatten(1).all(dim=1)
        if not finite.all():
            member = members[int((~finite).nonzero()[0])]
            raise ArithmeticError(
                f"Member {member} of block {block} became infinite in hour {hour + 24 * SPIN_UP}. "
                f"Its wind is too fast for steps of {dt:g} s at {resolution}; choose a calmer "
                "planet."
            )
    return weather
