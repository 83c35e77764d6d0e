"""How many projection steps does PPR need?"""

__all__ = ["on_ks", "study"]

import math
from functools import partial

from feasibly.minimizers import LBFGS, GaussNewton, WarmLBFGS
from feasibly.samplers import PPR

from .base import Study

_paper = partial(PPR, steps=64, repeats=2, sigma_max=math.inf, retries=0)
_uncapped = {
    f"P = {P}": partial(_paper, minimize=LBFGS(P, max_step=None)) for P in (2, 4, 8, 16, 32)
}

study = Study(
    name="projection-steps",
    question="How many projection steps does PPR need?",
    paper="Appendix D, the table and figure on projection steps, Data2D columns",
    samplers={
        "default": PPR,
        **_uncapped,
        **{f"default, P = {P}": partial(PPR, minimize=GaussNewton(P)) for P in (1, 4, 8)},
    },
    default="default",
)

on_ks = Study(
    name="projection-steps",
    question="How many projection steps does PPR need?",
    paper="Appendix D, the table and figure on projection steps, KS columns",
    samplers={
        "default": PPR,
        **_uncapped,
        **{f"default, P = {P}": partial(PPR, minimize=WarmLBFGS(P)) for P in (8, 16, 32)},
    },
    default="default",
    problem="ks",
    protocol=dict.fromkeys(("P = 2", "P = 4", "P = 16", "P = 32"), (4, 4)),
)
