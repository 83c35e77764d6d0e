"""Oracles: exact denoisers, each under constraints whose conditional law is known."""

__all__ = ["OraclesBench"]

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from feasibly.errors import SamplingError
from feasibly.metrics import knn_cross_edge_rate, sliced_wasserstein, total_variation
from feasibly.samplers import Sampler

from ..records import Record
from ..studies.base import Study
from .base import Bench, Case, account, draw
from .laws import LAWS


class OraclesBench(Bench):
    """Ensembles against exact conditional laws.

    Arguments:
        laws: The names of the laws.
        numbers: Which of each, by their seeds.
        members: The number of members of an ensemble, and of samples of the truth.
        seed: The seed of the ensembles.
    """

    problem = "oracles"
    keys = ("law", "number")

    def __init__(self, laws: Sequence[str], numbers: range, members: int, seed: int) -> None:
        unknown = set(laws) - set(LAWS)
        if unknown:
            raise ValueError(f"There are no oracles {sorted(unknown)}; choose from {list(LAWS)}.")
        self.laws, self.numbers, self.members, self.seed = list(laws), numbers, members, seed

    def settings(self) -> list[Record]:
        return [{"law": law, "number": k} for law in self.laws for k in self.numbers]

    def options(self, study: Study, label: str, setting: Record) -> Record | None:
        if setting["law"] not in study.only.get(label, LAWS):
            return None
        return {"members": self.members, "seed": self.seed}

    def case(self, setting: Record) -> Case:
        return _Case(setting["law"], setting["number"], self.members)


class _Case(Case):
    def __init__(self, name: str, number: int, members: int) -> None:
        self.law = LAWS[name](number)
        self.denoiser, self.constraint = self.law.denoiser, self.law.constraint
        generator = torch.Generator().manual_seed(number)
        self.first, self.second = (self.law.draw(members, generator) for _ in range(2))

    def truth(self, members: int) -> Record | None:
        feasible = self.constraint.is_feasible(self.second)
        return {"feasible": feasible.double().mean().item()} | self._scores(self.second)

    def score(self, make: Callable[[], Sampler], members: int, seed: int) -> Record:
        try:
            result = draw(make(), members, self.law.shape, seed)
        except SamplingError as error:  # a method that breaks down scores nothing, and is kept
            return {"feasible": 0.0, "error": str(error)}
        share = result.feasible.double().mean().item()
        return {"feasible": share} | self._scores(result.samples) | account(result)

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
        if not self.law.atoms:
            scores["knn"] = knn_cross_edge_rate(y, x)
        if self.law.mode:
            mode = self.law.mode
            scores["tv"] = total_variation(mode(y), mode(good), self.law.modes)
        return {key: float(value) for key, value in scores.items()}

    def line(self, record: Record) -> str:
        shown = ("feasible", "mean_error", "std", "sliced", "knn", "tv")
        return ", ".join(f"{key} {record[key]:.3f}" for key in shown if key in record)
