"""What a study is, and what a measurement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from .records import Record
from .samplers import Make
from .tables import ALL, Columns

Draw = Callable[[Sequence[Record]], Figure]


@dataclass(frozen=True)
class Comparison:
    """Samplers to compare on one problem.

    Attributes:
        samplers: For each label, how to make its samplers, one for each attempt.
        columns: What its tables show.
        figures: What its figures show, by what is added to the study's name in their files.
        protocol: The number of references and of members of the labels that have others than
            their problem's: 16 and 8 on KS, 4 and 16 on the weather.
        only: The posteriors that a label is run on, if not all; on `exact` the kinds of problem,
            `equalities`, `few equalities` and `inequalities`.
        rows: Returns the rows of its table, from its records; None for the mean of each label.
    """

    samplers: Mapping[str, Make]
    columns: Columns = field(default_factory=lambda: ALL)
    figures: Mapping[str, Draw] = field(default_factory=dict)
    protocol: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: Callable[[Sequence[Record]], Sequence[Record]] | None = None


@dataclass(frozen=True)
class Study:
    """A question in one sentence, and the samplers that answer it on one problem or several.

    Attributes:
        name: The name on the command line.
        on: What is compared on each problem. The first is the one that commands take by default.
    """

    name: str
    question: str
    on: Mapping[str, Comparison]


@dataclass(frozen=True)
class Measurement:
    """Something to measure that is no comparison of samplers.

    Attributes:
        name: The name on the command line.
        problem: The problem whose results it is kept with.
        settings: What to measure: dictionaries that JSON can hold, each a unit to resume at.
        measure: Measures a setting, and returns its records.
        rows: Returns the rows of its table, from its records.
        columns: What the table shows of them.
        figures: What its figures show, by what is added to its name in their files.
    """

    name: str
    question: str
    problem: str
    settings: Sequence[dict]
    measure: Callable[[dict], list[Record]]
    rows: Callable[[Sequence[Record]], Sequence[Record]]
    columns: Columns
    figures: Mapping[str, Draw] = field(default_factory=dict)
