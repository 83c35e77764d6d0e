"""Solutions of the heat equation from a given initial state, by an exact denoiser and by a learned
flow."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial

from torch import Generator, Tensor

from feasibly.result import Result

from ..records import Record
from ..study import Comparison
from ..tasks.heat import fitted, p_uniform
from .base import Bench, PosteriorCase, chosen, share
from .exact_base import Posterior
from .exact_fields import initial
from .exact_learned import initial_and_mass, solution

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
        members: The members of an ensemble; None for the case's own number.
    """

    problem = "heat"
    keys = ("case", "number")

    def __init__(
        self, names: Sequence[str] = (), seeds: range = range(3), members: int | None = None
    ) -> None:
        super().__init__(chosen(names, CASES, "cases"), seeds)
        self.members = members

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        if label in comparison.only and setting["case"] not in comparison.only[label]:
            return None
        return {"members": self.members or CASES[setting["case"]][1], "seed": setting["number"]}

    def case(self, setting: Record) -> "HeatCase":
        return HeatCase(_posterior(setting["case"]), setting["number"])


@lru_cache(maxsize=1)
def _posterior(name: str) -> Posterior:
    return CASES[name][0]()


class HeatCase(PosteriorCase):
    """Solutions that begin in one state."""

    shown = ("feasible", "mmse", "nu", "nu_std", "p", "off", "plausible", "seconds")

    def __init__(self, posterior: Posterior, number: int) -> None:
        super().__init__(posterior)
        self.number = number

    @cached_property
    def _many(self) -> Tensor:
        return self.posterior.sample(MANY, Generator().manual_seed(2**20))

    def truth(self, members: int) -> Record | None:
        x = self.posterior.sample(members, Generator().manual_seed(self.number))
        return share(self.constraint.is_feasible(x)) | self.about(x)

    def measure(self, result: Result) -> Record:
        found = share(result.feasible)
        if result.plausible is not None:
            found["plausible"] = result.plausible.double().mean().item()
        found |= {"warnings": result.warnings, "reason": result.reason}
        return found | self.about(result.samples)

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
