r"""DPS with a corrector (DPS-PC, Appendix D of the paper)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, randn_like

from .base import Randn, Step
from .dps import DPS
from .guidance import guidance, unit
from .predictor_corrector import PredictorCorrector


@dataclass(frozen=True, kw_only=True)
class DPSPC(DPS, PredictorCorrector):
    r"""Samples by the predictor-corrector scheme, with DPS's guidance in both halves:

    .. math::
        x_s &\gets \textsc{Predict}(x_t, d_\theta(x_t))
            - \zeta_t \nabla_{x_t} \| r(d_\theta(x_t)) \| \\
        x_s &\gets \textsc{Correct}(x_s, d_\theta(x_s))
            - \sqrt{\delta} \, \zeta_s \nabla_{x_s} \| r(d_\theta(x_s)) \|
            \qquad \text{(N times)} .

    The paper names the method and gives no equation; this is the scheme of its Algorithm 1 with
    the step of :class:`DPS`.

    Arguments:
        zeta, units: See :class:`DPS`.
        corrections, delta: See :class:`PredictorCorrector`.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> ring = feasibly.Equality(circle.residual, atol=0.5)
        >>> method = feasibly.samplers.DPSPC(steps=32, zeta=0.03)
        >>> result = feasibly.sample(denoiser, ring, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    enforces = True
    takes_noise = False

    steps: int = 128

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0, _, gradient = guidance(self, self.constraint, x_t, t)
        zeta = self.zeta * unit(self, self.units, t, s)
        x_s = self.predict(x_t, x_0, t, s, randn) - zeta * gradient
        zeta = self.delta**0.5 * (self.zeta * unit(self, self.units, s, s))
        for _ in range(self.corrections):
            x_0, _, gradient = guidance(self, self.constraint, x_s, s)
            x_s = self.correct(x_s, x_0, s, randn) - zeta * gradient
        return Step(x_s, x_0)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1 + self.corrections, 1 + self.corrections
