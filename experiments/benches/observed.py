"""Ensembles that share an exact observation of a reference: what KS and the weather have in
common."""

__all__ = ["ObservedBench", "ObservedCase"]

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from feasibly import priors
from feasibly.errors import SamplingError
from feasibly.policy import Plan
from feasibly.result import Result

from ..records import Record
from ..study import Comparison
from .base import Bench, Case, sample, summary


class ObservedBench(Bench):
    """Ensembles that share an exact observation of a reference.

    Attributes:
        prior: The name of the prior.
        protocol: How many references and members a label has, unless its study says otherwise.

    Arguments:
        observations: The kinds of observation.
        references: Which references, by their numbers.
        members: The number of members of an ensemble; None for the study's protocol.
        seed: The seed of the ensembles.
        full: Run every label on all references, and not only those of the study's protocol.
        device: Where the network runs.
    """

    keys = ("observation", "reference")
    shares = True
    prior: str
    protocol: tuple[int, int]

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
        self.weights = priors.digest(self.prior)

    def settings(self) -> list[Record]:
        return [
            {"observation": o, "reference": k} for o in self.observations for k in self.references
        ]

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        references, members = comparison.protocol.get(label, self.protocol)
        if not self.full and setting["reference"] - self.references[0] >= references:
            return None
        # with other weights, the results of these are no results
        members = self.members or members
        return {"members": members, "seed": self.seed, "weights": self.weights}


class ObservedCase(Case):
    """One reference and its observation.

    Attributes:
        reference: The reference, as :meth:`measure` scores against it.
    """

    reference: Tensor

    def score(self, plan: Plan, members: int, seed: int) -> Record:
        try:
            result = sample(plan, members, self.shape, seed)
        except SamplingError as error:  # a method that breaks down scores nothing, and is kept
            return dict.fromkeys(("feasible", "on_manifold", "joint"), 0.0) | {"error": str(error)}
        return self.measure(result) | summary(result)

    @abstractmethod
    def measure(self, result: Result) -> Record:
        """Returns an ensemble's scores and, of one reference, pictures for the gallery."""
