"""What a study needs of a problem."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from torch import Tensor

from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.errors import CalibrationWarning, InfeasibleWarning, SamplingError
from feasibly.policy import Plan
from feasibly.problem import Problem
from feasibly.result import Result
from feasibly.run import State, run

from ..records import Record
from ..samplers import Make
from ..study import Comparison
from .exact_base import Posterior


class Case(ABC):
    """A problem in one setting, with all that its samplers are compared on.

    Attributes:
        shape: The shape of a sample.
        nothing: The scores of a method that breaks down.
        shown: The scores that are printed while a study runs.
    """

    shape: tuple[int, ...]
    denoiser: Denoiser
    constraint: Constraint
    nothing: Record = {"feasible": 0.0}  # noqa: RUF012
    shown: tuple[str, ...]

    def plan(self, make: Make) -> Plan:
        """Makes the kernels of a label."""
        return make(Problem(self.denoiser, self.constraint, self.shape))

    def score(self, plan: Plan, members: int, seed: int) -> Record:
        """Samples an ensemble and scores it. A method that breaks down is kept."""
        try:
            result = sample(plan, members, seed)
        except SamplingError as error:
            return self.nothing | {"error": str(error)}
        return self.measure(result) | summary(result)

    @abstractmethod
    def measure(self, result: Result) -> Record:
        """Returns an ensemble's scores."""

    def truth(self, members: int) -> Record | None:
        """Scores two exact sample sets against each other, where the truth is known."""
        return None

    def line(self, record: Record) -> str:
        """What to print of a record's scores."""
        if "error" in record:
            return f"failed: {record['error']}"
        return ", ".join(f"{key} {record[key]:.3g}" for key in self.shown if key in record)


class PosteriorCase(Case):
    """A problem whose exact distribution is known."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior, self.shape = posterior, posterior.shape
        self.denoiser, self.constraint = posterior.denoiser, posterior.constraint


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

    def __init__(self, groups: Iterable[str], numbers: Iterable[int]) -> None:
        self.groups, self.numbers = list(groups), numbers

    def settings(self) -> list[Record]:
        """Returns all settings, those of a group together."""
        group, number = self.keys
        return [{group: name, number: k} for name in self.groups for k in self.numbers]

    @abstractmethod
    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        """Returns the options of a label's run, such as the number of members; None if the label
        is not run in this setting."""

    @abstractmethod
    def case(self, setting: Record) -> Case:
        """Makes the problem in a setting."""


def chosen(names: Collection[str], known: Iterable[str], what: str) -> list[str]:
    """Returns the names that are asked for, all if there are none.

    Raises:
        ValueError: If one is unknown.
    """
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"There are no {what} {unknown}; choose from {list(known)}.")
    return list(names or known)


def share(feasible: Tensor) -> Record:
    """Returns the share of samples that are feasible."""
    return {"feasible": feasible.double().mean().item()}


def sample(
    plan: Plan,
    members: int,
    seed: int,
    observe: Callable[[State], None] | None = None,
) -> Result:
    """Samples, without the warnings of what is measured anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InfeasibleWarning)
        warnings.simplefilter("ignore", CalibrationWarning)
        result = run(
            plan.kernels,
            members,
            seed=seed,
            observe=observe,
            reason=plan.reason,
            monitor=plan.monitor,
        )
    # whose seconds are not the run's
    result.evaluations += replace(plan.evaluations, seconds=0.0)
    return result


def summary(result: Result) -> dict[str, float]:
    """Returns the violations' quantiles and what a run cost."""
    c, taken = result.violation.double().nan_to_num(posinf=1e300), result.evaluations
    names = {"median": 0.5, "90": 0.9, "99": 0.99, "worst": 1.0}
    return {f"violation_{name}": c.quantile(q).item() for name, q in names.items()} | {
        "forward": taken.forward,
        "backward": taken.backward,
        "member_forward": taken.member_forward / len(result.members),
        "member_backward": taken.member_backward / len(result.members),
        "seconds": result.seconds,
        "overhead": result.overhead,
    }
