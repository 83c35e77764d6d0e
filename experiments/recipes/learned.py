"""Small priors of data whose distribution is known, for the study of the default.

They are learned, so their denoisers have errors that exact ones do not have.
"""

import math
from abc import abstractmethod
from pathlib import Path

import torch
from torch import Generator, Tensor

from feasibly import priors
from feasibly.denoisers import Karras
from feasibly.metrics import sliced_wasserstein
from feasibly.nn import ModulatedMLP
from feasibly.samplers import Ancestral
from feasibly.schedules import LogLogit

from .base import Denoising, TrainConfig

HOME = Path(__file__).parent.parent / "priors"

CARD = """| data | {data} |
| network | modulated MLP, {layers} x {width}, EDM preconditioning, {parameters:,} parameters |

## Unconditional quality

{n:,} samples (second order, 128 steps), and as many fresh data, against {n:,} fresh data.

| measure | prior | data |
|---|---|---|
| sliced Wasserstein distance, in standard deviations | {apart:.4f} | {floor:.4f} |
| standard deviation / that of the data | {spread:.4f} | {own:.4f} |
"""


def known(name: str) -> Karras:
    """Loads one of the trained denoisers."""
    return priors.load(str(HOME / f"{name}.safetensors"))


class Known(Denoising):
    """A recipe for data that are vectors, sampled afresh for every step."""

    ends = ("input", "output")
    home = HOME

    def model(self) -> Karras:
        return Karras(ModulatedMLP(**self.backbone), LogLogit())

    @abstractmethod
    def sample(self, n: int, generator: Generator) -> Tensor:
        """Samples `n` data, in double precision."""

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        return self.sample(n, generator).float()

    def card(self, model: Karras, n: int) -> str:
        generator = Generator().manual_seed(self.config.seed + 1)  # not the training stream
        data, other = (self.sample(n, generator) for _ in range(2))
        shape = (self.backbone["dim"],)
        x = Ancestral(model, steps=128).sample(n, shape, seed=1).samples.double()
        unit = data.var(dim=0).sum().sqrt()
        return CARD.format(
            data=(self.__doc__ or "").splitlines()[0].rstrip("."),
            layers=self.backbone["layers"],
            width=self.backbone["width"],
            parameters=sum(p.numel() for p in model.parameters()),
            n=n,
            apart=sliced_wasserstein(data, x) / unit,
            floor=sliced_wasserstein(data, other) / unit,
            spread=x.var(dim=0).sum().sqrt() / unit,
            own=other.var(dim=0).sum().sqrt() / unit,
        )


class Clusters(Known):
    """Five clusters of standard deviation 0.3 in eight dimensions, of unequal weights."""

    config = TrainConfig("clusters", steps=20_000, batch=512)
    backbone = {"dim": 8, "width": 128, "layers": 3, "frequencies": 8}  # noqa: RUF012
    std = 0.3
    weights = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1], dtype=torch.float64)

    def __init__(self) -> None:
        generator = Generator().manual_seed(0)
        self.mu = torch.randn(5, 8, generator=generator, dtype=torch.float64)

    def sample(self, n: int, generator: Generator) -> Tensor:
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        noise = torch.randn(n, 8, generator=generator, dtype=torch.float64)
        return self.mu[which] + self.std * noise


class Field(Known):
    """A smooth Gaussian field of variance one at 32 points of a circle."""

    config = TrainConfig("field", steps=12_000, batch=512)
    backbone = {"dim": 32, "width": 256, "layers": 3, "frequencies": 4}  # noqa: RUF012

    def __init__(self) -> None:
        angle = 2 * math.pi / 32 * torch.arange(32).double()
        apart = 2 * torch.sin((angle[:, None] - angle) / 2)  # along the chord
        self.cov = torch.exp(-apart.square() / 2) + 1e-3 * torch.eye(32).double()
        self.root = torch.linalg.cholesky(self.cov)

    def sample(self, n: int, generator: Generator) -> Tensor:
        return torch.randn(n, 32, generator=generator, dtype=torch.float64) @ self.root.T
