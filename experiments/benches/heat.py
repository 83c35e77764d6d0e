"""Solutions of the heat equation from a given initial state, by an exact denoiser and by a learned
flow."""

__all__ = ["CASES", "HeatBench", "HeatCase"]

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial

from torch import Generator, Tensor

from feasibly.errors import SamplingError
from feasibly.policy import Plan

from ..recipes.heat import fitted
from ..records import Record
from ..study import Comparison
from ..uniform import p_uniform
from .base import Bench, Case, sample, summary
from .exact_fields import initial
from .exact_learned import initial_and_mass, solution
from .posteriors import Posterior

CASES: Mapping[str, tuple[Callable[[], Posterior], int]] = {
    "exact, log-logit": (partial(initial, 64, "loglogit"), 512),
    "exact, flow": (partial(initial, 64, "flow"), 512),
    "learned, flow": (partial(solution, initial_and_mass), 64),
}
"""How each is made, and the members of an ensemble. The learned flow is given the mass too."""

MANY = 2**15  # samples of the truth, for its mean


class HeatBench(Bench):
    """Ensembles of solutions, whose decay is free, and uniform on [1, 5].

    Arguments:
        names: The cases; all if there are none.
        seeds: The seeds of the ensembles.
        members: The members of an ensemble; None for the case's own number.

    Raises:
        ValueError: If a name is unknown.
    """

    problem = "heat"
    keys = ("case", "number")

    def __init__(
        self, names: Sequence[str] = (), seeds: range = range(3), members: int | None = None
    ) -> None:
        if unknown := sorted(set(names) - set(CASES)):
            raise ValueError(f"There are no cases {unknown}; choose from {list(CASES)}.")
        self.names, self.seeds, self.members = tuple(names) or tuple(CASES), seeds, members

    def settings(self) -> list[Record]:
        return [{"case": name, "number": k} for name in self.names for k in self.seeds]

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        if label in comparison.only and setting["case"] not in comparison.only[label]:
            return None
        return {"members": self.members or CASES[setting["case"]][1], "seed": setting["number"]}

    def case(self, setting: Record) -> Case:
        return HeatCase(_posterior(setting["case"]), setting["number"])


@lru_cache(maxsize=1)
def _posterior(name: str) -> Posterior:
    return CASES[name][0]()


class HeatCase(Case):
    """Solutions that begin in one state."""

    def __init__(self, posterior: Posterior, number: int) -> None:
        self.posterior, self.number = posterior, number
        self.denoiser, self.constraint = posterior.denoiser, posterior.constraint
        self.shape = posterior.shape

    @cached_property
    def _many(self) -> Tensor:
        return self.posterior.sample(MANY, Generator().manual_seed(2**20))

    def truth(self, members: int) -> Record | None:
        x = self.posterior.sample(members, Generator().manual_seed(self.number))
        return {"feasible": self.constraint.is_feasible(x).double().mean().item()} | self.about(x)

    def score(self, plan: Plan, members: int, seed: int) -> Record:
        try:
            result = sample(plan, members, self.shape, seed)
        except SamplingError as error:
            return {"feasible": 0.0, "error": str(error)}
        found: Record = {"feasible": result.feasible.double().mean().item()}
        if result.plausible is not None:
            found["plausible"] = result.plausible.double().mean().item()
        found |= {"warnings": result.warnings, "reason": result.reason}
        return found | self.about(result.samples) | summary(result)

    @property
    def reference(self) -> Tensor:
        """A solution with the given initial state, in single precision."""
        return self.posterior.sample(1, Generator().manual_seed(0))[0].float()

    def about(self, x: Tensor) -> Record:
        """The squared errors of the mean and of the standard deviation, averaged over points (MMSE
        and SMSE of the PCFM benchmark); the decay, and the distance to the nearest solution."""
        x = x.double()
        _, nu, off = fitted(x)
        return {
            "mmse": (x.mean(dim=0) - self._many.mean(dim=0)).square().mean().item(),
            "smse": (x.std(dim=0) - self._many.std(dim=0)).square().mean().item(),
            "nu": nu.mean().item(),
            "nu_std": nu.std().item(),
            "p": p_uniform(nu, 1, 5),
            "off": off.square().mean().sqrt().item(),
        }

    def line(self, record: Record) -> str:
        if "error" in record:
            return f"failed: {record['error']}"
        shown = ("feasible", "mmse", "nu", "nu_std", "p", "off", "plausible", "seconds")
        return ", ".join(f"{key} {record[key]:.3g}" for key in shown if key in record)
