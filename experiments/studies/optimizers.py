"""Which optimizer should project? The learning rates are those that `optimizers-sweep` found."""

__all__ = ["FIRST_ORDER", "RATES", "study"]

import math
from functools import partial

from feasibly.minimizers import LBFGS, SGD, Adam, Fromage, GaussNewton, Muon
from feasibly.samplers import PPR

from .base import Study

FIRST_ORDER = {"Adam": Adam, "Fromage": Fromage, "Muon": Muon, "SGD": SGD}
RATES = {"Adam": 1e-3, "Fromage": 1e-2, "Muon": 1e-2, "SGD": 1e-2}
"""The best of each, by `tuning.score`, in the study `optimizers-sweep`."""

_paper = partial(PPR, steps=64, sigma_max=math.inf, retries=0)

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
