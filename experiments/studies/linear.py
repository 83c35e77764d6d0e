"""How do the methods compare where a constraint is linear?"""

from functools import partial

from feasibly.samplers import CDIM, ECI

from ..figures import strips
from ..samplers import only, post_hoc, ppr
from ..study import Comparison, Study
from ..tables import COLUMNS
from .baselines import tuned

STUDY = Study(
    name="linear",
    question="How do the methods compare where a constraint is linear?",
    on={
        "lines": Comparison(
            {
                "PPR": ppr,
                "PPR, no retries": partial(ppr, attempts=1),
                **{name: tuned(name) for name in ("MMPS", "CPS", "PDM", "HDC", "PCFM")},
                "CDIM, T = 25": only(CDIM),
                "CDIM, T = 100": only(CDIM, steps=100),
                "ECI, fixed noise": only(ECI, steps=200),
                "ECI, noise resampled every 5": only(ECI, steps=200, resample=5),
                "ECI, noise resampled every step": only(ECI, steps=200, resample=1),
                "post-hoc projection": post_hoc,
            },
            COLUMNS["data2d"],
            {"": strips},
        )
    },
)
