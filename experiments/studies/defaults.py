"""Which defaults should PPR have? Run on held-out constraints: `--first 100`."""

__all__ = ["study"]

from functools import partial

from feasibly.minimizers import GaussNewton
from feasibly.samplers import PPR

from .base import Study

_newton = GaussNewton  # steps = 2, max_distance = 1.5

study = Study(
    name="defaults",
    question="Which defaults should PPR have?",
    paper="",
    samplers={
        "default": PPR,
        "T = 24, 4 retries": partial(PPR, steps=24, retries=4),
        "T = 48, 2 retries": partial(PPR, steps=48, retries=2),
        "sigma_max = 0.3": partial(PPR, sigma_max=0.3),
        "sigma_max = 1.5": partial(PPR, sigma_max=1.5),
        "P = 1": partial(PPR, minimize=_newton(steps=1)),
        "P = 4": partial(PPR, minimize=_newton(steps=4)),
        "within 1": partial(PPR, minimize=_newton(max_distance=1.0)),
        "within 2": partial(PPR, minimize=_newton(max_distance=2.0)),
        "M = 2": partial(PPR, repeats=2),
        "DDIM": partial(PPR, eta=0.0),
    },
    default="default",
)
