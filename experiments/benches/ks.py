"""Kuramoto-Sivashinsky: each kind of observation of each reference."""

__all__ = ["KSBench", "pack", "unpack"]

import base64
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from feasibly import priors
from feasibly.errors import SamplingError
from feasibly.problems.ks import KS
from feasibly.result import Result
from feasibly.samplers import Sampler

from ..records import Record
from ..studies.base import Study
from .base import Bench, Case, account, draw


class KSBench(Bench):
    """Ensembles that share an exact observation of a reference trajectory.

    Arguments:
        observations: The kinds of observation.
        references: Which references, by their numbers.
        members: The number of members of an ensemble; None for the study's protocol.
        seed: The seed of the ensembles.
        full: Run every label on all references, and not only those of the study's protocol.
        device: Where the network runs.
    """

    problem = "ks"
    keys = ("observation", "reference")
    shares = True

    def __init__(
        self,
        observations: Sequence[str],
        references: range,
        members: int | None,
        seed: int,
        full: bool = False,
        device: str = "cpu",
    ) -> None:
        self.device = device
        self.observations, self.references = list(observations), references
        self.members, self.seed, self.full = members, seed, full
        self.weights = priors.digest("ks")

    def settings(self) -> list[Record]:
        return [
            {"observation": o, "reference": k} for o in self.observations for k in self.references
        ]

    def options(self, study: Study, label: str, setting: Record) -> Record | None:
        references, members = study.protocol.get(label, (16, 8))
        if not self.full and setting["reference"] - self.references[0] >= references:
            return None
        # with other weights, the results of these are no results
        members = self.members or members
        return {"members": members, "seed": self.seed, "weights": self.weights}

    def case(self, setting: Record) -> Case:
        return _Case(setting["observation"], setting["reference"], self.device)


class _Case(Case):
    def __init__(self, observation: str, k: int, device: str) -> None:
        self.k = k
        self.problem = KS(observation, priors.load("ks").to(device))
        self.denoiser = self.problem.denoiser
        self.reference = self.problem.reference(k)
        self.constraint = self.problem.constraint(self.reference)

    def name(self, make: Callable[[], Sampler]) -> str:
        sampler = make()
        x_0 = torch.zeros(2, *self.problem.shape, device=self.reference.device)
        sampler.prepare(x_0, self.constraint.residual(x_0))  # it chooses by the residuals
        return repr(sampler)

    def score(self, make: Callable[[], Sampler], members: int, seed: int) -> Record:
        sampler, problem = make(), self.problem
        try:
            result = draw(sampler, members, problem.shape, seed)
        except SamplingError as error:  # a method that breaks down scores nothing, and is kept
            return dict.fromkeys(("feasible", "in_support", "joint"), 0.0) | {"error": str(error)}
        scores = problem.scores(result.samples, result.feasible, self.reference)
        left = problem.failures(result.samples, result.feasible)
        scores |= {"failures": {str(i): why for i, why in left.items()}} if left else {}
        return scores | account(result) | self._pictures(result)

    def _pictures(self, result: Result) -> Record:
        """The first reference and a first member, for the gallery."""
        if self.k != 0:
            return {}
        return {"picture": pack(self.reference), "picture_member": pack(result.samples[0])}

    def line(self, record: Record) -> str:
        rmse = (
            (sum(record["mse"]) / len(record["mse"])) ** 0.5 if "mse" in record else float("nan")
        )
        return (
            f"feasible {record['feasible']:.1%}, joint {record['joint']:.1%}, RMSE {rmse:.3f}, "
            f"{record.get('seconds', 0):.0f} s"
        )


def pack(u: Tensor) -> str:
    """Writes a trajectory as text, in half precision: good enough to look at."""
    return base64.b64encode(u.cpu().numpy().astype(np.float16).tobytes()).decode()


def unpack(text: str) -> np.ndarray:
    """Reads what :func:`pack` wrote, as an array with shape (T, X)."""
    flat = np.frombuffer(base64.b64decode(text), dtype=np.float16)
    size = math.isqrt(flat.size)
    return flat.reshape(size, size)
