"""Are neighbouring settings of PPR better than the policy's? Run on held-out constraints:
`--first 100`."""

__all__ = ["STUDY"]

from functools import partial

from feasibly.minimizers import GaussNewton

from ..samplers import ppr
from ..study import Comparison, Study
from ..tables import COLUMNS

_newton = GaussNewton  # steps = 2, max_distance = 1.5

STUDY = Study(
    name="neighbours",
    question="Are neighbouring settings of PPR better than the policy's?",
    on={
        "data2d": Comparison(
            {
                "PPR": ppr,
                "T = 24, 4 retries": partial(ppr, steps=24, attempts=5),
                "T = 48, 2 retries": partial(ppr, steps=48, attempts=3),
                "sigma_max = 0.3": partial(ppr, sigma_max=0.3),
                "sigma_max = 1.5": partial(ppr, sigma_max=1.5),
                "P = 1": partial(ppr, minimize=_newton(steps=1)),
                "P = 4": partial(ppr, minimize=_newton(steps=4)),
                "within 1": partial(ppr, minimize=_newton(max_distance=1.0)),
                "within 2": partial(ppr, minimize=_newton(max_distance=2.0)),
                "M = 2": partial(ppr, repeats=2),
                "DDIM": partial(ppr, eta=0.0),
            },
            COLUMNS["data2d"],
        )
    },
)
