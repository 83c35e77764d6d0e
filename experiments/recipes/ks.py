"""The Kuramoto-Sivashinsky priors, at 64 x 64 and at the paper's 128 x 128."""

__all__ = ["KS", "KS128"]

from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from feasibly.denoisers import Karras
from feasibly.nn import UNet
from feasibly.problems.ks import RMS
from feasibly.schedules import LogLogit

from .base import Recipe, TrainConfig


class KS(Recipe):
    """The prior of trajectories on 64 x 64 points, small enough to train on a CPU.

    Half of the paper's times lie where there is nothing to learn: above sigma = 30 the answer is
    the mean, below 0.003 it is the input. Nine tenths of a batch are drawn between the two, the
    rest outside.
    """

    size = 64
    config = TrainConfig(
        "ks",
        steps=31_250,
        batch=32,
        lr_muon=3e-3,
        lr_adam=1e-3,
        warmup=100,
        cooldown=0.25,
        clip=1.0,
        bf16=True,
        compile=True,
        checkpoint_every=250,
    )
    backbone = {"channels": (32, 64, 128, 256), "frequencies": 64}  # noqa: RUF012
    ends = ("lift", "project")

    def denoiser(self) -> Karras:
        return Karras(UNet(**self.backbone), LogLogit(1e-4, 1e4, spread=4.0))

    def data(self, folder: Path) -> None:
        path = folder / "ks.npy"
        if not path.exists():
            raise ValueError(
                f"There are no training data at {path}; make them with "
                f"`python -m experiments data ks --out {folder}`."
            )
        self.trajectories = np.load(path, mmap_mode="r")

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        r"""Draws trajectories with replacement, in units of their root mean square.

        The equation is invariant to shifts in space and to :math:`(x, u) \to (-x, -u)`. A coarser
        trajectory also starts at a random one of the finer frames that it skips.
        """
        whole = self.trajectories
        stride = whole.shape[1] // self.size

        def draw(high: int) -> Tensor:
            return torch.randint(high, (n,), generator=generator)

        index, shift, sign, offset = draw(len(whole)), draw(whole.shape[2]), draw(2), draw(stride)
        if not symmetries:
            shift, sign, offset = (torch.zeros_like(v) for v in (shift, sign, offset))
        u = torch.from_numpy(np.stack([whole[i] for i in index.tolist()])) / RMS
        frames = offset[:, None] + stride * torch.arange(self.size)
        direction = 1 - 2 * sign[:, None]
        places = (shift[:, None] + direction * stride * torch.arange(self.size)) % u.shape[2]
        u = u[torch.arange(n)[:, None, None], frames[:, :, None], places[:, None, :]]
        return direction[..., None] * u

    def times(self, u: Tensor) -> Tensor:
        knots = torch.tensor([0.0, 0.05, 0.95, 1.0])
        values = torch.tensor([0.0, 0.12, 0.75, 1.0])
        i = torch.bucketize(u, knots[1:-1], right=True)
        share = (u - knots[i]) / (knots[i + 1] - knots[i])
        return values[i] + share * (values[i + 1] - values[i])

    def card(self, denoiser: Karras, n: int) -> str:
        raise NotImplementedError


class KS128(KS):
    """The paper's prior, on 128 x 128 points: its batch, its learning rates, its 100,000 steps."""

    size = 128
    config = TrainConfig(
        "ks-128",
        steps=100_000,
        batch=64,
        lr_muon=1e-3,
        lr_adam=1e-4,
        warmup=100,
        cooldown=1.0,
        clip=1.0,
        bf16=True,
        compile=True,
        checkpoint_every=500,
    )
