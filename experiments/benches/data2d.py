"""Data2D and its lines: each prior under each constraint, against a ground truth."""

__all__ = ["Data2DBench", "Data2DCase"]

from collections.abc import Sequence
from functools import cached_property, lru_cache

from torch import Tensor

from feasibly.errors import SamplingError
from feasibly.policy import Plan
from feasibly.problems.data2d import Data2D, Lines
from feasibly.sampling import State

from ..records import Record
from ..study import Comparison
from .base import Bench, Case, sample, summary
from .curves import Curves

PROBLEMS: dict[str, type[Data2D]] = {"data2d": Data2D, "lines": Lines, "curves": Curves}


class Data2DBench(Bench):
    """The priors under random constraints.

    Arguments:
        problem: `data2d`, `lines` or `curves`.
        priors: The names of the priors.
        constraints: Which constraints, by their seeds.
        members: The number of members of an ensemble, and of ground-truth samples.
        seed: The seed of the ensembles.
        pool: How many samples of the prior the ground truth is selected from.
    """

    keys = ("prior", "constraint")

    def __init__(
        self,
        problem: str,
        priors: Sequence[str],
        constraints: range,
        members: int,
        seed: int,
        pool: int,
    ) -> None:
        self.problem, self.priors, self.constraints = problem, list(priors), constraints
        self.members, self.seed, self.pool = members, seed, pool

    def settings(self) -> list[Record]:
        return [{"prior": p, "constraint": k} for p in self.priors for k in self.constraints]

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        return {"members": self.members, "seed": self.seed, "pool": self.pool}

    def case(self, setting: Record) -> Case:
        problem = _problem(self.problem, setting["prior"])
        return Data2DCase(problem, setting["constraint"], self.members, self.pool)


@lru_cache(maxsize=1)  # one pool of samples a prior
def _problem(problem: str, prior: str) -> Data2D:
    return PROBLEMS[problem](prior)


class Data2DCase(Case):
    """A prior under one constraint."""

    def __init__(self, problem: Data2D, k: int, members: int, pool: int) -> None:
        self.problem, self.k, self.members, self.pool = problem, k, members, pool
        self.shape, self.denoiser = problem.shape, problem.denoiser
        self.constraint = problem.constraint(k)

    @cached_property
    def _truth(self) -> tuple[Tensor, Tensor]:
        """The ground truth that samplers are scored against, and another one like it."""
        n, pool = self.members, self.pool
        found = self.problem.ground_truth(self.constraint, self.problem.prior_samples(pool))
        if len(found) < 2 * n:
            raise ValueError(
                f"Only {len(found)} of {pool} samples of the prior satisfy constraint {self.k}; "
                f"{2 * n} are needed. Raise --pool."
            )
        return found[:n], found[n : 2 * n]

    def truth(self, members: int) -> Record | None:
        return self.about(self._truth[1])

    def about(self, x: Tensor) -> Record:
        """Scores an ensemble against the truth."""
        return self.problem.scores(x, self.constraint.is_feasible(x), self._truth[0])

    def score(self, plan: Plan, members: int, seed: int) -> Record:
        """Scores samplers under their own output and, as `state_*`, under the states that the
        first attempt ends with."""
        problem, (truth, _) = self.problem, self._truth
        last: list[State] = []

        def observe(state: State) -> None:
            if state.attempt == 0:
                last[:] = [state]

        try:
            result = sample(plan, members, self.shape, seed, observe)
            state = plan.attempts[0].finish(last[0].x)
        except SamplingError as error:  # a method that breaks down scores nothing, and is kept
            nothing = dict.fromkeys(("feasible", "on_manifold", "joint", "knn"), 0.0)
            nothing |= {"weight_error": 1.0}
            noted = {f"state_{key}": value for key, value in nothing.items()}
            return nothing | noted | {"error": str(error)}
        scores = problem.scores(result.samples, result.feasible, truth)
        noisy = problem.scores(state, self.constraint.is_feasible(state), truth)
        keys = ("feasible", "on_manifold", "joint", "knn", "weight_error")
        noted = {f"state_{key}": noisy[key] for key in keys}
        return scores | noted | summary(result)

    def line(self, record: Record) -> str:
        return (
            f"feasible {record['feasible']:.1%}, joint {record['joint']:.1%}, "
            f"k-NN {record['knn']:.3f}"
        )
