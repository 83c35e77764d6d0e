"""Small priors of data whose distribution is known, for the study of the default.

They are learned, so their denoisers have errors that exact ones do not have.
"""

import math
from pathlib import Path

import torch
from torch import Generator, Tensor

from feasibly import priors
from feasibly.denoisers import Karras

HOME = Path(__file__).parent.parent / "priors"


def known(name: str) -> Karras:
    """Loads one of the trained denoisers."""
    return priors.load(str(HOME / f"{name}.safetensors"))


class Clusters:
    """Five clusters of standard deviation 0.3 in eight dimensions, of unequal weights."""

    std = 0.3
    weights = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1], dtype=torch.float64)

    def __init__(self) -> None:
        generator = Generator().manual_seed(0)
        self.mu = torch.randn(5, 8, generator=generator, dtype=torch.float64)

    def sample(self, n: int, generator: Generator) -> Tensor:
        """Samples `n` data, in double precision."""
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        noise = torch.randn(n, 8, generator=generator, dtype=torch.float64)
        return self.mu[which] + self.std * noise


class Field:
    """A smooth Gaussian field of variance one at 32 points of a circle."""

    def __init__(self) -> None:
        angle = 2 * math.pi / 32 * torch.arange(32).double()
        apart = 2 * torch.sin((angle[:, None] - angle) / 2)  # along the chord
        self.cov = torch.exp(-apart.square() / 2) + 1e-3 * torch.eye(32).double()
        self.root = torch.linalg.cholesky(self.cov)

    def sample(self, n: int, generator: Generator) -> Tensor:
        """Samples `n` data, in double precision."""
        return torch.randn(n, 32, generator=generator, dtype=torch.float64) @ self.root.T
