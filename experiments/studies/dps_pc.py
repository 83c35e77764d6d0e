"""Does a corrector make DPS exact? At 256 gradients each, in the best settings of `tuning`; on KS
at 1024, all in the best setting of DPS."""

__all__ = ["on_ks", "study"]

from functools import partial

from feasibly.samplers import DPS, DPSPC, PPR

from .base import Study
from .baselines import KS_CHOICES, tuned_on_ks
from .tuning import KS_GRIDS

_at = {"readout": "clean"}
ZETA = KS_GRIDS[DPS][KS_CHOICES["DPS"]]["zeta"]

study = Study(
    name="dps-pc",
    question="Does a corrector make DPS exact?",
    paper="Appendix D, the figure on DPS-PC",
    samplers={
        "default": PPR,
        "DPS, T = 256": partial(DPS, steps=256, zeta=1e-3, **_at),
        "DPS-PC, N = 1": partial(DPSPC, steps=128, corrections=1, zeta=3e-3, **_at),
        "DPS-PC, N = 3": partial(DPSPC, steps=64, corrections=3, zeta=3e-3, **_at),
        "DPS-PC, N = 7": partial(DPSPC, steps=32, corrections=7, zeta=3e-3, **_at),
    },
    default="default",
)

on_ks = Study(
    name="dps-pc",
    question="Does a corrector make DPS exact?",
    paper="Appendix D, the figure on DPS-PC; Appendix on further KS constraints",
    samplers={
        "default": PPR,
        "DPS, T = 1024": tuned_on_ks("DPS"),
        **{
            f"DPS-PC, N = {N}": partial(
                DPSPC, steps=1024 // (N + 1), corrections=N, zeta=ZETA, **_at
            )
            for N in (1, 3, 7)
        },
    },
    default="default",
    problem="ks",
    protocol={f"DPS-PC, N = {N}": (4, 4) for N in (1, 3, 7)},
)
