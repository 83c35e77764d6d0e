"""Exact problems: ensembles against samples of the exact distribution, and what a run said."""

__all__ = ["ExactBench", "ExactCase"]

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

from ..records import Record
from ..samplers import Make
from ..study import Comparison
from .base import Bench, Case, sample, summary
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
        names: Problems, or families of them; all if there are none.
        members: The members of an ensemble; None for each problem's own number.
        seed: The seed of the ensembles.
        held_out: The problems that are set aside, in place of the others.

    Raises:
        ValueError: If a name is unknown, or none of those that are meant has it.
    """

    problem = "exact"
    keys = ("family", "posterior")

    def __init__(
        self,
        names: Sequence[str] = (),
        members: int | None = None,
        seed: int = 0,
        held_out: bool = False,
    ) -> None:
        self.members, self.seed = members, seed
        known = {*PROBLEMS, *(problem.family for problem in PROBLEMS.values())}
        if unknown := sorted(set(names) - known):
            raise ValueError(
                f"There are no exact problems {unknown}; choose from {sorted(known)}."
            )
        self.names = [
            name
            for name, problem in PROBLEMS.items()
            if (name in HELD_OUT) == held_out
            and (not names or name in names or problem.family in names)
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
        members = self.members or min(MEMBERS, problem.members)
        return {"members": members, "seed": self.seed}

    def case(self, setting: Record) -> Case:
        return ExactCase(PROBLEMS[setting["posterior"]])


def _kinds(problem: Problem) -> set[str]:
    """The kinds that a study may run a label on."""
    if problem.kind in ("inequality", "mixed"):
        return {"inequalities"} if problem.kind == "inequality" else set()
    return {"equalities", "few equalities"} if problem.residuals <= 4 else {"equalities"}


class ExactCase(Case):
    def __init__(self, problem: Problem) -> None:
        self.problem, self.posterior = problem, problem.make()
        self.denoiser, self.constraint = self.posterior.denoiser, self.posterior.constraint
        self.shape = self.posterior.shape

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
            if not plan.attempts:
                raise ValueError(plan.reason)
            result = sample(plan, members, self.shape, seed)
        except (SamplingError, ValueError) as error:  # it says that it is not right
            found = {"feasible": 0.0, "said": True, "silent": False}
            return self._about | found | {"error": str(error)}
        found = self._about | {"feasible": result.feasible.double().mean().item()}
        if self.problem.attainable:
            found |= self._scores(result.samples, members)
            miss = found["ratio"] > FAR or found["feasible"] < 1
        else:
            miss = True
        said = bool(result.warnings)
        found |= {"said": said, "silent": miss and not said, "warnings": result.warnings}
        if result.plausible is not None:
            found["plausible"] = result.plausible.double().mean().item()
        return found | {"reason": result.reason} | summary(result)

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
        feasible = self.constraint.is_feasible(x).double().mean().item()
        return self._about | {"feasible": feasible} | self._scores(x, members)

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

    def line(self, record: Record) -> str:
        shown = ("feasible", "ratio", "std", "mean_error", "weight_error", "near", "near_exact")
        shown += ("tv", "plausible")
        if "error" in record:
            return f"refused or failed: {record['error']}"
        parts = [f"{key} {record[key]:.3f}" for key in shown if key in record]
        if record.get("said"):
            parts.append("said")
        if record.get("silent"):
            parts.append("SILENT")
        return ", ".join([*parts, f"{record.get('seconds', 0):.1f} s"])


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
