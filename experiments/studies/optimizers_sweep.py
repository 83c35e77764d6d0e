"""Which learning rates should the first-order optimizers have? Run on held-out constraints:
`--first 100 --constraints 2`."""

__all__ = ["study"]

import math
from functools import partial

from feasibly.samplers import PPR

from .base import Study
from .optimizers import FIRST_ORDER

study = Study(
    name="optimizers-sweep",
    question="Which learning rates should the first-order optimizers have?",
    paper="",
    samplers={
        "default": PPR,
        **{
            f"{name}, lr = {lr:g}": partial(
                PPR, steps=64, sigma_max=math.inf, retries=0, minimize=make(lr=lr)
            )
            for name, make in FIRST_ORDER.items()
            for lr in (1e-3, 1e-2, 1e-1, 1.0)
        },
    },
    default="default",
)
