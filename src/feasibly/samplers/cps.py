r"""Constrained Posterior Sampling (CPS)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, randn_like

from ..minimizers import LBFGS, Minimizer
from .base import Method, Randn, Step
from .projection import project


@dataclass(frozen=True, kw_only=True)
class CPS(Method):
    r"""Samples by predicting with a clean estimate that a penalty has moved to the constraint:

    .. math::
        x_0^* &= \arg\min_z \tfrac{1}{2} \|z - d_\theta(x_t)\|^2
            + \tfrac{1}{2} \gamma_s \|r(z)\|^2 \\
        x_s &\gets \textsc{Predict}(x_t, x_0^*), \qquad
        \gamma_s = \min\!\big(\exp(1 + \alpha_s^2 / \sigma_s^2), \gamma_{\max}\big)

    Changed to take a constraint: the authors' penalty is a sum of hinges, for inequalities; here
    it is :math:`\|r\|^2`. Their coefficient :math:`\exp(1 / (1 - \bar{\alpha}))`, clipped, is
    stated here for any schedule; formula and clip are from memory of the paper.

    References:
        | Constrained Posterior Sampling: Time Series Generation with Hard Constraints (Narasimhan
        | et al., 2025), https://arxiv.org/abs/2410.12652, Algorithm 1

    Arguments:
        gamma_max: The largest coefficient :math:`\gamma_{\max}`.
        minimize: The minimizer of the penalised problem, without the network.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> method = feasibly.samplers.CPS(steps=16)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    space = "x_0"

    steps: int = 256
    eta: float = 0.0
    gamma_max: float = 1e5
    minimize: Minimizer = LBFGS()
    output: str = "projected"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gamma_max >= 0:
            raise ValueError(f"CPS(gamma_max=...) must not be negative, got {self.gamma_max}.")

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0 = self.denoiser(x_t, t)
        gamma = self.gamma(s)
        if gamma > 0:
            x_0 = project(self.constraint, x_0, self.minimize, proximity=1 / gamma)
        return Step(self.predict(x_t, x_0, t, s, randn), x_0)

    def gamma(self, t: Tensor) -> float:
        r"""Returns the coefficient :math:`\gamma_t`."""
        exponent = 1 + min(self.noise_level(t) ** -2, 500.0)  # exp(501) is still a float
        return min(torch.tensor(exponent, dtype=torch.float64).exp().item(), self.gamma_max)
