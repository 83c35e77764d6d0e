"""The weather prior: an autoencoder of the fields, and a denoiser of days of its latents."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from feasibly import priors, problem
from feasibly.denoisers import Correlated, Karras
from feasibly.metrics import area_weights
from feasibly.nn import SphereAutoencoder, SphereNet, ZonalCovariance
from feasibly.problems import shallow_water
from feasibly.problems.weather import (
    AUTOENCODER,
    HOURS,
    LATITUDE,
    VARIABLES,
    fresh_days,
    spectra,
)
from feasibly.problems.weather import Weather as Problem
from feasibly.run import run
from feasibly.samplers.ancestral import Ancestral
from feasibly.schedules import LogLogit

from ..tables import UNITS
from .base import Denoising, Recipe, TrainConfig, simulated, size, table


def _load(folder: Path) -> np.ndarray:
    fields = simulated(folder, "weather")
    if fields.ndim != 5 or fields.shape[1] < HOURS or fields.shape[2:] != (3, 32, 64):
        raise ValueError(
            f"The data in {folder} have shape {fields.shape}; the prior needs (members, hours, 3, "
            f"32, 64) with at least {HOURS} hours."
        )
    return fields


def climate(x: Tensor) -> dict[str, float]:
    """Measures days of weather, with shape (n, 24, 3, 32, 64), in units of the climate."""
    area = area_weights(LATITUDE)[:, 0]

    def mean(values: Tensor) -> Tensor:  # over all but the variables, by area
        return (values.mean(dim=(0, 1, 4)) * area).mean(dim=-1)

    std = mean(x.square()).sqrt()
    measured = {}
    for v, name in enumerate(("geopotential", "u", "v")):
        measured[f"{name}: standard deviation"] = std[v].item()
        for lag in (1, 6, 12, 23):
            product = mean(x[:, lag:] * x[:, :-lag])[v]
            measured[f"{name}: correlation with {lag} h before"] = (product / std[v] ** 2).item()
    return measured


def symmetric(x: Tensor, generator: Generator) -> Tensor:
    """Applies a random symmetry of the planet to each field, with shape (B, *, 3, lat, lon).

    The planet is the same at all longitudes, and its hemispheres are mirror images of each other,
    in which northward wind changes its sign.
    """
    n, longitudes = len(x), x.shape[-1]
    shift = torch.randint(longitudes, (n,), generator=generator)
    mirrored = torch.randint(2, (n,), generator=generator).bool()
    x = torch.stack([field.roll(int(s), dims=-1) for field, s in zip(x, shift, strict=True)])
    sign = torch.tensor([1.0, 1.0, -1.0])[:, None, None]
    return torch.where(mirrored.reshape(-1, *[1] * (x.ndim - 1)), sign * x.flip(-2), x)


AUTOENCODER_CARD = """| data | {members} members of `feasibly.problems.shallow_water` for {hours} \
hours, under random turns and reflections |
| network | convolutions on the sphere, {parameters:,} parameters, stored in half precision |
| latents | 16 x 4 x 8 for 3 x 32 x 64 fields |

## Reconstruction

{n} days that it was not trained on; root mean square errors over the sphere.

| variable | error | relative to the climate's standard deviation |
|---|---|---|
{rows}
"""

CARD = """| data | {windows:,} overlapping days of {members} members, in the latents of \
`weather-autoencoder` ({digest}), under random turns |
| network | convolutions on the sphere, hours as channels, EDM preconditioning with the \
data's covariance, {parameters:,} parameters, stored in half precision |

## Unconditional quality

{n} samples (second order, 512 steps), decoded, and as many days that it was not trained on, as the
solver made them and through the autoencoder. In units of the standard deviation about the mean of
each latitude in the training data.

| measure | prior | autoencoder | data |
|---|---|---|---|
{rows}

The largest relative difference of the power at total wavenumbers 1 to 15, from the data:

| variable | prior | autoencoder | halves of the data |
|---|---|---|---|
{spectra}
"""


class WeatherAutoencoder(Recipe[SphereAutoencoder]):
    """The autoencoder of one hour's fields."""

    config = TrainConfig(
        AUTOENCODER,
        steps=2_000,
        batch=64,
        lr_muon=3e-3,
        lr_adam=1e-3,
        warmup=100,
        cooldown=0.5,
        ema=0.99,
        clip=1.0,
        bf16=True,
        compile=True,
        checkpoint_every=250,
    )
    backbone = {"fields": 3, "rows": 32, "latent": 16, "channels": (48, 96, 128)}  # noqa: RUF012
    ends = ("encoder.1.", "decoder.0.")
    dtype = torch.float16

    def model(self) -> SphereAutoencoder:
        model = SphereAutoencoder(**self.backbone)
        model.fit_fields(self.batch(2048, Generator().manual_seed(1), symmetries=True))
        return model

    def compile(self, model: SphereAutoencoder) -> None:
        model.encoder.compile()
        model.decoder.compile()

    def data(self, folder: Path) -> None:
        self.fields = _load(folder)

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        members, hours = self.fields.shape[:2]
        member = torch.randint(members, (n,), generator=generator)
        hour = torch.randint(hours, (n,), generator=generator)
        x = np.stack([self.fields[i, h] for i, h in zip(member, hour, strict=True)])
        x = torch.from_numpy(x).float()
        return symmetric(x, generator) if symmetries else x

    def loss(self, model: SphereAutoencoder, x_0: Tensor, generator: Generator) -> Tensor:
        x_0 = x_0.to(next(model.parameters()).device)
        error = (model.decode(model.encode(x_0)) - x_0) / model.scale
        return error.square().mean(dim=(1, 2, 3))

    def save(self, model: SphereAutoencoder, path: Path) -> None:
        x = self.batch(2048, Generator().manual_seed(1), symmetries=True)
        with torch.no_grad():
            model.fit_latents(x)
        priors.save_autoencoder(model, path, self.backbone, self.dtype)

    def load(self, name: str) -> SphereAutoencoder:
        return priors.load_autoencoder(name)

    def card(self, model: SphereAutoencoder, n: int) -> str:
        n = min(n, 64)
        x = fresh(n)
        with torch.no_grad():
            error = model.decode(model.encode(x)) - x
        mse = (error.square().mean(dim=(0, 1, 4)) * area_weights(LATITUDE)[:, 0]).mean(dim=-1)
        parts = VARIABLES, UNITS.values(), mse.sqrt().tolist(), model.scale.flatten().tolist()
        rows = [
            f"| {name} | {e:.3g} {unit} | {e / scale:.4f} |"
            for name, unit, e, scale in zip(*parts, strict=True)
        ]
        members, hours = self.fields.shape[:2]
        return AUTOENCODER_CARD.format(
            members=members,
            hours=hours,
            parameters=size(model),
            n=n,
            rows="\n".join(rows),
        )


class Weather(Denoising):
    """The denoiser of 24 hourly frames of latents.

    The latents are encoded once, before training, and kept beside the fields.
    """

    config = TrainConfig(
        "weather",
        steps=30_000,
        batch=64,
        lr_muon=3e-3,
        lr_adam=1e-3,
        warmup=100,
        cooldown=0.25,
        ema=0.999,
        clip=1.0,
        bf16=True,
        compile=True,
        checkpoint_every=500,
    )
    backbone = {  # noqa: RUF012
        "frames": HOURS,
        "latent": 16,
        "rows": 4,
        "channels": 384,
        "blocks": 3,
    }
    covariance = {  # noqa: RUF012
        "frames": HOURS,
        "channels": 16,
        "rows": 4,
        "columns": 8,
    }
    ends = ("lift", "project")
    dtype = torch.float16

    latents: np.ndarray

    def model(self) -> Correlated:
        net = SphereNet(**self.backbone)
        covariance = ZonalCovariance(**self.covariance)
        if hasattr(self, "latents"):  # for training, else it is read
            starts = range(0, self.latents.shape[1] - HOURS + 1, HOURS)
            covariance.fit(torch.cat([_float(self.latents[:, i : i + HOURS]) for i in starts]))
        return Correlated(net, LogLogit(1e-3, 1e2, spread=2.0), covariance)

    def save(self, model: Karras, path: Path) -> None:
        priors.save(model, path, self.backbone, self.dtype, self.covariance)

    def data(self, folder: Path) -> None:
        fields = _load(folder)
        path = folder / f"weather-latents-{priors.digest(AUTOENCODER)}.npy"
        if not path.exists():
            autoencoder = priors.load_autoencoder(AUTOENCODER)
            latents = [
                autoencoder.encode(torch.from_numpy(member.copy()).float()).half()
                for member in fields
            ]
            np.save(path, torch.stack(latents).numpy())
        self.latents = np.load(path, mmap_mode="r")

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        members, hours = self.latents.shape[:2]
        member = torch.randint(members, (n,), generator=generator)
        hour = torch.randint(hours - HOURS + 1, (n,), generator=generator)
        shift = torch.randint(self.latents.shape[-1], (n,), generator=generator)
        windows = [
            _float(self.latents[i, h : h + HOURS])
            for i, h in zip(member.tolist(), hour.tolist(), strict=True)
        ]
        if symmetries:  # a turn by a latent cell is the only one that latents know exactly
            windows = [w.roll(int(s), dims=-1) for w, s in zip(windows, shift, strict=True)]
        return torch.stack(windows)

    def card(self, model: Karras, n: int) -> str:
        n = min(n, 64)
        autoencoder = priors.load_autoencoder(AUTOENCODER)
        posed = problem.Problem(model, None, Problem.shape, batch_size=16)
        z = run([Ancestral(steps=512).bind(posed)], n, seed=1).samples
        x = fresh(n)
        with torch.no_grad():
            fields = (autoencoder.decode(z), autoencoder.decode(autoencoder.encode(x)), x)
        own, through, data = (autoencoder.standardize(f) for f in fields)
        members, hours = self.latents.shape[:2]
        pairs = (own, through, data[: n // 2]), (data, data, data[n // 2 :])
        return CARD.format(
            windows=members * (hours - HOURS + 1),
            members=members,
            digest=priors.digest(AUTOENCODER),
            parameters=size(model),
            n=n,
            rows=table(*map(climate, (own, through, data)), digits=3),
            spectra=table(*map(spectral, *pairs), digits=3),
        )


def _float(part: np.ndarray) -> Tensor:
    return torch.from_numpy(part.copy()).float()


def fresh(n: int) -> Tensor:
    """Days that no prior is trained on, with shape (n, 24, 3, 32, 64)."""
    blocks = range(math.ceil(n / shallow_water.BLOCK))
    return torch.cat([fresh_days(b) for b in blocks])[:n]


def spectral(x: Tensor, y: Tensor) -> dict[str, float]:
    """The largest relative difference of the spectra of each variable, at total wavenumbers 1 to
    15."""
    found = {}
    for v, name in enumerate(VARIABLES):
        a, b = (spectra(z[:, :, v])[1:16] for z in (x, y))
        found[name] = ((a - b).abs() / b).max().item()
    return found
