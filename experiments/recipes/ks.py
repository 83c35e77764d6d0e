"""The Kuramoto-Sivashinsky priors, at 64 x 64 and at the paper's 128 x 128."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from feasibly.denoisers import Karras
from feasibly.nn import UNet
from feasibly.problem import Problem
from feasibly.problems import ks_solver
from feasibly.problems.ks import RMS, residual, spectrum_distance, statistics
from feasibly.run import run
from feasibly.samplers.ancestral import Ancestral
from feasibly.schedules import LogLogit

from ..data import FRESH
from .base import Denoising, TrainConfig, simulated, size, table

CARD = """| data | {trajectories:,} trajectories of `feasibly.problems.ks_solver.simulate`, under \
random shifts, reflections and starts |
| network | UNet, EDM preconditioning, {parameters:,} parameters |

## Unconditional quality

{n} samples (second order, 256 steps) on {size} x {size} points, and as many fresh trajectories of
the solver. The equation's residual and the spatial mean are in physical units, the others in units
of the data's root mean square, 1.307.

| measure | prior | data |
|---|---|---|
{rows}
"""


class KS(Denoising):
    """The prior of trajectories on 64 x 64 points, small enough to train on a CPU.

    More than a third of the paper's times lie where there is little to learn: above sigma = 30
    the answer is the mean, below 0.003 it is the input. Nine tenths of a batch are sampled between
    the two, the rest outside.
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
        ema=0.99,  # the fall of the rates averages too; a longer one lags behind a short run
        clip=1.0,
        bf16=True,
        compile=True,
        checkpoint_every=250,
    )
    backbone = {"channels": (32, 64, 128, 256), "frequencies": 64}  # noqa: RUF012
    ends = ("lift", "project")

    def model(self) -> Karras:
        return Karras(UNet(**self.backbone), LogLogit(1e-4, 1e4, spread=4.0))

    def data(self, folder: Path) -> None:
        self.trajectories = simulated(folder, "ks")
        shape = self.trajectories.shape
        if len(shape) != 3 or shape[1] % self.size or shape[2] % self.size:
            raise ValueError(
                f"The data in {folder} have shape {shape}; the prior needs trajectories whose "
                f"frames and points are multiples of {self.size}."
            )

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        r"""Samples trajectories with replacement, in units of their root mean square.

        The equation is invariant to shifts in space and to :math:`(x, u) \to (-x, -u)`. A coarser
        trajectory also starts at a random one of the finer frames that it skips.
        """
        whole = self.trajectories
        stride = whole.shape[1] // self.size

        def random(high: int) -> Tensor:
            return torch.randint(high, (n,), generator=generator)

        highs = (len(whole), whole.shape[2], 2, stride)
        index, shift, sign, offset = (random(high) for high in highs)
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

    def card(self, model: Karras, n: int) -> str:
        n = min(n, 128)
        posed = Problem(model, None, (self.size, self.size), batch_size=16)
        x = run([Ancestral(steps=256).bind(posed)], n, seed=1).samples
        blocks = range(math.ceil(n / ks_solver.BLOCK))
        fresh = torch.cat([ks_solver.simulate(b, FRESH, self.size) for b in blocks])[:n] / RMS
        rows = [table(measures(x), measures(fresh))]
        largest = [  # what SUPPORT is 1.1 times of
            {f"largest {name}": values.max().item() for name, values in statistics(u).items()}
            for u in (x, fresh)
        ]
        rows.append(table(*largest))
        half, other = fresh.chunk(2)
        rows.append(
            f"| energy error, worst of modes 1 to 20 | {spectrum_distance(x, fresh):.4f} | "
            f"{spectrum_distance(half, other):.4f} (halves) |"
        )
        quantiles = {"least": 0.0, "5 % quantile": 0.05, "median": 0.5}
        distances = [self.distance(u) for u in (x, fresh)]
        near = [
            {
                f"distance to the nearest training trajectory, {name}": d.quantile(q).item()
                for name, q in quantiles.items()
            }
            for d in distances
        ]
        rows.append(table(*near))
        return CARD.format(
            trajectories=len(self.trajectories),
            parameters=size(model),
            n=n,
            size=self.size,
            rows="\n".join(rows),
        )

    def distance(self, x: Tensor) -> Tensor:
        """Returns the distance of each of `x` to the nearest training trajectory, in any image
        that training may have shown, with shape (B)."""
        stride = self.trajectories.shape[1] // self.size
        least = torch.full((len(x),), torch.inf)
        for first in range(0, len(self.trajectories), 256):
            whole = torch.from_numpy(self.trajectories[first : first + 256].copy()) / RMS
            for frame in range(stride):
                for place in range(stride):
                    part = whole[:, frame::stride, place::stride]
                    least = torch.minimum(least, nearest(x, part))
        return least


def measures(x: Tensor) -> dict[str, float]:
    """Returns what should be alike for a prior's samples and for data, with shape (B, T, X)."""
    mean = RMS * x.mean(dim=2)  # over space, which the equation conserves
    return {
        "residual of the equation, median": residual(x).median().item(),
        "root mean square": x.square().mean().sqrt().item(),
        "spatial mean, root mean square": mean.square().mean().sqrt().item(),
        "its drift within a trajectory": mean.std(dim=1).square().mean().sqrt().item(),
        "change between frames, root mean square": x.diff(dim=1).square().mean().sqrt().item(),
    }


def nearest(x: Tensor, train: Tensor) -> Tensor:
    """Returns the root mean square distance of each trajectory to the nearest of `train`, which
    may be shifted in space and reflected, with shape (B)."""
    points = x.shape[2]
    x_hat, energy = torch.fft.rfft(x), x.square().sum(dim=(1, 2))
    least = torch.full((len(x),), torch.inf)
    for image in (train, -train.flip(2)):
        product = torch.einsum("btk,ntk->bnk", x_hat, torch.fft.rfft(image).conj())
        overlap = torch.fft.irfft(product, n=points).amax(dim=2)
        square = energy[:, None] + image.square().sum(dim=(1, 2)) - 2 * overlap
        least = torch.minimum(least, square.amin(dim=1))
    return (least.clamp_min(0) / x[0].numel()).sqrt()


class KS128(KS):
    """The paper's prior, on 128 x 128 points: its batch, peak learning rate, warm-up and 100,000
    steps. The paper has 65,536 trajectories (`data ks --number 65536`) and says nothing of
    averages, strata, symmetries or a clipped gradient, which are ours.
    """

    size = 128
    config = TrainConfig(
        "ks-128",
        steps=100_000,
        batch=64,
        lr_muon=1e-4,
        lr_adam=1e-4,
        warmup=100,
        cooldown=1.0,
        clip=1.0,
        bf16=True,
        compile=True,
        checkpoint_every=500,
    )
