"""Ensembles that share an exact observation of a reference: Kuramoto-Sivashinsky and weather."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from feasibly import priors
from feasibly.problems.ks import KS, OBSERVATIONS
from feasibly.problems.weather import AUTOENCODER, EXCESS, Weather
from feasibly.result import Result

from ..records import Record, pack
from ..study import Comparison
from ..tables import SHOWN
from .base import Bench, Case

P = TypeVar("P", KS, Weather)


class ObservedBench(Bench):
    """Ensembles that share an exact observation of a reference.

    Attributes:
        kinds: The kinds of observation that are run if no others are named.
        protocol: How many references and members a label has, unless its study says otherwise.

    Arguments:
        members: The number of members of an ensemble; None for the study's protocol.
        device: Where the network runs.
    """

    keys = ("observation", "reference")
    shares = True
    kinds: ClassVar[tuple[str, ...]]
    protocol: ClassVar[tuple[int, int]]

    def __init__(
        self,
        observations: Sequence[str],
        references: range,
        members: int | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(observations, references)
        self.members, self.device = members, device
        self.weights = priors.digest(self.problem)

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        references, members = comparison.protocol.get(label, self.protocol)
        if setting["reference"] - next(iter(self.numbers)) >= references:
            return None
        # with other weights, the results of these are no results
        return {"members": self.members or members, "seed": 0, "weights": self.weights}


class ObservedCase(Case, Generic[P]):
    """One reference and its observation. Of the first reference, pictures are kept too."""

    nothing = dict.fromkeys(("feasible", "on_manifold", "joint"), 0.0)
    problem: P

    def __init__(self, problem: P, k: int) -> None:
        self.problem, self.k, self.reference = problem, k, problem.reference(k)
        self.shape, self.denoiser = problem.shape, problem.denoiser

    def measure(self, result: Result) -> Record:
        found = self.problem.scores(result.samples, result.feasible, self.reference)
        found |= self.more(result)
        if self.k == 0:
            found["picture"] = pack(self.picture(self.reference))
            found["picture_member"] = pack(self.picture(self.decoded(result.samples[0])))
        return found

    def decoded(self, x: Tensor) -> Tensor:
        """A member as the reference is."""
        return x

    @abstractmethod
    def more(self, result: Result) -> Record:
        """Returns scores of this problem alone."""

    @abstractmethod
    def picture(self, x: Tensor) -> Tensor:
        """What is kept of a member."""


class KSBench(ObservedBench):
    """Trajectories of which some frames are observed."""

    problem = "ks"
    kinds = tuple(OBSERVATIONS)
    protocol = (16, 8)

    def case(self, setting: Record) -> ObservedCase:
        prior = priors.load("ks").to(self.device)
        return _KSCase(KS(setting["observation"], prior), setting["reference"])


class _KSCase(ObservedCase[KS]):
    shown = ("feasible", "joint", "max_norm", "seconds")

    def __init__(self, problem: KS, k: int) -> None:
        super().__init__(problem, k)
        self.constraint = problem.constraint(self.reference)

    def more(self, result: Result) -> Record:
        left = self.problem.failures(result.samples, result.feasible)
        return {"failures": {str(i): why for i, why in left.items()}} if left else {}

    def picture(self, x: Tensor) -> Tensor:
        return x


class WeatherBench(ObservedBench):
    """Days of which something is observed through the decoder."""

    problem = "weather"
    kinds = ("state", "wind", "sine")
    protocol = (4, 16)

    def case(self, setting: Record) -> ObservedCase:
        prior = priors.load("weather").to(self.device)
        autoencoder = priors.load_autoencoder(AUTOENCODER).to(self.device)
        problem = Weather(setting["observation"], prior, autoencoder)
        return _WeatherCase(problem, setting["reference"])


class _WeatherCase(ObservedCase[Weather]):
    shown = ("feasible", "violation_median", "seconds")

    def __init__(self, problem: Weather, k: int) -> None:
        super().__init__(problem, k)
        self.constraint = problem.constraint(self.reference, k)

    def decoded(self, x: Tensor) -> Tensor:
        return self.problem.decode(x)

    def more(self, result: Result) -> Record:
        if self.problem.name != "state":
            return {}
        values = self.reference[12].numel()
        floor = self.constraint.tolerance / values - EXCESS
        excess = result.violation.double() / values - floor
        return {"floor": floor, "excess": excess.nanmedian().item()}

    def picture(self, x: Tensor) -> Tensor:
        """The wind v of some hours."""
        return x[list(SHOWN), 2]
