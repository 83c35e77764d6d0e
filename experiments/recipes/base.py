"""What a training run needs to know of a prior."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import tyro
from torch import Generator, Tensor, nn

from feasibly import priors
from feasibly.denoisers import Karras

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class TrainConfig:
    """What a training run does.

    The defaults are those of the Data2D priors: the paper's batch, optimizer (Muon, no weight
    decay), cosine decay and final learning rate. The paper trains 500,000 steps with a peak of
    1e-3; for the shorter run the peaks are higher, and the average of the weights, one noise
    level in each stratum of a batch and EDM's weight of the loss make up for some of the
    difference.
    """

    prior: tyro.conf.Fixed[str]
    """The name of the prior."""
    steps: int = 50_000
    batch: int = 1024
    init: str = ""
    """Start from the weights of this prior, by its name or file, in place of random ones."""
    lr_muon: float = 5e-3
    """Peak learning rate of Muon, for the matrices inside the network."""
    lr_adam: float = 2e-3
    """Peak learning rate of Adam, for the input, the output and all vectors."""
    lr_final: float = 1e-6
    warmup: int = 0
    """Steps of linear warm-up."""
    cooldown: float = 1.0
    """The last part of the steps, on which the learning rate falls as a cosine."""
    ema: float = 0.999
    clip: float = float("inf")
    """The largest norm of the gradient."""
    symmetries: bool = True
    """Show each datum under a random symmetry of its distribution, where the recipe knows one."""
    seed: int = 0
    device: str = "cpu"
    bf16: bool = False
    """Run the network in bfloat16 where that is safe (torch.autocast)."""
    compile: bool = False
    """Compile the network (torch.compile)."""
    threads: int = 1
    minutes: float = float("inf")
    """Stop after this long, with a checkpoint from which the same command resumes."""
    checkpoint_every: int = 1000


class Recipe(ABC, Generic[M]):
    """A model of type `M` that can be trained.

    Attributes:
        config: The default training configuration.
        backbone: The arguments of the network.
        ends: Parts of the names of the layers at the network's ends, which Muon does not train.
        dtype: The precision in which the weights are shipped.
        bands: How many means of the loss are logged, each over as many of a step's data.
        order: By what the bands are ordered, for the model card.
        home: Where the weights and the card are shipped.
        licence: That of the weights and of the data.
    """

    config: TrainConfig
    backbone: dict[str, Any]
    ends: tuple[str, ...]
    dtype = torch.float32
    bands = 1
    order = ""
    home = priors.home()
    licence = "MIT; the data are simulated"

    @abstractmethod
    def model(self) -> M:
        """Makes the untrained model."""

    @abstractmethod
    def compile(self, model: M) -> None:
        """Compiles the parts of a model that do the work."""

    @abstractmethod
    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        """Samples `n` data."""

    @abstractmethod
    def loss(self, model: M, x_0: Tensor, generator: Generator) -> Tensor:
        """Returns the loss on each of some data, with shape (B), in the order of `bands`."""

    @abstractmethod
    def save(self, model: M, path: Path) -> None:
        """Writes a trained model."""

    @abstractmethod
    def load(self, name: str) -> M:
        """Reads a trained model, by its name or its file's path."""

    def about(self, model: M) -> str:
        """Returns the first rows of the model card's table."""
        return ""

    @abstractmethod
    def card(self, model: M, n: int) -> str:
        """Measures a trained model by `n` samples, and renders the model card's sections on the
        data and on quality."""

    def data(self, folder: Path) -> None:
        """Loads the data from `folder`, where the recipe does not sample them afresh.

        Raises:
            ValueError: If they are not there, with the command that makes them.
        """

    def parameters(self, denoiser: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Returns the weights that Muon trains, of two or more axes, and the others."""
        matrices, rest = [], []
        for name, parameter in denoiser.named_parameters():
            end = any(part in name for part in self.ends)
            (rest if parameter.ndim < 2 or end else matrices).append(parameter)
        return matrices, rest


def simulated(folder: Path, name: str) -> np.ndarray:
    """Returns simulated data, of :mod:`experiments.data`.

    Raises:
        ValueError: If they are not there, with the command that makes them.
    """
    path = folder / f"{name}.npy"
    if not path.exists():
        raise ValueError(
            f"There are no training data at {path}; make them with "
            f"`python -m experiments data {name} --out {folder}`."
        )
    return np.load(path, mmap_mode="r")


def size(model: nn.Module) -> int:
    """Returns the number of parameters."""
    return sum(p.numel() for p in model.parameters())


def table(*columns: Mapping[str, float], digits: int = 4) -> str:
    """Renders the lines of a table: measures by name, a column for each of the compared."""
    return "\n".join(
        f"| {name} | {' | '.join(f'{column[name]:.{digits}f}' for column in columns)} |"
        for name in columns[0]
    )


class Denoising(Recipe[Karras]):
    """The recipe of a denoiser."""

    bands = 16
    order = " by noise level, lowest first (with EDM's weight)"

    @abstractmethod
    def model(self) -> Karras:
        """Makes the untrained denoiser."""

    def compile(self, model: Karras) -> None:
        model.backbone.compile()

    def times(self, u: Tensor) -> Tensor:
        """Maps uniform numbers in [0, 1], in ascending order, to diffusion times, likewise."""
        return u

    def loss(self, model: Karras, x_0: Tensor, generator: Generator) -> Tensor:
        # one number in each of as many equal parts of [0, 1]: every noise level, every step
        n = len(x_0)
        t = self.times((torch.arange(n) + torch.rand(n, generator=generator)) / n)
        noise = torch.randn(x_0.shape, generator=generator)
        device = next(model.parameters()).device
        return model.loss(x_0.to(device), t.to(device), noise.to(device))

    def save(self, model: Karras, path: Path) -> None:
        priors.save(model, path, self.backbone, self.dtype)

    def load(self, name: str) -> Karras:
        return priors.load(name)

    def about(self, model: Karras) -> str:
        return f"| schedule | {model.schedule} |\n"
