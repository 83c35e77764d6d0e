"""Which optimizer should project? The learning rates are those that `optimizers-sweep` found."""

__all__ = ["FIRST_ORDER", "RATES", "on_ks", "study"]

import math
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
from feasibly.samplers import PPR

from .base import Study

FIRST_ORDER = {"Adam": Adam, "Fromage": Fromage, "Muon": Muon, "SGD": SGD}
RATES = {"Adam": 1e-3, "Fromage": 1e-2, "Muon": 1e-2, "SGD": 1e-2}
"""The best of each, by `tuning.score`, in the study `optimizers-sweep`."""

_paper = partial(PPR, steps=64, sigma_max=math.inf, retries=0)

_at_ks = partial(PPR, retries=0)

study = Study(
    name="optimizers",
    question="Which optimizer should project?",
    paper="Appendix D, the figure on the optimizer",
    samplers={
        "default": PPR,
        "L-BFGS": partial(_paper, minimize=LBFGS(max_step=None)),
        "L-BFGS, step cap 0.5": partial(_paper, minimize=LBFGS()),
        "Gauss-Newton": partial(_paper, minimize=GaussNewton(8, max_distance=None)),
        "Gauss-Newton, bounded": partial(_paper, minimize=GaussNewton(8)),
        **{
            f"{name}, lr = {lr:g}": partial(_paper, minimize=FIRST_ORDER[name](lr=lr))
            for name, lr in RATES.items()
        },
    },
    default="default",
)

_newton = {
    f"Gauss-Newton, {P} x {k}": partial(_at_ks, minimize=GaussNewton(P, max_step=0.5, krylov=k))
    for P, k in ((2, 6), (4, 2))
}
_first_order = {
    f"{name}, lr = {lr:g}": partial(_at_ks, minimize=FIRST_ORDER[name](16, lr=lr))
    for name, lr in RATES.items()
}

on_ks = Study(
    name="optimizers",
    question="Which optimizer should project?",
    paper="Appendix D, the figure on the optimizer; Appendix on further KS constraints",
    samplers={
        "default": PPR,
        "L-BFGS": partial(_at_ks, minimize=LBFGS(16, max_step=None, memory=12)),
        "L-BFGS, step cap 0.5": partial(_at_ks, minimize=LBFGS(16, memory=12)),
        "L-BFGS, warm": partial(_at_ks, minimize=WarmLBFGS(16)),
        "L-BFGS, warm, no line search": partial(_at_ks, minimize=WarmLBFGS(16, line_search=False)),
        **_newton,
        "Polyak": partial(_at_ks, minimize=Polyak(16)),
        **_first_order,
    },
    default="default",
    problem="ks",
    protocol=dict.fromkeys((*_newton, "Polyak", *_first_order), (4, 4)),
)
"""At equal calls: 16 gradients, or as many products, at each of the default's levels. The learning
rates are Data2D's: on KS they are not tuned."""
