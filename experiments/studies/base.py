"""What a study is."""

__all__ = ["Make", "Study"]

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.samplers import Sampler

Make = Callable[[Denoiser, Constraint], Sampler]


@dataclass(frozen=True)
class Study:
    """Samplers to compare on the same problems.

    Attributes:
        name: The name on the command line.
        question: What it asks, in one sentence.
        paper: The items of the paper that it reproduces.
        samplers: For each label, how to make the sampler of a denoiser and a constraint.
        default: The label of the library's default.
    """

    name: str
    question: str
    paper: str
    samplers: Mapping[str, Make]
    default: str
