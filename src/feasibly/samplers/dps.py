r"""Diffusion Posterior Sampling (DPS)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, randn_like

from .base import Method, Randn, Step
from .guidance import check_strength, guidance, unit


@dataclass(frozen=True, kw_only=True)
class DPS(Method):
    r"""Samples by ancestral steps with guidance, against the gradient of the residual's norm:

    .. math::
        x_s \gets \textsc{Predict}(x_t, d_\theta(x_t))
            - \zeta_t \nabla_{x_t} \| r(d_\theta(x_t)) \| .

    Steps do not vanish near a hard constraint: samples end around it, at a distance of about
    :math:`\zeta \| \nabla \|`, and not on it.

    Changed to take a constraint: the residual stands for the observation's error
    :math:`y - A(x)`, and each sample has a norm of its own (the authors' code takes the batch's).

    The authors' :math:`\zeta` is for variance-preserving states. With `units="vp"`,
    :math:`\zeta_t = \zeta \rho_s \rho_t` with :math:`\rho = \sqrt{\alpha^2 + \sigma^2}`, so that
    every schedule takes the steps that its variance-preserving twin would. With `units="state"`,
    :math:`\zeta_t = \zeta`. Guidance grows with the residual, which is in units of the errors for
    an observation with noise. The authors' values are for images; for a few residuals, try 0.001
    to 0.1.

    References:
        | Diffusion Posterior Sampling for General Noisy Inverse Problems (Chung et al., 2023)
        | https://arxiv.org/abs/2209.14687, Algorithm 1

    Arguments:
        zeta: The strength :math:`\zeta`.
        units: The units of :math:`\zeta`: "vp" or "state".
        steps, eta, output: See :class:`Method`.

    Example:
        >>> ring = feasibly.Equality(circle.residual, atol=0.5)  # since DPS ends near, not on it
        >>> method = feasibly.DPS(steps=64, zeta=0.03)
        >>> result = feasibly.sample(denoiser, ring, 16, (2,), method=method, monitor=False)
        >>> result.samples.shape, bool(result.feasible.all())
        (torch.Size([16, 2]), True)
    """

    lands = False
    advice = (
        "DPS ends near the constraint, not on it. Lower `zeta` to between 0.001 and 0.1 for a few "
        "residual components, or use method='auto'."
    )
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
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0, _, gradient = guidance(self, self.constraint, x_t, t)
        zeta = self.zeta * unit(self, self.units, t, s)
        return Step(self.predict(x_t, x_0, t, s, randn) - zeta * gradient, x_0)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, 1
