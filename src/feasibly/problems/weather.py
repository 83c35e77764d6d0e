r"""Weather: days of a small planet, as latents of an autoencoder, observed through its decoder
(paper, Section 5, "Weather").

Samples are trajectories of latents :math:`z`, with shape :math:`(B, 24, 16, 4, 8)` and one frame
for each hour. A decoded frame has shape :math:`(3, 32, 64)`: geopotential without its mean over
the sphere (in m²/s²), eastward and northward wind (in m/s), on 32 latitudes and 64 longitudes.
"""

__all__ = [
    "AUTOENCODER",
    "EXCESS",
    "HOURS",
    "OBSERVATIONS",
    "VARIABLES",
    "Weather",
    "fresh_days",
    "spectra",
]

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Generator, Tensor

from .. import priors
from ..constraints import Bounds, Composite, Constraint, Decoded, FrameDecoder, Observation
from ..denoisers import Denoiser
from ..metrics import area_weights, summary
from ..minimizers import LBFGS
from ..nn import SphereAutoencoder
from . import shallow_water
from .sphere import equiangular

AUTOENCODER = "weather-autoencoder"
HOURS = 24
VARIABLES = ("geopotential", "u_component_of_wind", "v_component_of_wind")
LATITUDE = (torch.arange(32) + 0.5) * 180 / 32 - 90
TOLERANCE = 2e-6
"""The tolerance for one observed value, in squared units of its standard deviation. For 192 values
it adds up to that of the paper's Kuramoto-Sivashinsky experiment."""
EXCESS = 1e-4
"""The same for an observation that no latent decodes to, above the least error of any latent."""

FLOOR_STEPS = 500

Values = Callable[[Tensor], Tensor]
ALL = tuple(range(HOURS))

OBSERVATIONS: dict[str, tuple[tuple[int, ...], float]] = {
    "state": ((12,), 1.0),
    "wind": ((12,), 0.1),
    "sine": ((0, 12, 23), 0.1),
    "stations": ((0, 6, 12, 18), 0.02),
    "zonal": ((12,), 1.0),
    "mass": (ALL, 1.0),
}
r"""The observed hours, and the share of points that are observed.

* `state`, the paper's: all fields at noon;
* `wind`: the speed of the wind;
* `sine`: :math:`\sin 2 x` of all fields;
* `stations`: all fields;
* `zonal`: the means of all fields over longitudes;
* `mass`: the mean geopotential of every hour. The equations conserve it, and so does a decoded
  reference, up to the error of the decoder.
"""

FRESH = 1
"""The seed of data that no prior is trained on."""


class Weather:
    r"""Days of which something is observed: :math:`A(D(z)) = A(x^\mathrm{ref})`.

    References are days of the solver that no prior was trained on. For `state` they are used as
    they are, as in the paper. No latent decodes to such a day exactly, so a sample is feasible
    within a small excess of the least violation (:meth:`floor`). Other references are decoded
    latents of such days, which a latent can match exactly.

    Arguments:
        observation: What is observed, one of :data:`OBSERVATIONS` or `mixed`. The latter is
            `stations` and `mass`, with no wind stronger than the reference's, for each hour and
            component.
        denoiser: The prior; None for the shipped prior.
        autoencoder: The autoencoder of the prior; None for the shipped one.
    """

    shape = (HOURS, 16, 4, 8)

    def __init__(
        self,
        observation: str = "state",
        denoiser: Denoiser | None = None,
        autoencoder: SphereAutoencoder | None = None,
    ) -> None:
        if observation not in (*OBSERVATIONS, "mixed"):
            raise ValueError(
                f"Weather has no observation {observation!r}; choose one of "
                f"{sorted((*OBSERVATIONS, 'mixed'))}."
            )
        self.name = observation
        self.denoiser = denoiser or priors.load("weather")
        self.autoencoder = autoencoder or priors.load_autoencoder(AUTOENCODER)

    def reference(self, k: int) -> Tensor:
        """Returns the day of reference `k`, with shape (24, 3, 32, 64)."""
        block, member = divmod(k, shallow_water.BLOCK)
        day = fresh_days(block, (member,))[0].to(self.autoencoder.scale.device)
        return day if self.name == "state" else self.decode(self.autoencoder.encode(day))

    def decode(self, z: Tensor) -> Tensor:
        """Decodes trajectories, with shape (*, T, 16, 4, 8), to fields, with shape
        (*, T, 3, 32, 64)."""
        return self.autoencoder.decode(z)

    @property
    def observed(self) -> list[int]:
        """The observed hours."""
        return list(ALL if self.name == "mixed" else OBSERVATIONS[self.name][0])

    def constraint(self, reference: Tensor, k: int = 0) -> Constraint:
        """Returns the observation of a reference, with shape (24, 3, 32, 64), as a constraint on
        trajectories of latents.

        Arguments:
            reference: The reference.
            k: The number of the reference, which seeds the observed points.
        """
        if self.name != "mixed":
            return self._observe(self.name, reference, k)
        scale = self.autoencoder.scale[1:]
        wind = FrameDecoder(self.autoencoder.decode, ALL, channels=(1, 2), recompute=False)
        strongest = reference[:, 1:].abs().amax(dim=(0, 2, 3))[:, None, None] / scale
        calm = Bounds(-strongest, strongest, tolerance=TOLERANCE)
        return Composite(
            [
                self._observe("stations", reference, k),
                self._observe("mass", reference, k),
                Decoded(calm, lambda z: wind(z) / scale),
            ]
        )

    def _observe(self, name: str, reference: Tensor, k: int) -> Constraint:
        hours, _ = OBSERVATIONS[name]
        A = self.values(name, k)
        y = A(reference[None, list(hours)])[0]
        tolerance = TOLERANCE * y.numel()
        if name == "state":
            tolerance = self.floor(reference) + EXCESS * y.numel()
        frames = FrameDecoder(self.autoencoder.decode, hours, recompute=False)
        return Decoded(Observation(A, y, tolerance), frames)

    def values(self, name: str, k: int) -> Values:
        """Returns the observed function of fields, with shape (B, hours, 3, 32, 64), at the
        observed hours. Its values are in units of each variable's standard deviation."""
        units = self.autoencoder.standardize
        scale = self.autoencoder.scale
        area = area_weights(LATITUDE)[:, 0].to(scale)
        points = self.points(name, k)
        functions: dict[str, Values] = {
            "state": units,
            "wind": lambda x: x[:, :, 1:].norm(dim=2)[..., points] / scale[1, 0, 0],
            "sine": lambda x: (2 * units(x)[..., points]).sin(),
            "stations": lambda x: units(x)[..., points],
            "zonal": lambda x: units(x).mean(dim=-1),
            "mass": lambda x: (x[:, :, 0].mean(dim=-1) * area).mean(dim=-1) / scale[0, 0],
        }
        return functions[name]

    def points(self, name: str, k: int) -> Tensor:
        """Returns the points where reference `k` is observed, as a mask with shape (32, 64), whose
        density is the same everywhere on the sphere."""
        share = OBSERVATIONS[name][1]
        area = area_weights(LATITUDE).expand(32, 64)
        n = round(share * area.numel())
        generator = Generator().manual_seed(k)
        chosen = torch.multinomial(area.flatten(), n, generator=generator)
        mask = torch.zeros(area.numel(), dtype=torch.bool)
        mask[chosen] = True
        return mask.reshape(32, 64)

    def floor(self, reference: Tensor) -> float:
        r"""Returns the least violation of `state` of any latent, :math:`\min_z \|D(z) - x\|^2`.

        It is at noon and in units of standard deviations. A minimization finds it, beginning from
        the encoded state.
        """
        noon = reference[12]
        units = self.autoencoder.standardize
        target = Observation(lambda z: units(self.autoencoder.decode(z)), units(noon), 1.0)
        found = LBFGS(FLOOR_STEPS, max_step=None)(
            lambda z: (target.residual(z), z), self.autoencoder.encode(noon[None])
        )
        return found.value.item()

    def scores(self, z: Tensor, feasible: Tensor, reference: Tensor) -> dict:
        r"""Scores an ensemble against its reference, as WeatherBench2 does.

        Arguments:
            z: The ensemble, with shape :math:`(M, 24, 16, 4, 8)`.
            feasible: Which members are feasible, with shape :math:`(M)`.
            reference: The day, with shape :math:`(24, 3, 32, 64)`.

        Returns:
            A dictionary with the share `feasible`, and for each variable, in SI units, the scores
            of :func:`feasibly.metrics.summary` by hour.
        """
        shares = {"feasible": feasible.double().mean().item()}
        good = z.isfinite().flatten(start_dim=1).all(dim=1)
        if good.sum() < 2:
            return shares
        x = self.decode(z[good]).double()
        area = area_weights(LATITUDE).to(x)
        found: dict[str, list] = {}
        for v in range(len(VARIABLES)):
            scores = summary(x[None, :, :, v], reference[None, :, v].double(), area)
            for name, values in scores.items():
                found.setdefault(name, []).append(values)
        return shares | found


def spectra(x: Tensor) -> Tensor:
    """Returns the mean power of fields, with shape (..., 32, 64), at each total wavenumber, with
    shape (32). Each is taken as a scalar, also components of the wind."""
    sphere = equiangular(31, 32)
    return sphere.power(sphere.analysis(x.double())).flatten(end_dim=-2).mean(dim=0)


@lru_cache(maxsize=16)
def fresh_days(block: int, members: tuple[int, ...] | None = None) -> Tensor:
    """Returns days that no prior was trained on, with shape (members, 24, 3, 32, 64)."""
    days = shallow_water.simulate(block, FRESH, members=members)
    days[:, :, 0] -= shallow_water.Planet.geopotential
    return days
