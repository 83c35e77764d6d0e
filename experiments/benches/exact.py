"""Exact problems: ensembles against samples of the exact distribution, and what a run said."""

import math
import statistics
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import combinations, starmap

import torch
from torch import Tensor

from feasibly.errors import SamplingError
from feasibly.metrics import sliced_wasserstein, weight_error
from feasibly.policy import Plan
from feasibly.result import Result

from ..records import Record
from ..samplers import Make
from ..study import Comparison
from .base import Bench, PosteriorCase, chosen, sample, share, summary
from .exact_base import MEMBERS, Problem
from .exact_problems import HELD_OUT, PROBLEMS

TRUTHS = 8  # samples of the truth, whose pairs give its distance to itself
FAR = 3.0  # how many times that distance a miss is
NEAR = 1e-3  # how near to a boundary members count, in standard deviations
MANY = 2**16  # samples of the truth that tell how many are as near
MODES = 16  # the most whose weights are compared
BINS = 10  # of equal shares of the truth, for the total variation of one quantity
AXES = 4  # the most coordinates whose total variation is taken


class ExactBench(Bench):
    """Ensembles against exact distributions, the smallest problem to the largest.

    Arguments:
        members: The members of an ensemble; None for each problem's own number.

    Raises:
        ValueError: If a name is unknown, or none of those that are meant has it.
    """

    problem = "exact"
    keys = ("family", "posterior")

    def __init__(
        self, names: Sequence[str] = (), members: int | None = None, held_out: bool = False
    ) -> None:
        known = {*PROBLEMS, *(problem.family for problem in PROBLEMS.values())}
        wanted = chosen(names, sorted(known), "exact problems")
        self.members = members
        self.names = [
            name
            for name, problem in PROBLEMS.items()
            if (name in HELD_OUT) == held_out and {name, problem.family} & set(wanted)
        ]
        if not self.names:
            aside = "without" if held_out else "with"
            raise ValueError(f"{sorted(names)} are in the other part; run {aside} --held-out.")

    def settings(self) -> list[Record]:
        return [{"family": PROBLEMS[name].family, "posterior": name} for name in self.names]

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        problem = PROBLEMS[setting["posterior"]]
        if label in comparison.only and not _kinds(problem) & set(comparison.only[label]):
            return None
        return {"members": self.members or min(MEMBERS, problem.members), "seed": 0}

    def case(self, setting: Record) -> "ExactCase":
        return ExactCase(PROBLEMS[setting["posterior"]])


def _kinds(problem: Problem) -> set[str]:
    """The kinds that a study may run a label on."""
    if problem.kind in ("inequality", "mixed"):
        return {"inequalities"} if problem.kind == "inequality" else set()
    return {"equalities", "few equalities"} if problem.residuals <= 4 else {"equalities"}


class ExactCase(PosteriorCase):
    shown = ("feasible", "ratio", "std", "mean_error", "weight_error", "near", "near_exact")
    shown += ("tv", "plausible", "said", "silent", "seconds")

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.make())
        self.problem = problem

    def plan(self, make: Make) -> Plan:
        """Makes the samplers of a label; none, with the reason, if it refuses the problem."""
        try:
            return super().plan(make)
        except ValueError as error:
            return Plan((), str(error))

    def truth(self, members: int) -> Record | None:
        if not self.problem.attainable:
            return None
        x = self.posterior.sample(members, torch.Generator().manual_seed(self._seed + 2)).double()
        return self.judged(x, members)

    def score(self, plan: Plan, members: int, seed: int) -> Record:
        try:
            if not plan.kernels:
                raise ValueError(plan.reason)
            result = sample(plan, members, seed)
            result.warnings = [*plan.remarks, *result.warnings]
        except (SamplingError, ValueError) as error:  # it says that it is not right
            return self._about | {
                "feasible": 0.0,
                "said": True,
                "silent": False,
                "error": str(error),
            }
        return self.measure(result) | summary(result)

    def measure(self, result: Result) -> Record:
        found, miss = self._about | share(result.feasible), True
        if self.problem.attainable:
            found |= self._scores(result.samples, len(result.samples))
            miss = found["ratio"] > FAR or found["feasible"] < 1
        said = bool(result.warnings)
        found |= {"said": said, "silent": miss and not said, "warnings": result.warnings}
        if result.plausible is not None:
            found["plausible"] = result.plausible.double().mean().item()
        return found | {"reason": result.reason}

    def judged(self, x: Tensor, members: int) -> Record:
        """Scores samples, with shape (N, *), by whatever they were made.

        Raises:
            ValueError: If they have another shape, or are not finite.
        """
        if x.shape != (members, *self.shape):
            raise ValueError(
                f"Samples have shape {tuple(x.shape)}, and {(members, *self.shape)} was asked for."
            )
        if wrong := int((~x.flatten(start_dim=1).isfinite().all(dim=1)).sum()):
            raise ValueError(f"{wrong} of {members} samples are not finite.")
        return self._about | share(self.constraint.is_feasible(x)) | self._scores(x, members)

    @property
    def _about(self) -> Record:
        problem = self.problem
        aside = problem.name in HELD_OUT
        return {"kind": problem.kind, "attainable": problem.attainable, "held_out": aside}

    @property
    def _seed(self) -> int:
        """The seed of the truth: each problem has its own."""
        return zlib.crc32(self.problem.name.encode())

    @lru_cache(maxsize=1)  # noqa: B019 (one number of members a problem)
    def _truth(self, members: int) -> tuple[list[Tensor], float]:
        """Independent samples of the truth, as many in each as an ensemble has members, and the
        root mean square distance between two of them."""
        generator = torch.Generator().manual_seed(self._seed)
        truths = list(self.posterior.sample(TRUTHS * members, generator).double().chunk(TRUTHS))
        return truths, _root_mean_square(starmap(sliced_wasserstein, combinations(truths, 2)))

    @cached_property
    def _share_near(self) -> float:
        """The exact share of samples as near to the boundary as what is counted."""
        boundary = self.posterior.boundary
        assert boundary is not None
        x = self.posterior.sample(MANY, torch.Generator().manual_seed(self._seed + 1)).double()
        return (boundary(x) <= NEAR * _unit(x)).double().mean().item()

    def _scores(self, x: Tensor, members: int) -> Record:
        """Scores an ensemble against samples of the truth. Lengths are in standard deviations of
        the truth, over all elements together; those of the boundary in those of one element."""
        truths, own = self._truth(members)
        truth = torch.cat(truths)
        good = x[x.flatten(start_dim=1).isfinite().all(dim=1)].double()
        y, flat = truth.flatten(start_dim=1), good.flatten(start_dim=1)
        unit = y.var(dim=0).sum().sqrt()
        sliced = _root_mean_square(sliced_wasserstein(good, one) for one in truths)
        scores: Record = {
            "sliced": sliced / unit.item(),
            "ratio": sliced / own,
            "std": (flat.var(dim=0).sum().sqrt() / unit).item(),
            "mean_error": ((flat.mean(dim=0) - y.mean(dim=0)).norm() / unit).item(),
        }
        if self.posterior.mode and self.posterior.modes <= MODES:
            mode, modes = self.posterior.mode, self.posterior.modes
            scores["weight_error"] = weight_error(mode(truth), mode(good), modes)
        if self.posterior.boundary:
            near = self.posterior.boundary(good) <= NEAR * _unit(truth)
            scores["near"] = near.double().mean().item()
            scores["near_exact"] = self._share_near
            told = [self._told(z) for z in (truth, good)]
            scores["tv"] = max(map(total_variation, *(z.unbind(1) for z in told)))
        return scores

    def _told(self, x: Tensor) -> Tensor:
        """The distance to the boundary and the first coordinates, with shape (N, n)."""
        assert self.posterior.boundary is not None
        depth = self.posterior.boundary(x)[:, None]
        return torch.cat([depth, x.flatten(start_dim=1)[:, :AXES]], dim=1)


def total_variation(truth: Tensor, x: Tensor) -> float:
    """Returns the total variation between samples of a number, by bins that hold equal shares of
    the truth. Two sets of N samples of the truth are about sqrt(BINS / (2 pi N)) apart."""
    edges = truth.quantile(torch.linspace(0, 1, BINS + 1, dtype=truth.dtype)[1:-1])
    bins = [torch.bucketize(z.contiguous(), edges) for z in (truth, x)]
    shares = [which.bincount(minlength=BINS) / len(which) for which in bins]
    return (shares[0] - shares[1]).abs().sum().item() / 2


def _root_mean_square(values: Iterable[float]) -> float:
    return math.sqrt(statistics.fmean(value**2 for value in values))


def _unit(x: Tensor) -> Tensor:
    """The root mean square over the elements of their standard deviations."""
    return x.flatten(start_dim=1).var(dim=0).mean().sqrt()
