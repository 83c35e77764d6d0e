"""What a training run needs to know of a prior."""

__all__ = ["Recipe", "TrainConfig"]

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from torch import Generator, Tensor, nn

from feasibly.denoisers import Karras


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
    """The last part of the steps, on which the learning rate falls as a cosine. Before it, the
    rate is constant, and a run can be made longer: `plateau.pt` is its state at the fall."""
    ema: float = 0.999
    clip: float = float("inf")
    """The largest norm of the gradient."""
    symmetries: bool = True
    """Draw each datum under a random symmetry of its law, where the recipe knows one."""
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


class Recipe(ABC):
    """A prior that can be trained.

    Attributes:
        config: The default training configuration.
        backbone: The arguments of the network.
        ends: Parts of the names of the layers at the network's ends, which Muon does not train.
    """

    config: TrainConfig
    backbone: dict[str, Any]
    ends: tuple[str, ...]

    @abstractmethod
    def denoiser(self) -> Karras:
        """Makes the untrained denoiser."""

    @abstractmethod
    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        """Draws `n` data."""

    def times(self, u: Tensor) -> Tensor:
        """Maps uniform numbers in [0, 1], in ascending order, to diffusion times, likewise."""
        return u

    @abstractmethod
    def card(self, denoiser: Karras, n: int) -> str:
        """Measures a trained denoiser's samples and renders the model card's sections on the
        data and on quality.

        Arguments:
            denoiser: The trained denoiser.
            n: The number of samples to measure.
        """

    def data(self, folder: Path) -> None:  # noqa: B027 (most draw their data)
        """Loads the data from `folder`, where the recipe does not draw them afresh.

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
