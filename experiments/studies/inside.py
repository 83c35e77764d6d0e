"""Are samples inside of inequalities distributed as they should be, near the boundary too?

Run with `--observations inequalities --members 4096`, so that chance is small.
"""

from collections.abc import Sequence

from ..records import DEFAULT, Record
from ..samplers import default
from ..study import Comparison, Study
from ..tables import TEXT
from .defaults import evaluations


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table, one a problem."""
    mine = [row for row in records if row["label"] == DEFAULT]
    return [row | {"evaluations": evaluations([row])} for row in mine]


STUDY = Study(
    name="inside",
    question="Are samples inside of inequalities distributed as they should be?",
    on={
        "exact": Comparison(
            {DEFAULT: default},
            {
                "posterior": ("problem", TEXT),
                "feasible": ("feasible", "{:.1%}"),
                "tv": ("total variation", "{:.3f}"),
                "std": ("std / exact", "{:.2f}"),
                "near": ("at the boundary", "{:.2%}"),
                "near_exact": ("exactly", "{:.2%}"),
                "evaluations": ("evaluations", "{}"),
            },
            only={DEFAULT: ("inequalities",)},
            rows=rows,
        ),
    },
)
