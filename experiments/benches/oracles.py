"""Oracles: exact denoisers, each under constraints whose posterior is known."""

__all__ = ["OraclesBench"]

from collections.abc import Sequence

import torch
from torch import Tensor

from feasibly.errors import SamplingError
from feasibly.metrics import knn_cross_edge_rate, sliced_wasserstein, weight_error
from feasibly.policy import Plan

from ..records import Record
from ..study import Comparison
from .base import Bench, Case, sample, summary
from .posteriors import POSTERIORS


class OraclesBench(Bench):
    """Ensembles against exact posteriors.

    Arguments:
        posteriors: The names of the posteriors.
        numbers: Which of each, by their seeds.
        members: The number of members of an ensemble, and of samples of the truth.
        seed: The seed of the ensembles.
    """

    problem = "oracles"
    keys = ("posterior", "number")

    def __init__(self, posteriors: Sequence[str], numbers: range, members: int, seed: int) -> None:
        unknown = sorted(set(posteriors) - set(POSTERIORS))
        if unknown:
            raise ValueError(f"There are no oracles {unknown}; choose from {list(POSTERIORS)}.")
        self.posteriors, self.numbers = list(posteriors), numbers
        self.members, self.seed = members, seed

    def settings(self) -> list[Record]:
        return [{"posterior": name, "number": k} for name in self.posteriors for k in self.numbers]

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        if setting["posterior"] not in comparison.only.get(label, POSTERIORS):
            return None
        return {"members": self.members, "seed": self.seed}

    def case(self, setting: Record) -> Case:
        return _Case(setting["posterior"], setting["number"], self.members)


class _Case(Case):
    def __init__(self, name: str, number: int, members: int) -> None:
        self.posterior = POSTERIORS[name](number)
        self.denoiser, self.constraint = self.posterior.denoiser, self.posterior.constraint
        self.shape = self.posterior.shape
        generator = torch.Generator().manual_seed(number)
        self.first, self.second = (self.posterior.sample(members, generator) for _ in range(2))

    def truth(self, members: int) -> Record | None:
        feasible = self.constraint.is_feasible(self.second)
        return {"feasible": feasible.double().mean().item()} | self._scores(self.second)

    def score(self, plan: Plan, members: int, seed: int) -> Record:
        try:
            result = sample(plan, members, self.shape, seed)
        except SamplingError as error:  # a method that breaks down scores nothing, and is kept
            return {"feasible": 0.0, "error": str(error)}
        share = result.feasible.double().mean().item()
        return {"feasible": share} | self._scores(result.samples) | summary(result)

    def _scores(self, x: Tensor) -> Record:
        """Scores an ensemble against the truth; lengths are in standard deviations of the truth,
        taken over all directions together."""
        y, x = self.first, x.double()
        good = x[x.isfinite().all(dim=1)]
        C, own = torch.cov(y.T), torch.cov(good.T)
        unit = C.trace().sqrt()
        scores = {
            "mean_error": (good.mean(dim=0) - y.mean(dim=0)).norm() / unit,
            "std": own.trace().sqrt() / unit,
            "cov_error": torch.linalg.matrix_norm(own - C) / torch.linalg.matrix_norm(C),
            "sliced": sliced_wasserstein(good, y) / unit,
        }
        if not self.posterior.atoms:
            scores["knn"] = knn_cross_edge_rate(y, x)
        if self.posterior.mode:
            mode, modes = self.posterior.mode, self.posterior.modes
            scores["weight_error"] = weight_error(mode(y), mode(good), modes)
        return {key: float(value) for key, value in scores.items()}

    def line(self, record: Record) -> str:
        shown = ("feasible", "mean_error", "std", "sliced", "knn", "weight_error")
        return ", ".join(f"{key} {record[key]:.3f}" for key in shown if key in record)
