"""What a study is, and what a measurement."""

__all__ = ["Make", "Measurement", "Study"]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.samplers import Sampler

from ..records import Record

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
        problem: The problem: `data2d`, `lines` for linear constraints, `oracles`, `ks` or
            `weather`. A module may have studies of the same name on Data2D, `study`, on oracles,
            `on_oracles`, on KS, `on_ks`, and on the weather, `on_weather`.
        protocol: The number of references and of members of the labels that have others than
            their problem's: 16 and 8 on KS, 3 and 16 on the weather.
        only: The laws of the oracles that a label is run on, if not all.
    """

    name: str
    question: str
    paper: str
    samplers: Mapping[str, Make]
    default: str
    problem: str = "data2d"
    protocol: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """Something to measure that is no comparison of samplers.

    Attributes:
        name: The name on the command line.
        question: What it asks, in one sentence.
        paper: The items of the paper that it reproduces.
        settings: What to measure: dictionaries that JSON can hold, each a unit to resume at.
        measure: Measures a setting, and returns its records.
        table: Renders records as a Markdown table.
        figure: Draws records.
    """

    name: str
    question: str
    paper: str
    settings: Sequence[dict]
    measure: Callable[[dict], list[Record]]
    table: Callable[[Sequence[Record]], str]
    figure: Callable[[Sequence[Record]], Figure]
