"""How many projection steps does PPR need?"""

__all__ = ["STUDY"]

from functools import partial

from feasibly.minimizers import LBFGS, GaussNewton, WarmLBFGS

from ..samplers import paper, ppr
from ..study import Comparison, Study
from ..tables import COLUMNS

_uncapped = {
    f"P = {P}": partial(paper, minimize=LBFGS(P, max_step=None)) for P in (2, 4, 8, 16, 32)
}

STUDY = Study(
    name="projection-steps",
    question="How many projection steps does PPR need?",
    on={
        "data2d": Comparison(
            {
                "PPR": ppr,
                **_uncapped,
                **{f"PPR, P = {P}": partial(ppr, minimize=GaussNewton(P)) for P in (1, 4, 8)},
            },
            COLUMNS["data2d"],
        ),
        "ks": Comparison(
            {
                "PPR": ppr,
                **_uncapped,
                **{f"PPR, P = {P}": partial(ppr, minimize=WarmLBFGS(P)) for P in (8, 16, 32)},
            },
            COLUMNS["ks"],
            protocol=dict.fromkeys(("P = 2", "P = 4", "P = 16", "P = 32"), (4, 4)),
        ),
    },
)
