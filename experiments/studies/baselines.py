"""How do the methods compare, and how where a constraint is linear?"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from feasibly.minimizers import LBFGS, WarmLBFGS
from feasibly.samplers import CDIM, ECI, Ancestral, Method

from ..figures import by_hour, gallery, hero, maps, over_time, ranks, strips
from ..records import PRIOR
from ..samplers import Make, default, only, paper, post_hoc, ppr
from ..study import Comparison, Study
from ..tables import COLUMNS
from .tuning import GRIDS, KS_GRIDS, MANY_LEVELS, WEATHER_GRIDS

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
    """Returns how to make a method in its tuned setting, whose output is the clean estimate."""
    return _chosen(GRIDS, CHOICES, name, **options)


def _chosen(
    grids: Mapping[type[Method], dict[str, dict]],
    choices: Mapping[str, str],
    name: str,
    **options: Any,
) -> Make:
    method, grid = next(item for item in grids.items() if item[0].__name__ == name.split(",")[0])
    return only(method, output="projected", **grid[choices[name]], **options)


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
    """Returns how to make a method in its setting on KS, whose output is the clean estimate."""
    return _chosen(KS_GRIDS, KS_CHOICES, name, **options)


WEATHER_CHOICES = {
    "DPS": "zeta 0.3",
    "MMPS": "T = 128, N = 1, k = 4, delta 0.5",
    "TrustSampling": "J = 16, w 3",
    "CPS": "T = 256, eta 1, gamma_max 100000",
    "PDM": "T = 32, in x_t, kappa 0.6",
    "HDC": "T = 256, gamma 400",
}
"""And on the weather."""

_on_data2d: dict[str, Make] = {
    "default": default,
    "PPR": ppr,
    "PPR, no retries": partial(ppr, attempts=1),
    "PPR, paper's setting": paper,
    **{NAMES.get(name, name): tuned(name) for name in CHOICES},
    "HDC, 3 retries": tuned("HDC", attempts=4),
    "post-hoc projection": post_hoc,
    "post-hoc projection, 3 retries": partial(post_hoc, attempts=4),
}

# steps short enough to find the nearest of a sine's solutions
_post_hoc = partial(post_hoc, minimize=LBFGS(64, max_step=1.0))

_on_ks: dict[str, Make] = {
    "default": default,
    "PPR": ppr,
    "PPR, paper's setting": paper,
    **{NAMES.get(name, name): tuned_on_ks(name) for name in KS_CHOICES},
    "post-hoc projection": _post_hoc,
}

# short searches at many levels, for residuals of several branches, and a long last one
_many_levels = partial(ppr, steps=512, minimize=WarmLBFGS(2), last=WarmLBFGS(200))

_on_weather: dict[str, Make] = {
    "default": default,
    "PPR": ppr,
    "PPR, no retries": partial(ppr, attempts=1),
    "PPR, T = 128, 8 iterations": MANY_LEVELS["PPR, T = 128, 8 iterations"],
    "PPR, T = 512, 2 iterations": _many_levels,
    "PPR, T = 512, 2 iterations, no retries": partial(_many_levels, attempts=1),
    "PPR, paper's setting": paper,
    **{
        NAMES.get(name, name): _chosen(WEATHER_GRIDS, WEATHER_CHOICES, name)
        for name in WEATHER_CHOICES
    },
    "post-hoc projection": _post_hoc,
    PRIOR: only(Ancestral),
}

STUDY = Study(
    name="baselines",
    question="How do the methods compare?",
    on={
        "data2d": Comparison(_on_data2d, COLUMNS["data2d"], {"": strips}),
        "ks": Comparison(
            _on_ks,
            COLUMNS["ks"],
            {"-time": over_time, "-gallery": gallery, "-hero": hero},
            protocol=dict.fromkeys(("MMPS", "TS", "PDM", "PPR, paper's setting"), (8, 4)),
        ),
        "weather": Comparison(
            _on_weather,
            COLUMNS["weather"],
            {"-time": by_hour, "-ranks": ranks, "-maps": maps},
            protocol=dict.fromkeys(
                (
                    "PPR, no retries",
                    "PPR, T = 512, 2 iterations",
                    "PPR, T = 512, 2 iterations, no retries",
                    "PPR, paper's setting",
                    *(NAMES.get(name, name) for name in WEATHER_CHOICES),
                ),
                (4, 8),
            ),
        ),
    },
)

LINEAR = Study(
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
