"""What a sampler that draws members again until they are accepted keeps of a run."""

__all__ = ["PILOT", "PILOT_SEED", "Pilot", "Tally"]

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

PILOT = 256  # unconditional samples that tell how likely the constraint can be
PILOT_SEED = 2**32 - 1  # theirs, so that no member depends on who else is drawn


@dataclass
class Pilot:
    """What is found once a run: the largest log h of unconditional samples, and what the denoiser
    answers to one state, by which members with conditions of their own are known."""

    highest: float
    answer: Tensor


@dataclass
class Tally:
    """How a run's members were kept."""

    begun: int = 0
    unkept: int = 0
    weight: float = 0.0
    excess: float = 0.0  # what of the weight is beyond the pilot's largest

    def weigh(self, log_ratio: Tensor) -> None:
        ratio = log_ratio.double().clamp(max=30).exp()
        self.weight += ratio.sum().item()
        self.excess += (ratio - 1).clamp_min(0).sum().item()

    def complaints(self, tries: int) -> Iterator[str]:
        if self.unkept > self.begun / 4:
            yield (
                f"Of {self.begun} members {self.unkept} were kept at none of {tries} tries, and "
                "one of these stands for each, by its weight: the masses of modes are the prior's "
                "in part. Raise `tries`, or `sigma_max` if the data has no finer edges."
            )
        if self.excess > self.weight / 20:
            yield (
                f"{self.excess / self.weight:.0%} of the likelihood of the constraint is beyond "
                f"the largest of {PILOT} samples of the prior: what is rare in it and likely to "
                "be feasible has too few members. Raise `sigma_max` if the data has no finer "
                "edges."
            )
