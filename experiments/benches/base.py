"""What a study needs of a problem."""

__all__ = ["Bench", "Case", "Tap", "sample", "summary"]

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.errors import CalibrationWarning, InfeasibleWarning
from feasibly.result import Result
from feasibly.samplers import Sampler

from ..records import Record
from ..studies import Comparison


class Case(ABC):
    """A problem in one setting, with all that its samplers are compared on."""

    denoiser: Denoiser
    constraint: Constraint

    @abstractmethod
    def score(self, make: Callable[[], Sampler], members: int, seed: int) -> Record:
        """Samples an ensemble and scores it.

        Arguments:
            make: Makes the sampler anew.
            members: The number of members.
            seed: The seed of the ensemble.
        """

    def name(self, make: Callable[[], Sampler]) -> str:
        """Returns what a record calls a sampler: by it a run tells what has been done."""
        return repr(make())

    def truth(self, members: int) -> Record | None:
        """Scores the truth against itself, where it is known."""
        return None

    @abstractmethod
    def line(self, record: Record) -> str:
        """What to print of a record's scores."""


class Bench(ABC):
    """A problem as studies see it.

    Attributes:
        problem: Its name.
        keys: The names of a setting's two keys: a group of settings and a number in it.
        shares: Whether a sampler's name says all there is to say of it, so that one study may
            take the result of another.
    """

    problem: str
    keys: tuple[str, str]
    shares = False

    @abstractmethod
    def settings(self) -> list[Record]:
        """Returns all settings, those of a group together."""

    @abstractmethod
    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        """Returns the options of a label's run, such as the number of members; None if the label
        is not run in this setting."""

    @abstractmethod
    def case(self, setting: Record) -> Case:
        """Makes the problem in a setting."""


def sample(sampler: Sampler, members: int, shape: tuple[int, ...], seed: int) -> Result:
    """Samples, without the warnings of what is measured anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InfeasibleWarning)
        warnings.simplefilter("ignore", CalibrationWarning)
        return sampler.sample(members, shape, seed=seed)


class Tap:
    """Keeps the states that a sampler's last step returned, so that one run gives both outputs."""

    def __init__(self, sampler: Sampler) -> None:
        self.step = sampler.step
        self.x_t = torch.empty(0)
        sampler.step = self  # ty: ignore[invalid-assignment]

    def __call__(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        self.x_t, x_0 = self.step(*arguments)
        return self.x_t, x_0


def summary(result: Result) -> dict[str, float]:
    """Returns the violations' quantiles and what a run cost."""
    quantiles = torch.tensor([0.5, 0.9, 0.99, 1.0], dtype=torch.float64)
    c = result.violation.double().nan_to_num(posinf=1e300)
    values: Tensor = c.quantile(quantiles)
    return {
        "violation_median": values[0].item(),
        "violation_90": values[1].item(),
        "violation_99": values[2].item(),
        "violation_worst": values[3].item(),
        "forward": result.calls.forward,
        "backward": result.calls.backward,
        "member_forward": result.calls.member_forward / len(result.members),
        "member_backward": result.calls.member_backward / len(result.members),
        "seconds": result.seconds,
        "overhead": result.overhead,
    }
