"""Which learning rates should the first-order optimizers have? Run on held-out constraints:
`--first 100 --constraints 2`."""

__all__ = ["STUDY"]

from functools import partial

from ..samplers import paper, ppr
from ..study import Comparison, Study
from ..tables import COLUMNS
from .optimizers import FIRST_ORDER

STUDY = Study(
    name="optimizers-sweep",
    question="Which learning rates should the first-order optimizers have?",
    on={
        "data2d": Comparison(
            {
                "PPR": ppr,
                **{
                    f"{name}, lr = {lr:g}": partial(paper, repeats=1, minimize=make(lr=lr))
                    for name, make in FIRST_ORDER.items()
                    for lr in (1e-3, 1e-2, 1e-1, 1.0)
                },
            },
            COLUMNS["data2d"],
        )
    },
)
