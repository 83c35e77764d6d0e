r"""Hard data consistency (HDC), the projection and resampling of ReSample."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, randn_like

from ..minimizers import LBFGS, Minimizer
from .base import Method, Randn, Step
from .projection import project


@dataclass(frozen=True, kw_only=True)
class HDC(Method):
    r"""Samples by projecting the clean estimate, and resampling between it and the prediction.

    .. math::
        x_0^* &= \arg\min_z \|r(z)\|^2 \quad \text{from } d_\theta(x_t) \\
        x_s' &= \textsc{Predict}(x_t, d_\theta(x_t)) \quad \text{(DDIM)} \\
        x_s &\sim \mathcal{N}\!\left(\frac{v \alpha_s x_0^* + \sigma_s^2 x_s'}{v + \sigma_s^2},
            \frac{v \sigma_s^2}{v + \sigma_s^2} I\right), \qquad
        v = \gamma \sigma_s^2 \left(1 - \frac{\alpha_t^2 \sigma_s^2}{\alpha_s^2 \sigma_t^2}\right)

    The distribution of :math:`x_s` is the product of the renoised projection and of a Gaussian of
    variance :math:`v` around the prediction. This is what the paper compares with:
    :class:`ReSample` without its guidance, its stages and its time travel.

    References:
        | Solving Inverse Problems with Latent Diffusion Models via Hard Data Consistency (Song et
        | al., 2024), https://arxiv.org/abs/2307.08123, Section 3.2

    Arguments:
        gamma: The strength :math:`\gamma` of resampling.
        every: Project and resample when the number of steps left is a multiple of this.
        minimize: The minimizer of the projection, where the constraint has no closed form.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> method = feasibly.samplers.HDC(steps=16)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    space = "x_0"
    renoises = True

    steps: int = 256
    eta: float = 0.0
    gamma: float = 40.0
    every: int = 1
    minimize: Minimizer = LBFGS()
    output: str = "projected"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "every")
        if not self.gamma >= 0:
            raise ValueError(
                f"{type(self).__name__}(gamma=...) must not be negative, got {self.gamma}."
            )

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0 = self.denoiser(x_t, t)
        x_s = self.predict(x_t, x_0, t, s, randn)
        if (self.steps - self.index(s)) % self.every == 0:
            x_0 = project(self.constraint, x_0, self.minimize, self.stop)
            x_s = self.resample(x_s, x_0, t, s, randn)
        return Step(x_s, x_0)

    def resample(self, x_s: Tensor, x_0: Tensor, t: Tensor, s: Tensor, randn: Randn) -> Tensor:
        r"""Samples :math:`x_s`, given a prediction :math:`x_s'` and a projected estimate."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        alpha_s, sigma_s = self.denoiser.schedule(s)
        # v / sigma_s^2, which is well scaled at every noise level
        v = self.gamma * (1 - (alpha_t / alpha_s * sigma_s / sigma_t) ** 2)
        mean = (v * alpha_s * x_0 + x_s) / (v + 1)
        return mean + sigma_s * torch.sqrt(v / (v + 1)) * randn(x_s)
