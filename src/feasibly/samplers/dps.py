r"""Diffusion Posterior Sampling (DPS)."""

__all__ = ["DPS"]

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Method, Randn, Step
from .guidance import check_strength, guidance, unit


@dataclass(frozen=True, repr=False, kw_only=True)
class DPS(Method):
    r"""Samples by ancestral steps with guidance, against the gradient of the residual's norm:

    .. math::
        x_s \gets \textsc{Predict}(x_t, d_\theta(x_t))
            - \zeta_t \nabla_{x_t} \| r(d_\theta(x_t)) \| .

    The likelihood of an observation is evaluated at the posterior mean. A hard constraint has no
    likelihood: steps do not vanish near it. Samples end around the constraint, at a distance of
    about :math:`\zeta \| \nabla \|`, and not on it.

    Changed to take a constraint: the residual stands for the observation's error
    :math:`y - A(x)`, and each sample has a norm of its own (the authors' code takes the batch's).

    The authors' :math:`\zeta` is for variance-preserving states, which have unit size at every
    noise level. With `units="vp"`, :math:`\zeta_t = \zeta \rho_s \rho_t` with
    :math:`\rho = \sqrt{\alpha^2 + \sigma^2}`, so that every schedule takes the steps that its
    variance-preserving twin would. With `units="state"`, :math:`\zeta_t = \zeta`, whatever the
    state's size. In both, guidance grows with the residual: ten times the residual is ten times
    the guidance. The authors' values are for images; for a few residuals, try 0.001 to 0.1.
    (A :class:`Composite` scales its parts by their tolerances.)

    Of an observation with noise the residual is in units of the errors.

    The clean estimate is the denoiser's, before the last guidance; the default output, `denoised`,
    contains it.

    References:
        | Diffusion Posterior Sampling for General Noisy Inverse Problems (Chung et al., 2023)
        | https://arxiv.org/abs/2209.14687, Algorithm 1

    Arguments:
        zeta: The strength :math:`\zeta`.
        units: The units of :math:`\zeta`: "vp" or "state".
        steps, eta, output: See :class:`Method`.
    """

    lands = False
    takes_noise = True
    space = "x_t"
    differentiates = True

    steps: int = 256
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
        zeta = self.zeta * unit(self, self.units, t, s)
        return Step(self.predict(x_t, x_0, t, s, randn) - zeta * gradient, x_0)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, 1
