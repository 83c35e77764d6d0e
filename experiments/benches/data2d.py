"""Data2D, its lines and smooth curves: priors under constraints, against a ground truth."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache

from torch import Tensor

from feasibly.constraints import Constraint, LevelSet
from feasibly.errors import SamplingError
from feasibly.policy import Plan
from feasibly.problems.data2d import Data2D, Lines
from feasibly.result import Result
from feasibly.run import State

from ..records import Record
from ..study import Comparison
from .base import Bench, Case, sample, summary

Function = Callable[[Tensor, Tensor], Tensor]


def tilted(x: Tensor, y: Tensor) -> Tensor:
    """A parabola whose axis is turned by 30 degrees."""
    along, across = 0.866 * x + 0.5 * y, 0.866 * y - 0.5 * x
    return along + 0.4 - 0.7 * across.square()


def humps(x: Tensor, y: Tensor) -> Tensor:
    """A level of two humps of different width."""
    first = (-((x - 0.6).square() + (y - 0.4).square()) / 0.8).exp()
    return first + 0.8 * (-((x + 0.7).square() + (y + 0.3).square()) / 0.5).exp() - 0.45


CURVES: Mapping[str, Function] = {
    "Cassini oval": lambda x, y: (
        ((x - 0.8).square() + y.square()) * ((x + 0.8).square() + y.square()) - 0.9
    ),
    "superellipse": lambda x, y: (x**4 + y**4 - 1.2**4) / 4,
    "cubic": lambda x, y: y.square() - x**3 + 1.5 * x - 0.8,
    "clover": lambda x, y: x.square() + y.square() + 0.15 * (x**3 - 3 * x * y.square()) - 1.4,
    "waves": lambda x, y: (2 * x).sin() + (2 * y).cos() - 0.3,
    "tilted parabola": tilted,
    "two humps": humps,
    "two ovals": lambda x, y: x**4 - 2 * x.square() + y.square() + 0.3,
}
"""Functions whose zeros they are, by name."""


class Curves(Data2D):
    """The two priors of Data2D under these curves; constraint k is the k-th."""

    def constraint(self, k: int) -> Constraint:
        function = list(CURVES.values())[k]
        return LevelSet(lambda x: function(*x.unbind(dim=-1)))


PROBLEMS: dict[str, type[Data2D]] = {"data2d": Data2D, "lines": Lines, "curves": Curves}


class Data2DBench(Bench):
    """The priors under random constraints.

    Arguments:
        problem: `data2d`, `lines` or `curves`.
        priors: The names of the priors.
        constraints: Which constraints, by their seeds.
        members: The number of members of an ensemble, and of ground-truth samples.
        pool: How many samples of the prior the ground truth is selected from.
        seed: The seed of the ensembles.
    """

    keys = ("prior", "constraint")

    def __init__(
        self,
        problem: str,
        priors: Sequence[str],
        constraints: range,
        members: int,
        pool: int,
        seed: int = 0,
    ) -> None:
        super().__init__(priors, constraints)
        self.problem, self.members, self.pool, self.seed = problem, members, pool, seed

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        return {"members": self.members, "seed": self.seed, "pool": self.pool}

    def case(self, setting: Record) -> "Data2DCase":
        problem = _problem(self.problem, setting["prior"])
        return Data2DCase(problem, setting["constraint"], self.members, self.pool)


@lru_cache(maxsize=1)  # one pool of samples a prior
def _problem(problem: str, prior: str) -> Data2D:
    return PROBLEMS[problem](prior)


SHARES = ("feasible", "on_manifold", "joint", "knn", "weight_error")


class Data2DCase(Case):
    """A prior under one constraint."""

    shown = ("feasible", "joint", "knn")
    nothing = {  # noqa: RUF012
        f"{part}{key}": float(key == "weight_error") for part in ("", "state_") for key in SHARES
    }

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
        last: list[State] = []

        def observe(state: State) -> None:
            if state.attempt == 0:
                last[:] = [state]

        try:
            result = sample(plan, members, seed, observe)
            noisy = self.about(plan.kernels[0].finish(last[0].x))
        except SamplingError as error:
            return self.nothing | {"error": str(error)}
        states = {f"state_{key}": noisy[key] for key in SHARES}
        return self.measure(result) | states | summary(result)

    def measure(self, result: Result) -> Record:
        return self.problem.scores(result.samples, result.feasible, self._truth[0])
