"""The weather prior: an autoencoder of the fields, and a denoiser of days of its latents."""

__all__ = ["Weather", "WeatherAutoencoder"]

from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from feasibly import priors
from feasibly.denoisers import Karras
from feasibly.nn import SphereAutoencoder, SphereNet
from feasibly.problems.weather import AUTOENCODER, HOURS, standardize
from feasibly.schedules import LogLogit

from .base import Denoising, Recipe, TrainConfig


def _load(folder: Path) -> np.ndarray:
    path = folder / "weather.npy"
    if not path.exists():
        raise ValueError(
            f"There are no training data at {path}; make them with "
            f"`python -m experiments data weather --out {folder}`."
        )
    fields = np.load(path, mmap_mode="r")
    if fields.ndim != 5 or fields.shape[1] < HOURS or fields.shape[2:] != (3, 32, 64):
        raise ValueError(
            f"The data at {path} have shape {fields.shape}; the prior needs (members, hours, 3, "
            f"32, 64) with at least {HOURS} hours."
        )
    return fields


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


class WeatherAutoencoder(Recipe[SphereAutoencoder]):
    """The autoencoder, of one hour's fields in units of their climate."""

    config = TrainConfig(
        AUTOENCODER,
        steps=8_000,
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
    backbone = {"fields": 3, "latent": 16, "channels": (48, 96, 128)}  # noqa: RUF012
    ends = ("encoder.1.", "decoder.0.")
    dtype = torch.float16

    def model(self) -> SphereAutoencoder:
        return SphereAutoencoder(**self.backbone)

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
        x = standardize(torch.from_numpy(x).float())
        return symmetric(x, generator) if symmetries else x

    def loss(self, model: SphereAutoencoder, x_0: Tensor, generator: Generator) -> Tensor:
        x_0 = x_0.to(next(model.parameters()).device)
        return (model.decode(model.encode(x_0)) - x_0).square().mean(dim=(1, 2, 3))

    def save(self, model: SphereAutoencoder, path: Path) -> None:
        x = self.batch(2048, Generator().manual_seed(1), symmetries=True)
        with torch.no_grad():
            model.standardize(model.encode(x))
        priors.save_autoencoder(model, path, self.backbone, self.dtype)

    def load(self, name: str) -> SphereAutoencoder:
        return priors.load_autoencoder(name)


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
    ends = ("lift", "project")
    dtype = torch.float16

    def model(self) -> Karras:
        return Karras(SphereNet(**self.backbone), LogLogit(1e-3, 1e2, spread=2.0))

    def data(self, folder: Path) -> None:
        fields = _load(folder)
        path = folder / f"weather-latents-{priors.digest(AUTOENCODER)}.npy"
        if not path.exists():
            autoencoder = priors.load_autoencoder(AUTOENCODER)
            latents = [
                autoencoder.encode(standardize(torch.from_numpy(member).float())).half()
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
            torch.from_numpy(self.latents[i, h : h + HOURS]).float()
            for i, h in zip(member.tolist(), hour.tolist(), strict=True)
        ]
        if symmetries:  # a turn by a latent cell is the only one that latents know exactly
            windows = [w.roll(int(s), dims=-1) for w, s in zip(windows, shift, strict=True)]
        return torch.stack(windows)
