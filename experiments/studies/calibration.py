"""Are ensembles distributed as the prior is under the constraint, and at what cost?

On Data2D with learned priors, from few calls to many; on oracles, where the denoiser is exact and
the conditional law is known; and on KS and the weather, by spread and skill. On oracles the other
methods have the settings that were tuned on Data2D.
"""

__all__ = ["IdealKernel", "RejectionOnly", "on_ks", "on_oracles", "on_weather", "study"]

import math
from functools import partial

import torch
from torch import Tensor

from feasibly.oracles import Empirical
from feasibly.samplers import CDIM, ECI, PPR, CalibratedPPR, PostHoc, Sampler
from feasibly.samplers.base import Randn

from . import baselines
from .base import Make, Study
from .baselines import CHOICES, NAMES, tuned


class RejectionOnly(CalibratedPPR):
    """Draws members until one is likely to be near the constraint, lets it be, and projects it in
    the end: what the masses owe to the rejection alone."""

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        if self.noise_level(t) > self.sigma_max:
            return super().step(x_t, t, s, randn)
        x_0 = self.denoiser(x_t, t)
        return self.predict(x_t, x_0, t, s, randn), x_0

    def finish(self, x_0: Tensor) -> Tensor:
        return PostHoc(self.denoiser.denoiser, self.constraint).finish(x_0)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, 0


class IdealKernel(Sampler):
    r"""The paper's ideal kernel (Proposition 3.1), on a finite data set: draws
    :math:`x_0 \sim p(x_0 \mid x_t, x_0 \in \mathcal{C})`, and renoises."""

    default_readout = "clean"

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        x_s = self.predict(x_t, self.denoiser(x_t, t), t, s, randn)
        alpha, sigma = self.denoiser.schedule(s)
        prior, constraint = self.denoiser.denoiser, self.constraint
        assert isinstance(prior, Empirical)
        assert constraint is not None
        feasible = constraint.is_feasible(prior.data)
        log_w = prior.log_weights(x_s / alpha, (sigma / alpha).expand(len(x_s)))
        share = log_w.masked_fill(~feasible, -math.inf).softmax(dim=1).cumsum(dim=1)
        u = torch.special.ndtr(randn(x_s).double()).flatten(start_dim=1)[:, :1]
        which = torch.searchsorted(share, u * share[:, -1:]).squeeze(1)
        x_0 = prior.data[which].to(x_s)
        return self.renoise(x_0, s, randn), x_0


near = partial(CalibratedPPR, steps=48, sigma_max=0.1)

study = Study(
    name="calibration",
    question="Are ensembles distributed as the prior is under the constraint, and at what cost?",
    paper="beyond it: the k-NN rate of Table 2 against calls",
    samplers={
        "default": PPR,
        **{f"PPR, T = {T}": partial(PPR, steps=T) for T in (8, 16, 64)},
        "CalibratedPPR, sigma_max = 0.1": near,
        "CalibratedPPR, sigma_max = 0.1, T = 24, 8 tries": partial(near, steps=24, tries=8),
        "CalibratedPPR, sigma_max = 0.1, T = 32": partial(near, steps=32),
        "CalibratedPPR": CalibratedPPR,
        "rejection, and projected once at the end": partial(
            RejectionOnly, steps=48, sigma_max=0.1
        ),
        "control: project once at the end": PostHoc,
    },
    default="default",
)

LINEAR = ("gaussian-1", "gaussian-6", "correlated-1", "correlated-6", "clusters")
CURVED = ("ellipse", "checkerboard")
EQUALITIES = (*LINEAR, *CURVED, "empirical")
FEW = ("clusters", *CURVED, "empirical")  # with modes, and few residuals

_others: dict[str, Make] = {
    NAMES.get(name, name): tuned(name) for name in CHOICES if name != "PDM, x_0"
}

on_oracles = Study(
    name="calibration",
    question="Which methods have the right mean, covariance and masses, where these are known?",
    paper="beyond it: Proposition 3.1 and Section 6's remark on diversity",
    samplers={
        "default": PPR,
        "PPR, paper's setting": baselines.study.samplers["PPR, paper's setting"],
        "CalibratedPPR": CalibratedPPR,
        "CalibratedPPR, sigma_max = 0.1": near,
        "rejection, and projected once at the end": partial(
            RejectionOnly, steps=48, sigma_max=0.1
        ),
        **_others,
        "CDIM, T = 100": partial(CDIM, steps=100),
        "ECI, noise drawn every 5": partial(ECI, steps=200, resample=5),
        "control: project once at the end": PostHoc,
        "ideal kernel": IdealKernel,
    },
    default="default",
    problem="oracles",
    only={
        "CalibratedPPR": EQUALITIES,
        "CalibratedPPR, sigma_max = 0.1": FEW,
        "rejection, and projected once at the end": FEW,
        "PCFM": EQUALITIES,
        "CDIM, T = 100": LINEAR,
        "ECI, noise drawn every 5": LINEAR,
        "ideal kernel": ("empirical",),
    },
)

on_ks = Study(
    name="calibration",
    question="Is the spread of an ensemble the error of its mean?",
    paper="Table 3, spread and skill",
    samplers={
        "default": PPR,
        "CalibratedPPR, T = 64": partial(CalibratedPPR, steps=64, retries=0),
    },
    default="default",
    problem="ks",
    protocol={"CalibratedPPR, T = 64": (4, 4), "default": (4, 8)},
)

on_weather = Study(
    name="calibration",
    question="Is the spread of an ensemble the error of its mean?",
    paper="Tables of the appendix on weather, spread / skill",
    samplers={
        **{
            label: baselines.on_weather.samplers[label]
            for label in ("default", "PPR, T = 128, 8 iterations")
        },
        "CalibratedPPR, T = 64": partial(CalibratedPPR, steps=64),
        **{name: baselines.on_weather.samplers[name] for name in ("DPS", "MMPS", "PDM")},
    },
    default="default",
    problem="weather",
    protocol=baselines.on_weather.protocol,
)
