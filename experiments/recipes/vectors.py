"""The priors of vectors: standardized data, and a small network."""

from abc import abstractmethod

import torch
from torch import Generator, Tensor

from feasibly.denoisers import Karras
from feasibly.metrics import sliced_wasserstein
from feasibly.nn import ModulatedMLP
from feasibly.problem import Problem
from feasibly.run import run
from feasibly.samplers import Ancestral
from feasibly.schedules import LogLogit

from ..tasks.learned import HOME
from .base import Denoising, size, table

CARD = """| data | {data} |
| network | modulated MLP, {layers} x {width}, EDM preconditioning, {parameters:,} parameters |

## Unconditional quality

{n:,} samples (second order, 128 steps), and as many fresh data, against {n:,} fresh data.

| measure | prior | data |
|---|---|---|
{rows}
"""


class Vectors(Denoising):
    """The recipe of a denoiser of vectors, whose coordinates have mean zero and variance one.

    Attributes:
        what: What the data are, where they come from, and their licence, for the model card.
    """

    ends = ("",)  # Adam alone: Muon computes in bfloat16, which many CPUs only emulate
    dtype = torch.float16
    home = HOME
    what: str

    @abstractmethod
    def sample(self, n: int, generator: Generator) -> Tensor:
        """Samples `n` standardized data, with shape (n, D)."""

    def model(self) -> Karras:
        return Karras(ModulatedMLP(**self.backbone), LogLogit())

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        return self.sample(n, generator).float()

    def card(self, model: Karras, n: int) -> str:
        generator = Generator().manual_seed(self.config.seed + 1)  # not the training stream
        data, other = (self.sample(n, generator).double() for _ in range(2))
        problem = Problem(model, None, data.shape[1:], batch_size=4096)
        x = run([Ancestral(steps=128).bind(problem)], n, seed=1).samples.double()
        unit = data.var(dim=0).sum().sqrt()
        quality = [
            {
                "sliced Wasserstein distance, in standard deviations": (
                    sliced_wasserstein(data, y) / unit.item()
                ),
                "standard deviation / that of the data": (y.var(dim=0).sum().sqrt() / unit).item(),
            }
            for y in (x, other)
        ]
        return CARD.format(
            data=self.what,
            layers=self.backbone["layers"],
            width=self.backbone["width"],
            parameters=size(model),
            n=n,
            rows=table(*quality),
        )
