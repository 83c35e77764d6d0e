"""How do the methods compare where a constraint is linear?"""

__all__ = ["study"]

from functools import partial

from feasibly.samplers import CDIM, ECI, PPR, PostHoc

from .base import Study
from .baselines import tuned

study = Study(
    name="linear",
    question="How do the methods compare where a constraint is linear?",
    paper="the rows of Table 1 that need a linear constraint or a closed form: CDIM, ECI",
    samplers={
        "default": PPR,
        "default, no retries": partial(PPR, retries=0),
        **{name: tuned(name) for name in ("MMPS", "CPS", "PDM", "HDC", "PCFM")},
        "CDIM, T = 25": CDIM,
        "CDIM, T = 100": partial(CDIM, steps=100),
        "ECI, one noise": partial(ECI, steps=200),
        "ECI, noise drawn every 5": partial(ECI, steps=200, resample=5),
        "ECI, noise drawn every time": partial(ECI, steps=200, resample=1),
        "control: project once at the end": PostHoc,
    },
    default="default",
    problem="lines",
)
