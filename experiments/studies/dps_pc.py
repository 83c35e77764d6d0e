"""Does a corrector make DPS exact? At 256 gradients each, in the best settings of `tuning`; on KS
at 1024, all in the best setting of DPS."""

__all__ = ["STUDY"]

from functools import partial

from feasibly.samplers import DPS, DPSPC

from ..samplers import only, ppr
from ..study import Comparison, Study
from ..tables import COLUMNS
from .baselines import KS_CHOICES, tuned_on_ks
from .tuning import KS_GRIDS

_estimate = partial(only, output="projected")
_zeta = KS_GRIDS[DPS][KS_CHOICES["DPS"]]["zeta"]

STUDY = Study(
    name="dps-pc",
    question="Does a corrector make DPS exact?",
    on={
        "data2d": Comparison(
            {
                "PPR": ppr,
                "DPS, T = 256": _estimate(DPS, steps=256, zeta=1e-3),
                "DPS-PC, N = 1": _estimate(DPSPC, steps=128, corrections=1, zeta=3e-3),
                "DPS-PC, N = 3": _estimate(DPSPC, steps=64, corrections=3, zeta=3e-3),
                "DPS-PC, N = 7": _estimate(DPSPC, steps=32, corrections=7, zeta=3e-3),
            },
            COLUMNS["data2d"],
        ),
        "ks": Comparison(
            {
                "PPR": ppr,
                "DPS, T = 1024": tuned_on_ks("DPS"),
                **{
                    f"DPS-PC, N = {N}": _estimate(
                        DPSPC, steps=1024 // (N + 1), corrections=N, zeta=_zeta
                    )
                    for N in (1, 3, 7)
                },
            },
            COLUMNS["ks"],
            protocol={f"DPS-PC, N = {N}": (4, 4) for N in (1, 3, 7)},
        ),
    },
)
