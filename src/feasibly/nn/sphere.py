"""Convolutions on the sphere: an autoencoder of fields, and a network for trajectories of its
latents."""

__all__ = ["SphereAutoencoder", "SphereNet", "pad_sphere"]

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu

from .embedding import FiLM, SineEmbedding


def pad_sphere(h: Tensor) -> Tensor:
    """Extends fields on the sphere by a cell on every side.

    Longitude is periodic. Beyond a pole lies the row next to it, half a turn away, since rows are
    centred on their cells and none lies on the pole.

    Arguments:
        h: The fields, with shape (B, C, latitudes, longitudes); an even number of longitudes.
    """
    half = h.shape[-1] // 2
    south, north = (row.roll(half, dims=-1) for row in (h[..., :1, :], h[..., -1:, :]))
    return pad(torch.cat((south, h, north), dim=-2), (1, 1, 0, 0), mode="circular")


class Convolution(nn.Conv2d):
    """A 3 x 3 convolution of fields that `extend` extends by a cell on every side."""

    def __init__(
        self, inputs: int, outputs: int, extend: Callable[[Tensor], Tensor] = pad_sphere
    ) -> None:
        super().__init__(inputs, outputs, 3)
        self.extend = extend

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.extend(input))


class Block(nn.Module):
    r"""Creates :math:`h \mapsto h + C_2(\mathrm{SiLU}(\mathrm{FiLM}(C_1(\mathrm{norm}(h)))))`.

    Arguments:
        channels: The number of channels.
        features: The number of features of the condition; None if there is none.
        extend: See :class:`Convolution`.
    """

    def __init__(
        self,
        channels: int,
        features: int | None = None,
        extend: Callable[[Tensor], Tensor] = pad_sphere,
    ) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(channels // 16, channels)
        self.first = Convolution(channels, channels, extend)
        self.film = None if features is None else FiLM(features, channels)
        self.second = Convolution(channels, channels, extend)

    def forward(self, h: Tensor, condition: Tensor | None = None) -> Tensor:
        y = self.first(self.norm(h))
        if self.film is not None:
            assert condition is not None
            y = self.film(y.movedim(1, -1), condition[:, None, None]).movedim(-1, 1)
        return h + self.second(silu(y))


class SphereAutoencoder(nn.Module):
    r"""Compresses fields on a latitude-longitude grid, of any batch shape and in physical units.

    Inside, fields are in units of their departures from the climate of their latitude. Latents are
    held in :math:`(-5, 5)` by :math:`z / \sqrt{1 + (z / 5)^2}`, and returned in units of their own
    mean and standard deviation.

    Arguments:
        fields: The number of fields.
        rows: The number of latitudes, a multiple of 2 to the number of scales.
        latent: The number of latent channels.
        channels: The widths of the scales, from the finest to the coarsest. Latents are coarser
            than fields by 2 to the number of scales.
    """

    climate: Tensor
    scale: Tensor
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        fields: int = 3,
        rows: int = 32,
        latent: int = 16,
        channels: Sequence[int] = (48, 96, 128),
    ) -> None:
        super().__init__()
        first, last = channels[0], channels[-1]
        down: list[nn.Module] = [nn.PixelUnshuffle(2), Convolution(4 * fields, first)]
        for fine, coarse in pairwise(channels):
            down += [Block(fine), nn.PixelUnshuffle(2), nn.Conv2d(4 * fine, coarse, 1)]
        self.encoder = nn.Sequential(*down, Block(last), nn.Conv2d(last, latent, 1))
        up: list[nn.Module] = [nn.Conv2d(latent, last, 1), Block(last)]
        for coarse, fine in pairwise(reversed(channels)):
            up += [nn.Conv2d(coarse, 4 * fine, 1), nn.PixelShuffle(2), Block(fine)]
        self.decoder = nn.Sequential(*up, Convolution(first, 4 * fields), nn.PixelShuffle(2))
        self.register_buffer("climate", torch.zeros(fields, rows, 1))
        self.register_buffer("scale", torch.ones(fields, 1, 1))
        self.register_buffer("mean", torch.zeros(latent, 1, 1))
        self.register_buffer("std", torch.ones(latent, 1, 1))

    def fit_fields(self, x: Tensor) -> None:
        """Takes the units of fields from data `x`, with shape (B, fields, lat, lon): the mean of
        each latitude, and the standard deviation about it, by area."""
        self.climate.copy_(x.mean(dim=(0, 3))[..., None])
        latitude = (torch.arange(x.shape[-2]) + 0.5) * torch.pi / x.shape[-2]
        area = latitude.sin() / latitude.sin().mean()
        variance = ((x - self.climate).square() * area[:, None]).mean(dim=(0, 2, 3))
        self.scale.copy_(variance.sqrt()[:, None, None])

    def fit_latents(self, x: Tensor) -> None:
        """Takes the units of latents from data `x`, likewise."""
        z = self.encode(x) * self.std + self.mean
        self.mean.copy_(z.mean(dim=(0, 2, 3))[:, None, None])
        self.std.copy_(z.std(dim=(0, 2, 3))[:, None, None])

    def standardize(self, x: Tensor) -> Tensor:
        """Returns fields in units of their departures from the climate."""
        return (x - self.climate) / self.scale

    def encode(self, x: Tensor) -> Tensor:
        """Maps fields, with shape (*, fields, lat, lon), to latents, with shape
        (*, latent, lat / 8, lon / 8) for three scales."""
        z = self.encoder(self.standardize(x).flatten(end_dim=-4))
        z = z / (1 + (z / 5) ** 2).sqrt()
        return ((z - self.mean) / self.std).unflatten(0, x.shape[:-3])

    def decode(self, z: Tensor) -> Tensor:
        """Maps latents to fields, the other way."""
        x = self.decoder((z * self.std + self.mean).flatten(end_dim=-4))
        return (x * self.scale + self.climate).unflatten(0, z.shape[:-3])


class SphereNet(nn.Module):
    r"""A network for trajectories of latents on the sphere, whose frames are channels to it.

    A window of frames is denoised as a whole, by residual blocks that are modulated by the noise
    level. A learned bias by row tells the latitude, which a convolution does not see.

    Arguments:
        frames: The number of frames of a window.
        latent: The number of latent channels.
        rows: The number of latent rows.
        channels: The width.
        blocks: The number of residual blocks.
        frequencies: The number of frequencies of the embedding of the noise level.
    """

    def __init__(
        self,
        frames: int = 24,
        latent: int = 16,
        rows: int = 4,
        channels: int = 384,
        blocks: int = 3,
        frequencies: int = 64,
    ) -> None:
        super().__init__()
        features = 2 * frequencies
        self.embed_noise = SineEmbedding(frequencies, low=0.5, high=16.0)
        self.condition = nn.Sequential(
            nn.Linear(features, features), nn.SiLU(), nn.Linear(features, features), nn.SiLU()
        )
        self.lift = nn.Conv2d(frames * latent, channels, 1)
        self.latitude = nn.Parameter(torch.zeros(channels, rows, 1))
        self.blocks = nn.ModuleList(Block(channels, features) for _ in range(blocks))
        self.project = nn.Conv2d(channels, frames * latent, 1)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)  # ty: ignore[invalid-argument-type]

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        r"""Maps `x`, with shape :math:`(B, T, C, \mathrm{lat}, \mathrm{lon})`, and the noise
        label `noise`, with shape :math:`()` or :math:`(B)`, to an output of the shape of `x`."""
        condition = self.condition(self.embed_noise(noise.expand(x.shape[:1])))
        h = x.flatten(1, 2).contiguous(memory_format=torch.channels_last)
        h = self.lift(h) + self.latitude
        for block in self.blocks:
            h = block(h, condition)
        return self.project(h).unflatten(1, x.shape[1:3])
