"""UNet, the backbone of the Kuramoto-Sivashinsky prior (paper, Appendix B, Architecture)."""

__all__ = ["UNet"]

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from .embedding import SineEmbedding
from .sphere import Block


class UNet(nn.Module):
    r"""A UNet for trajectories of a field that is periodic in space and not in time.

    Each scale has one residual block, modulated by the noise level, before a strided convolution
    on the way down and after a transposed one on the way up. Convolutions are padded circularly in
    space and with zeros in time.

    Arguments:
        channels: The widths of the scales, from the finest to the coarsest.
        frequencies: The number of frequencies of the embedding of the noise level.
    """

    def __init__(
        self, channels: Sequence[int] = (32, 64, 128, 256), frequencies: int = 64
    ) -> None:
        super().__init__()
        first = channels[0]
        features = 2 * frequencies
        self.embed_noise = SineEmbedding(frequencies, low=0.5, high=16.0)
        self.condition = nn.Sequential(
            nn.Linear(features, features), nn.SiLU(), nn.Linear(features, features), nn.SiLU()
        )
        self.lift = nn.Sequential(nn.Conv2d(1, first, 1), nn.SiLU(), nn.Conv2d(first, first, 1))
        self.encode = nn.ModuleList(ResidualBlock(c, features) for c in channels[:-1])
        self.down = nn.ModuleList(
            nn.Conv2d(fine, coarse, 3, stride=2) for fine, coarse in pairwise(channels)
        )
        self.middle = ResidualBlock(channels[-1], features)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, 2, stride=2) for fine, coarse in pairwise(channels)
        )
        self.merge = nn.ModuleList(nn.Conv2d(2 * c, c, 1) for c in channels[:-1])
        self.decode = nn.ModuleList(ResidualBlock(c, features) for c in channels[:-1])
        last = nn.Conv2d(first, 1, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)  # ty: ignore[invalid-argument-type]
        self.project = nn.Sequential(nn.Conv2d(first, first, 1), nn.SiLU(), last)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        r"""Maps `x`, with shape :math:`(B, T, X)` (time, space; both divisible by 8), and the
        noise label `noise`, with shape :math:`()` or :math:`(B)`, to an output of the shape of
        `x`."""
        condition = self.condition(self.embed_noise(noise.expand(x.shape[:1])))
        h = self.lift(x[:, None].contiguous(memory_format=torch.channels_last))

        skips = []
        for encode, down in zip(self.encode, self.down, strict=True):
            h = encode(h, condition)
            skips.append(h)
            h = down(_pad(h, before=0, after=1))
        h = self.middle(h, condition)
        for i in reversed(range(len(skips))):
            h = self.merge[i](torch.cat((self.up[i](h), skips[i]), dim=1))
            h = self.decode[i](h, condition)
        return self.project(h)[:, 0]


class ResidualBlock(Block):
    """A block of convolutions over time and space, modulated by a condition."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__(channels, features, _pad)


def _pad(h: Tensor, before: int = 1, after: int = 1) -> Tensor:
    """Extends a field, with shape (B, C, T, X): by its period in X, by zeros in T."""
    return pad(pad(h, (before, after, 0, 0), mode="circular"), (0, 0, before, after))
