"""Are ensembles distributed as the prior is under the constraint, and at what cost?

On Data2D with learned priors, from few evaluations to many; on oracles, where the denoiser is
exact and the posterior is known; and on KS and the weather, by spread and skill. On oracles the
other methods have the settings that were tuned on Data2D.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from feasibly.oracles import Empirical
from feasibly.samplers import CDIM, ECI, CalibratedPPR, Method, PostHoc, Rejection
from feasibly.samplers.base import Randn, Step

from ..figures import distances, frontier
from ..samplers import Make, library, only, paper, post_hoc, ppr
from ..study import Comparison, Study
from ..tables import COLUMNS, pick
from . import baselines
from .baselines import CHOICES, NAMES, tuned


@dataclass(frozen=True)
class RejectionOnly(Rejection):
    """Resamples members until they are likely to be near the constraint, and projects them in the
    end: what the mode weights owe to the rejection alone."""

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        x_0 = self.denoiser(x_t, t)
        return Step(self.predict(x_t, x_0, t, s, randn), x_0)

    def finish(self, x_0: Tensor) -> Tensor:
        return PostHoc(problem=self.problem).finish(x_0)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, 0


@dataclass(frozen=True)
class IdealKernel(Method):
    r"""The paper's ideal kernel (Proposition 3.1), on a finite data set: samples
    :math:`x_0 \sim p(x_0 \mid x_t, x_0 \in \mathcal{C})`, and renoises."""

    output: str = "projected"

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        x_s = self.predict(x_t, self.denoiser(x_t, t), t, s, randn)
        alpha, sigma = self.denoiser.schedule(s)
        prior = self.denoiser.denoiser
        assert isinstance(prior, Empirical)
        feasible = self.constraint.is_feasible(prior.data)
        log_w = prior.log_weights(x_s / alpha, (sigma / alpha).expand(len(x_s)))
        share = log_w.masked_fill(~feasible, -math.inf).softmax(dim=1).cumsum(dim=1)
        u = torch.special.ndtr(randn(x_s).double()).flatten(start_dim=1)[:, :1]
        which = torch.searchsorted(share, u * share[:, -1:]).squeeze(1)
        x_0 = prior.data[which].to(x_s)
        return Step(self.renoise(x_0, s, randn), x_0)


_calibrated = partial(library, method=CalibratedPPR)
_near = partial(library, method=Rejection)
_rejection = partial(_near, kind=RejectionOnly)

LINEAR = ("gaussian-1", "gaussian-6", "correlated-1", "correlated-6", "clusters")
CURVED = ("ellipse", "checkerboard")
EQUALITIES = (*LINEAR, *CURVED, "empirical")
FEW = ("clusters", *CURVED, "empirical")  # with modes, and few residuals

PANELS = {
    "gaussian-1": "independent normals",
    "correlated-6": "correlated normals",
    "clusters": "clusters",
    "ellipse": "clusters on an ellipse",
    "checkerboard": "checkerboard",
    "empirical": "finite data",
}
DRAWN = (
    "CalibratedPPR",
    "Rejection",
    "PPR",
    "PPR, paper's setting",
    "MMPS",
    "PDM",
    "HDC",
    "DPS",
    "post-hoc projection",
)
"""What the figure shows; the tables have all."""

_others: dict[str, Make] = {
    NAMES.get(name, name): tuned(name) for name in CHOICES if name != "PDM, x_0"
}
_weather = baselines.STUDY.on["weather"]
_rivals = ("DPS", "MMPS", "PDM")

STUDY = Study(
    name="calibration",
    question="Are ensembles distributed as the prior is under the constraint, and at what cost?",
    on={
        "data2d": Comparison(
            {
                "PPR": ppr,
                **{f"PPR, T = {T}": partial(ppr, steps=T) for T in (8, 16, 64)},
                "Rejection": _near,
                "Rejection, T = 24, 8 tries": partial(_near, steps=24, tries=8),
                "Rejection, T = 32": partial(_near, steps=32),
                "CalibratedPPR": _calibrated,
                "rejection and post-hoc projection": _rejection,
                "post-hoc projection": post_hoc,
            },
            COLUMNS["data2d"],
            {"": frontier},
        ),
        "oracles": Comparison(
            {
                "PPR": ppr,
                "PPR, paper's setting": paper,
                "CalibratedPPR": _calibrated,
                "Rejection": _near,
                "rejection and post-hoc projection": _rejection,
                **_others,
                "CDIM, T = 100": only(CDIM, steps=100),
                "ECI, noise resampled every 5": only(ECI, steps=200, resample=5),
                "post-hoc projection": post_hoc,
                "ideal kernel": only(IdealKernel),
            },
            COLUMNS["oracles"],
            {"": partial(distances, panels=PANELS, labels=DRAWN)},
            only={
                "CalibratedPPR": EQUALITIES,
                "Rejection": FEW,
                "rejection and post-hoc projection": FEW,
                "PCFM": EQUALITIES,
                "CDIM, T = 100": LINEAR,
                "ECI, noise resampled every 5": LINEAR,
                "ideal kernel": ("empirical",),
            },
        ),
        "ks": Comparison(
            {
                "PPR": ppr,
                "CalibratedPPR, T = 64": partial(_calibrated, steps=64, attempts=1),
            },
            pick("settings", "feasible", "rmse", "crps", "ratio", "evaluations"),
            protocol={"CalibratedPPR, T = 64": (4, 4), "PPR": (4, 8)},
        ),
        "weather": Comparison(
            {
                **{
                    label: _weather.samplers[label]
                    for label in ("PPR", "PPR, T = 128, 8 iterations")
                },
                "CalibratedPPR, T = 64": partial(_calibrated, steps=64),
                **{name: _weather.samplers[name] for name in _rivals},
            },
            COLUMNS["weather"],
            protocol={name: _weather.protocol[name] for name in _rivals},
        ),
    },
)
