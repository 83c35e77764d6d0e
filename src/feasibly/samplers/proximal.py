r"""Proximal Langevin dynamics in the state's space, through a decoder (Zampini et al.)."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, randn_like

from ..minimizers import LBFGS, Minimizer
from .base import Randn, Step
from .predictor_corrector import PredictorCorrector
from .projection import project


@dataclass(frozen=True, kw_only=True)
class ProximalLangevin(PredictorCorrector):
    r"""Samples by predictions and Langevin steps, each followed by a proximal map of the *state*:

    .. math::
        z' &\gets \textsc{Predict} \text{ or } \textsc{Correct} \\
        z &\gets \mathrm{prox}(z') = \arg\min_z \|r(D(z))\|^2 + \frac{1}{2 \lambda} \|z - z'\|^2 ,

    for a latent :math:`z` with a decoder :math:`D` (:class:`feasibly.constraints.Decoded`), and
    without one for :math:`D(z) = z`. The noisy state is decoded as it is, so that the map means
    little at high noise and begins at `start`.

    The authors' code has no proximity term (:math:`\lambda = \infty`, the default here), makes
    predictions only (`corrections=0`), and descends by plain gradient steps to a tolerance; their
    paper has both. With :math:`\lambda = \infty` a sample stops at the tolerance.

    References:
        | Training-Free Constrained Generation with Stable Diffusion Models (Zampini et al., 2025)
        | https://arxiv.org/abs/2502.05625, Section 4

    Arguments:
        lmbda: The weight :math:`\lambda`; infinity for no proximity.
        start: The share of the steps after which the map begins.
        minimize: The minimizer behind the map.
        corrections, delta: See :class:`PredictorCorrector`.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> method = feasibly.samplers.ProximalLangevin(steps=16)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    enforces = True
    space = "x_t"

    corrections: int = 0
    lmbda: float = math.inf
    start: float = 0.6
    minimize: Minimizer = LBFGS()
    output: str = "projected"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lmbda > 0:
            raise ValueError(f"ProximalLangevin(lmbda=...) must be positive, got {self.lmbda}.")
        if not 0 <= self.start < 1:
            raise ValueError(f"ProximalLangevin(start=...) must lie in [0, 1), got {self.start}.")

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0 = self.denoiser(x_t, t)
        x_s = self.prox(self.predict(x_t, x_0, t, s, randn), s)
        for _ in range(self.corrections):
            x_0 = self.denoiser(x_s, s)
            x_s = self.prox(self.correct(x_s, x_0, s, randn), s)
        alpha_s, _ = self.denoiser.schedule(s)
        return Step(x_s, x_s / alpha_s if self._starts_by(s) else x_0)

    def prox(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Maps states, in the units of clean data, once the map has begun."""
        if not self._starts_by(t):
            return x_t
        alpha_t, _ = self.denoiser.schedule(t)
        proximity = 0.5 / self.lmbda
        threshold = 0.0 if proximity else self.stop
        z = project(self.constraint, x_t / alpha_t, self.minimize, threshold, proximity)
        return alpha_t * z

    def _starts_by(self, t: Tensor) -> bool:
        return self.index(t) > self.start * self.steps
