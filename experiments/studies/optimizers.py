"""Which optimizer should project? The learning rates are those that `optimizers-sweep` found.

On KS it is at equal evaluations: 16 gradients, or as many products, at each of the default's
levels. The learning rates are Data2D's there, and not tuned.
"""

__all__ = ["FIRST_ORDER", "RATES", "STUDY"]

from functools import partial

from feasibly.minimizers import (
    LBFGS,
    SGD,
    Adam,
    Fromage,
    GaussNewton,
    Muon,
    Polyak,
    WarmLBFGS,
)

from ..samplers import paper, ppr
from ..study import Comparison, Study
from ..tables import COLUMNS

FIRST_ORDER = {"Adam": Adam, "Fromage": Fromage, "Muon": Muon, "SGD": SGD}
RATES = {"Adam": 1e-3, "Fromage": 1e-2, "Muon": 1e-2, "SGD": 1e-2}
"""The best of each, by `tuning.score`, in the study `optimizers-sweep`."""

_paper = partial(paper, repeats=1)
_ppr_once = partial(ppr, attempts=1)

_newton = {
    f"Gauss-Newton, {P} x {k}": partial(_ppr_once, minimize=GaussNewton(P, max_step=0.5, krylov=k))
    for P, k in ((2, 6), (4, 2))
}
_first_order = {
    f"{name}, lr = {lr:g}": partial(_ppr_once, minimize=FIRST_ORDER[name](16, lr=lr))
    for name, lr in RATES.items()
}

STUDY = Study(
    name="optimizers",
    question="Which optimizer should project?",
    on={
        "data2d": Comparison(
            {
                "PPR": ppr,
                "L-BFGS": _paper,
                "L-BFGS, step cap 0.5": partial(_paper, minimize=LBFGS()),
                "Gauss-Newton": partial(_paper, minimize=GaussNewton(8, max_distance=None)),
                "Gauss-Newton, bounded": partial(_paper, minimize=GaussNewton(8)),
                **{
                    f"{name}, lr = {lr:g}": partial(_paper, minimize=FIRST_ORDER[name](lr=lr))
                    for name, lr in RATES.items()
                },
            },
            COLUMNS["data2d"],
        ),
        "ks": Comparison(
            {
                "PPR": ppr,
                "L-BFGS": partial(_ppr_once, minimize=LBFGS(16, max_step=None, memory=12)),
                "L-BFGS, step cap 0.5": partial(_ppr_once, minimize=LBFGS(16, memory=12)),
                "L-BFGS, warm": partial(_ppr_once, minimize=WarmLBFGS(16)),
                "L-BFGS, warm, no line search": partial(
                    _ppr_once, minimize=WarmLBFGS(16, line_search=False)
                ),
                **_newton,
                "Polyak": partial(_ppr_once, minimize=Polyak(16)),
                **_first_order,
            },
            COLUMNS["ks"],
            protocol=dict.fromkeys((*_newton, "Polyak", *_first_order), (4, 4)),
        ),
    },
)
