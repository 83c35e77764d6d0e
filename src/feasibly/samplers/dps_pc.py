r"""DPS with a corrector (DPS-PC, Appendix D of the paper)."""

__all__ = ["DPSPC"]

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Randn, Step
from .guidance import check_strength, guidance, unit
from .predictor_corrector import PredictorCorrector


@dataclass(frozen=True, repr=False, kw_only=True)
class DPSPC(PredictorCorrector):
    r"""Samples by the predictor-corrector scheme, with DPS's guidance in both halves:

    .. math::
        x_s &\gets \textsc{Predict}(x_t, d_\theta(x_t))
            - \zeta_t \nabla_{x_t} \| r(d_\theta(x_t)) \| \\
        x_s &\gets \textsc{Correct}(x_s, d_\theta(x_s))
            - \sqrt{\delta} \, \zeta_s \nabla_{x_s} \| r(d_\theta(x_s)) \|
            \qquad \text{(N times)} .

    The paper names the method and gives no equation; this is the scheme of its Algorithm 1 with
    the step of :class:`DPS`, where the corrector's guidance is scaled with its noise,
    :math:`\sqrt{\delta}`.

    Arguments:
        zeta: The strength :math:`\zeta`.
        units: The units of :math:`\zeta`, "vp" or "state": see :class:`DPS`.
        corrections: The number :math:`N` of corrections a step.
        delta: The size :math:`\delta` of a correction.
        steps, eta, output: See :class:`Method`.
    """

    enforces = True
    lands = False
    space = "x_t"
    differentiates = True

    steps: int = 128
    zeta: float = 1.0
    units: str = "vp"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strength(self, self.zeta, self.units)

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        x_0, _, gradient = guidance(self, self.constraint, x_t, t)
        x_s = self.predict(x_t, x_0, t, s, randn) - self._zeta(t, s) * gradient
        for _ in range(self.corrections):
            x_0, _, gradient = guidance(self, self.constraint, x_s, s)
            zeta = self.delta**0.5 * self._zeta(s, s)
            x_s = self.correct(x_s, x_0, s, randn) - zeta * gradient
        return Step(x_s, x_0)

    def _zeta(self, t: Tensor, s: Tensor) -> Tensor | float:
        return self.zeta * unit(self, self.units, t, s)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1 + self.corrections, 1 + self.corrections
