"""Weather: each kind of observation of each day."""

__all__ = ["WeatherBench"]

import statistics

from torch import Tensor

from feasibly import priors
from feasibly.problems.weather import AUTOENCODER, EXCESS, Weather
from feasibly.result import Result

from ..records import Record, pack
from ..variables import SHOWN
from .observed import ObservedBench, ObservedCase


class WeatherBench(ObservedBench):
    """Days of which something is observed through the decoder."""

    problem = "weather"
    prior = "weather"
    protocol = (3, 16)

    def case(self, setting: Record) -> ObservedCase:
        return _Case(setting["observation"], setting["reference"], self.device)


class _Case(ObservedCase):
    def __init__(self, observation: str, k: int, device: str) -> None:
        self.k = k
        self.problem = Weather(
            observation,
            priors.load("weather").to(device),
            priors.load_autoencoder(AUTOENCODER).to(device),
        )
        self.shape, self.denoiser = self.problem.shape, self.problem.denoiser
        self.reference = self.problem.reference(k)
        self.constraint = self.problem.constraint(self.reference, k)

    def measure(self, result: Result) -> Record:
        scores = self.problem.scores(result.samples, result.feasible, self.reference)
        if self.problem.name == "state":
            values = self.reference[12].numel()
            floor = self.constraint.tolerance / values - EXCESS
            excess = result.violation.double() / values - floor
            scores |= {"floor": floor, "excess": excess.nanmedian().item()}
        if self.k == 0:
            scores["picture"] = self._picture(self.reference)
            member = self.problem.decode(result.samples[0])
            scores["picture_member"] = self._picture(member)
        return scores

    def _picture(self, day: Tensor) -> str:
        """The wind v of some hours."""
        return pack(day[list(SHOWN), 2])

    def line(self, record: Record) -> str:
        v = statistics.fmean(record["mse"][2]) ** 0.5 if "mse" in record else float("nan")
        return (
            f"feasible {record['feasible']:.1%}, violation {record['violation_median']:.2g}, "
            f"RMSE of v {v:.2f} m/s, {record.get('seconds', 0):.0f} s"
        )
