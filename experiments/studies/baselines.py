"""How do the methods compare?"""

__all__ = ["CHOICES", "KS_CHOICES", "on_ks", "on_weather", "study", "tuned", "tuned_on_ks"]

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from feasibly.minimizers import LBFGS, WarmLBFGS
from feasibly.samplers import PPR, PostHoc, Sampler
from feasibly.samplers.ancestral import Ancestral

from .. import variables
from . import tuning
from .base import Make, Study
from .tuning import GRIDS, KS_GRIDS, WEATHER_GRIDS

CHOICES = {
    "DPS": "T = 1024, zeta 0.0003",
    "DPSPC": "T = 32, N = 7, zeta 0.003",
    "MMPS": "N = 1, delta 0.5",
    "TrustSampling": "T = 64, J = 16, w 0.003, calibrated",
    "CPS": "eta 1, gamma_max 100000, L-BFGS",
    "PDM": "in x_t, kappa 1",
    "PDM, x_0": "in x_0, kappa 0.1",
    "HDC": "gamma 400, L-BFGS",
    "ReSample": "zeta 0.001, gamma 400",
    "ProximalLangevin": "start 0.6, N = 1",
    "PCFM": "T = 8, 1 iterations, lambda 0",
}
"""For each method the best setting of the study `tuning`: a test holds them to it. PDM has one
for each place where it may project."""

NAMES = {"DPSPC": "DPS-PC", "TrustSampling": "TS", "ProximalLangevin": "Zampini et al."}


def tuned(name: str, **options: Any) -> Make:
    """Returns a method in its tuned setting, read out as the clean estimate."""
    return _chosen(GRIDS, CHOICES, name, **options)


def _chosen(
    grids: Mapping[type[Sampler], dict[str, dict]],
    choices: Mapping[str, str],
    name: str,
    **options: Any,
) -> Make:
    method, grid = next(item for item in grids.items() if item[0].__name__ == name.split(",")[0])
    return partial(method, readout="clean", **grid[choices[name]], **options)


study = Study(
    name="baselines",
    question="How do the methods compare?",
    paper="Table 2; Figure 4, right; Figure 5, the panel of Data2D",
    samplers={
        "default": PPR,
        "default, no retries": partial(PPR, retries=0),
        "PPR, paper's setting": partial(
            PPR,
            steps=64,
            repeats=2,
            minimize=LBFGS(steps=8, max_step=None),
            sigma_max=math.inf,
            retries=0,
        ),
        **{NAMES.get(name, name): tuned(name) for name in CHOICES},
        "HDC, 3 retries": tuned("HDC", retries=3),
        "control: project once at the end": PostHoc,
        "control, 3 retries": partial(PostHoc, retries=3),
    },
    default="default",
)

KS_CHOICES = {
    "DPS": "zeta 3",
    "MMPS": "T = 128, N = 1, k = 4, delta 0.5",
    "TrustSampling": "J = 16, w 1",
    "CPS": "eta 1, gamma_max 100000",
    "PDM": "in x_0, kappa 0.1",
    "HDC": "gamma 400",
}
"""Likewise on KS, by RMSE: a test holds them to it."""


def tuned_on_ks(name: str, **options: Any) -> Make:
    """Returns a method in its setting on KS, read out as the clean estimate."""
    return _chosen(KS_GRIDS, KS_CHOICES, name, **options)


# steps short enough to find the nearest of a sine's solutions
_control = partial(PostHoc, minimize=LBFGS(64, max_step=1.0))

on_ks = Study(
    name="baselines",
    question="How do the methods compare?",
    paper="Table 3; Table 5; Figures 4 and 5; Appendix on further KS constraints; gallery",
    samplers={
        "default": PPR,
        "fast": partial(PPR, fast=True),
        "PPR, paper's setting": study.samplers["PPR, paper's setting"],
        **{NAMES.get(name, name): tuned_on_ks(name) for name in KS_CHOICES},
        "control: project once at the end": _control,
    },
    default="default",
    problem="ks",
    protocol=dict.fromkeys(("MMPS", "TS", "PDM", "PPR, paper's setting"), (4, 4)),
)

WEATHER_CHOICES = {
    "DPS": "zeta 0.3",
    "MMPS": "T = 128, N = 1, k = 4, delta 0.5",
    "TrustSampling": "J = 16, w 3",
    "CPS": "T = 256, eta 1, gamma_max 100000",
    "PDM": "T = 32, in x_t, kappa 0.6",
    "HDC": "T = 256, gamma 400",
}
"""And on the weather."""

# short searches at many levels, for residuals of several branches, and a long last one
_many_levels = partial(PPR, steps=512, minimize=WarmLBFGS(2), last_steps=200)

on_weather = Study(
    name="baselines",
    question="How do the methods compare?",
    paper="Tables of the appendix on weather; Figure 6; gallery",
    samplers={
        "default": PPR,
        "default, no retries": study.samplers["default, no retries"],
        "PPR, T = 128, 8 iterations": tuning.on_weather.samplers["PPR, T = 128, 8 iterations"],
        "PPR, T = 512, 2 iterations": _many_levels,
        "PPR, T = 512, 2 iterations, no retries": partial(_many_levels, retries=0),
        "fast": partial(PPR, fast=True),
        "PPR, paper's setting": study.samplers["PPR, paper's setting"],
        **{
            NAMES.get(name, name): _chosen(WEATHER_GRIDS, WEATHER_CHOICES, name)
            for name in WEATHER_CHOICES
        },
        "control: project once at the end": _control,
        variables.PRIOR: partial(Ancestral, steps=64),
    },
    default="default",
    problem="weather",
    protocol=dict.fromkeys(
        (
            "default, no retries",
            "PPR, T = 512, 2 iterations",
            "PPR, T = 512, 2 iterations, no retries",
            "fast",
            "PPR, paper's setting",
            *(NAMES.get(name, name) for name in WEATHER_CHOICES),
        ),
        (3, 8),
    ),
)
