r"""Predictor-corrector sampling, Algorithm 1."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, randn_like

from .base import Method, Randn, Step


@dataclass(frozen=True, kw_only=True)
class PredictorCorrector(Method):
    r"""Samples without a constraint: each prediction is followed by Langevin corrections

    .. math::
        x_t \gets \alpha_t x_0 + \sqrt{1 - \delta} \, (x_t - \alpha_t x_0)
            + \sqrt{\delta} \, \sigma_t \epsilon, \qquad x_0 = d_\theta(x_t) ,

    a discretisation of Langevin dynamics with step :math:`\delta \sigma_t^2`, whose score is
    :math:`(\alpha_t x_0 - x_t) / \sigma_t^2`.

    References:
        | Score-Based Generative Modeling through SDEs (Song et al., 2021)
        | https://arxiv.org/abs/2011.13456

    Arguments:
        corrections: The number :math:`N` of corrections a step.
        delta: The size :math:`\delta \in (0, 1]` of a correction.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> method = feasibly.samplers.PredictorCorrector(steps=8, corrections=2)
        >>> result = feasibly.sample(denoiser, None, 4, (2,), method=method)
        >>> result.samples.shape, result.evaluations.forward
        (torch.Size([4, 2]), 25)
    """

    enforces = False

    corrections: int = 1
    delta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "corrections")
        if not 0 < self.delta <= 1:
            raise ValueError(
                f"{type(self).__name__}(delta=...) must lie in (0, 1], got {self.delta}."
            )

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0 = self.estimate(x_t, t)
        x_s = self.predict(x_t, x_0, t, s, randn)
        for _ in range(self.corrections):
            x_0 = self.estimate(x_s, s)
            x_s = self.correct(x_s, x_0, s, randn)
        return Step(x_s, x_0)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1 + self.corrections, 0

    def correct(self, x_t: Tensor, x_0: Tensor, t: Tensor, randn: Randn) -> Tensor:
        """CORRECT: makes one Langevin step at time `t`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        z = (1 - self.delta) ** 0.5 * (x_t - alpha_t * x_0) / sigma_t
        return alpha_t * x_0 + sigma_t * (z + self.delta**0.5 * randn(x_t))
