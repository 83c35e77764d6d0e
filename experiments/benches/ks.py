"""Kuramoto-Sivashinsky: each kind of observation of each reference."""

__all__ = ["KSBench"]

import statistics

from feasibly import priors
from feasibly.problems.ks import KS
from feasibly.result import Result

from ..records import Record, pack
from .observed import ObservedBench, ObservedCase


class KSBench(ObservedBench):
    """Trajectories of which some frames are observed."""

    problem = "ks"
    prior = "ks"
    protocol = (16, 8)

    def case(self, setting: Record) -> ObservedCase:
        return _Case(setting["observation"], setting["reference"], self.device)


class _Case(ObservedCase):
    def __init__(self, observation: str, k: int, device: str) -> None:
        self.k = k
        self.problem = KS(observation, priors.load("ks").to(device))
        self.shape, self.denoiser = self.problem.shape, self.problem.denoiser
        self.reference = self.problem.reference(k)
        self.constraint = self.problem.constraint(self.reference)

    def measure(self, result: Result) -> Record:
        problem = self.problem
        scores = problem.scores(result.samples, result.feasible, self.reference)
        left = problem.failures(result.samples, result.feasible)
        scores |= {"failures": {str(i): why for i, why in left.items()}} if left else {}
        if self.k == 0:
            scores["picture"] = pack(self.reference)
            scores["picture_member"] = pack(result.samples[0])
        return scores

    def line(self, record: Record) -> str:
        rmse = statistics.fmean(record["mse"]) ** 0.5 if "mse" in record else float("nan")
        return (
            f"feasible {record['feasible']:.1%}, joint {record['joint']:.1%}, RMSE {rmse:.3f}, "
            f"{record.get('seconds', 0):.0f} s"
        )
