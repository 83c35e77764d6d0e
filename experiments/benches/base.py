"""What a study needs of a problem."""

__all__ = ["Bench", "Case", "sample", "summary"]

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.errors import CalibrationWarning, InfeasibleWarning
from feasibly.policy import Plan
from feasibly.result import Result
from feasibly.sampling import Problem, State, inspect, run

from ..records import Record
from ..samplers import Make
from ..study import Comparison


class Case(ABC):
    """A problem in one setting, with all that its samplers are compared on.

    Attributes:
        shape: The shape of a sample.
    """

    shape: tuple[int, ...]
    denoiser: Denoiser
    constraint: Constraint

    @cached_property
    def _inspected(self) -> Problem:
        return inspect(self.denoiser, self.constraint, self.shape)

    def plan(self, make: Make) -> Plan:
        """Makes the samplers of a label."""
        return make(self.denoiser, self.constraint, self._inspected)

    @abstractmethod
    def score(self, plan: Plan, members: int, seed: int) -> Record:
        """Samples an ensemble and scores it.

        Arguments:
            plan: The samplers.
            members: The number of members.
            seed: The seed of the ensemble.
        """

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


def sample(
    plan: Plan,
    members: int,
    shape: tuple[int, ...],
    seed: int,
    observe: Callable[[State], None] | None = None,
) -> Result:
    """Samples, without the warnings of what is measured anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InfeasibleWarning)
        warnings.simplefilter("ignore", CalibrationWarning)
        result = run(
            plan.attempts,
            members,
            shape,
            seed=seed,
            observe=observe,
            reason=plan.reason,
            monitor=plan.survey,
        )
    # whose seconds are not the run's
    result.evaluations += replace(plan.evaluations, seconds=0.0)
    return result


def summary(result: Result) -> dict[str, float]:
    """Returns the violations' quantiles and what a run cost."""
    quantiles = torch.tensor([0.5, 0.9, 0.99, 1.0], dtype=torch.float64)
    c = result.violation.double().nan_to_num(posinf=1e300)
    values: Tensor = c.quantile(quantiles.to(c.device))
    return {
        "violation_median": values[0].item(),
        "violation_90": values[1].item(),
        "violation_99": values[2].item(),
        "violation_worst": values[3].item(),
        "forward": result.evaluations.forward,
        "backward": result.evaluations.backward,
        "member_forward": result.evaluations.member_forward / len(result.members),
        "member_backward": result.evaluations.member_backward / len(result.members),
        "seconds": result.seconds,
        "overhead": result.overhead,
    }
