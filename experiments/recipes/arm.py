"""The prior of a robot arm's paths."""

from pathlib import Path

import torch
from torch import Generator, Tensor

from feasibly.denoisers import Karras
from feasibly.files import save_tensors
from feasibly.metrics import sliced_wasserstein
from feasibly.problem import Problem
from feasibly.run import run
from feasibly.samplers import Ancestral

from ..peers import PEERS
from ..tasks.arm import GOAL, PEER, SHAPE, ArmPrior, depth, hand, modes, paths, prior
from .base import Denoising, TrainConfig, size, table
from .vectors import Vectors

CARD = """| data | {train} paths of 20 postures of seven angles, {held_out} more held out; \
{address}, {licence} licence |
| network | MLP, 3 x 320, next to the best linear denoiser, {parameters:,} parameters |

The steps were chosen by the loss on 60 of the paths, left out of a first training.

## Unconditional quality

{n:,} samples (second order, 128 steps), and the paths held out.

| measure | prior | held out |
|---|---|---|
{rows}
"""


class Arm(Denoising):
    """The prior of 300 paths, trained so briefly that it does not learn them by heart."""

    config = TrainConfig("arm", steps=2000, batch=256, lr_adam=1e-3, ema=0.995)
    ends = ("",)  # Adam alone, see Vectors
    dtype, home = Vectors.dtype, Vectors.home
    licence = "MIT, as of the data"

    def data(self, folder: Path) -> None:
        self.train, self.held_out = (x.float() for x in paths())

    def model(self) -> ArmPrior:
        model = ArmPrior()
        model.fit(self.train)
        return model

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        return self.train[torch.randint(len(self.train), (n,), generator=generator)]

    def save(self, model: Karras, path: Path) -> None:
        weights = dict(model.state_dict())
        weights |= {name: p.to(self.dtype) for name, p in model.named_parameters()}
        save_tensors({name: w.contiguous() for name, w in weights.items()}, path, {})

    def load(self, name: str) -> ArmPrior:
        return prior(Path(name))

    def card(self, model: Karras, n: int) -> str:
        n = min(n, 1024)
        problem = Problem(model, None, SHAPE)
        x = run([Ancestral(steps=128).bind(problem)], n, seed=1).samples
        return CARD.format(
            train=len(self.train),
            held_out=len(self.held_out),
            address=PEERS[PEER].address,
            licence=PEERS[PEER].licence,
            parameters=size(model),
            n=n,
            rows=table(self.measures(x), self.measures(self.held_out)),
        )

    def measures(self, x: Tensor) -> dict[str, float]:
        """Returns what should be alike for samples and for paths held out."""
        near = torch.cdist(x.flatten(start_dim=1), self.train.flatten(start_dim=1)).amin(dim=1)
        shares = torch.bincount(modes(x), minlength=5) / len(x)
        return {
            "distance of the hand from the goal, median (m)": (
                (hand(x[:, -1]) - GOAL).norm(dim=1).median().item()
            ),
            "share clear of obstacles": (depth(x) <= 0).all(dim=1).float().mean().item(),
            "third differences of angles, root mean square (rad)": (
                x.diff(n=3, dim=1).square().mean().sqrt().item()
            ),
            **{f"share of way {k}": share for k, share in enumerate(shares.tolist())},
            "sliced Wasserstein distance to the training paths (rad)": (
                sliced_wasserstein(x, self.train)
            ),
            "distance to the nearest training path, least (rad)": near.min().item(),
            "distance to the nearest training path, median (rad)": near.median().item(),
        }
