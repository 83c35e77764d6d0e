"""How chaotic and how realistic is a planet's weather? `python -m experiments.planet --help`."""

import math
from dataclasses import dataclass, field

import torch
import tyro
from torch import Generator, Tensor

from feasibly.problems.shallow_water import (
    DAY,
    GRAVITY,
    RADIUS,
    RESOLUTIONS,
    Planet,
    ShallowWater,
    initial_conditions,
)
from feasibly.problems.sphere import Gaussian

EVERY = 6
"""The hours between two states that are measured."""


@dataclass(frozen=True)
class Measure:
    """Print a planet's climate and its error growth, one line each.

    Arguments:
        planet: The climate.
        resolution: The truncation.
        members: The number of members.
        spin_up: The days before anything is measured.
        days: The days that are measured.
        error: The root mean square of the twin's error in the wind v at their beginning, in m/s.
        seed: The seed.
    """

    planet: Planet = field(default_factory=Planet)
    resolution: str = "T31"
    members: int = 4
    spin_up: int = 20
    days: int = 12
    error: float = 1e-3
    seed: int = 100

    def run(self) -> None:
        truncation, nlat, dt = RESOLUTIONS[self.resolution]
        sphere = Gaussian(truncation, nlat, RADIUS)
        equations = ShallowWater.of(self.planet, sphere)
        generator = Generator().manual_seed(self.seed)
        x = initial_conditions(self.members, generator, self.planet, sphere)
        for _ in range(round(self.spin_up * DAY / dt)):
            x = equations.step(x, dt)
        x = torch.cat((x, self.twin(x, generator, sphere)))
        frames, steps = [], round(EVERY * 3600 / dt)
        for step in range(round(self.days * DAY / dt) + 1):
            if step % steps == 0:
                u, v = sphere.wind(x[:, 0], x[:, 1])
                frames.append(torch.stack((sphere.synthesis(x[:, 2]) / GRAVITY, u, v), dim=1))
            x = equations.step(x, dt)
        weather, other = torch.stack(frames, dim=1).chunk(2)
        area = sphere.weights[:, None]
        print(self)
        print("  " + climate(weather, area))
        print("  " + growth(weather, other, area))

    def twin(self, x: Tensor, generator: Generator, sphere: Gaussian) -> Tensor:
        """The states, with a small random error in the vorticity."""
        noise = initial_conditions(self.members, generator, Planet(jet=0), sphere)[:, 0]
        v = sphere.wind(noise, torch.zeros_like(noise))[1]
        scale = self.error / rms(v[:, None], sphere.weights[:, None]).mean()
        return torch.cat((x[:, :1] + scale * noise[:, None], x[:, 1:]), dim=1)


def rms(field: Tensor, area: Tensor) -> Tensor:
    """The root mean square over the sphere: (members, frames, nlat, nlon) to (members, frames)."""
    return ((field**2).mean(dim=-1, keepdim=True) * area).sum(dim=(-2, -1)).sqrt()


def climate(weather: Tensor, area: Tensor) -> str:
    """Standard deviations about the zonal and time mean, autocorrelations at 12 and 24 hours."""
    eddies = weather - weather.mean(dim=(0, 1, 4), keepdim=True)
    parts = []
    for name, eddy in zip("Zuv", eddies.unbind(2), strict=True):
        std = rms(eddy, area).square().mean().sqrt()
        lags = []
        for lag in (12 // EVERY, 24 // EVERY):
            product = (eddy[:, lag:] * eddy[:, :-lag]).mean(dim=(0, 1, 3)) @ area.flatten()
            lags.append(f"{product / std**2:.2f}")
        parts.append(f"{name} std {std:.1f} lag {'/'.join(lags)}")
    u, v = weather[:, :, 1], weather[:, :, 2]
    jet = u.mean(dim=(0, 1, 3)).max()
    daily = rms(v, area).mean(dim=0)
    halves = [part.mean() for part in daily.chunk(2)]
    return (
        f"{', '.join(parts)}; max wind {(u**2 + v**2).sqrt().max():.0f}, mean jet {jet:.0f}; "
        f"rms v, first and second half {halves[0]:.1f} {halves[1]:.1f}"
    )


def growth(weather: Tensor, other: Tensor, area: Tensor) -> str:
    """The doubling time of the error in v, over days 2 to 7 and from day 7 to the end."""
    log_error = rms((weather - other)[:, :, 2], area).log()
    per_day, last = 24 // EVERY, log_error.shape[1] - 1
    spans = [(2 * per_day, 7 * per_day), (7 * per_day, last)]
    rates = [(log_error[:, b] - log_error[:, a]) * per_day / (b - a) for a, b in spans]
    doubling = " ".join(f"{math.log(2) / rate.mean():.1f}" for rate in rates)
    members = " ".join(f"{rate:.2f}" for rate in torch.stack(rates).mean(dim=0))
    start, end = (log_error[:, i].mean().exp() for i in (0, last))
    return (
        f"doubling time in days {doubling}; error growth per day of each member {members}; "
        f"error in v {start:.1e} to {end:.1e}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    tyro.cli(Measure).run()
