r"""Projected Diffusion Models (PDM)."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, randn_like

from ..minimizers import LBFGS, Minimizer
from .base import Method, Randn, Step
from .projection import closed_form, search


@dataclass(frozen=True, kw_only=True)
class PDM(Method):
    r"""Samples by annealed Langevin dynamics, with every noisy iterate projected:

    .. math::
        u \gets \Pi_\mathcal{C}\!\left(u + \tfrac{1}{2} \kappa \sigma_s^2
            \nabla \log p_s(u) + \sqrt{\kappa} \, \sigma_s \epsilon\right), \qquad
        \nabla \log p_s(u) = \frac{d_\theta(u) - u}{\sigma_s^2} ,

    `repeats` times at every noise level, in units where :math:`u = x_s / \alpha_s` and
    :math:`\sigma_s` is relative to the signal. The constraint is evaluated on noise.

    The paper's Table 1 places the projection in :math:`x_t`-space, as the authors' code does;
    its Section 5 in :math:`x_0`-space, which is `where="x_0"` here: the Langevin step, then the
    denoiser's estimate is projected and renoised.

    Changed: Langevin's step is a share :math:`\kappa` of :math:`\sigma_s^2` at every level (the
    authors': 0.6), and the projection is iterative where the constraint has no closed form.

    References:
        | Constrained Synthesis with Projected Diffusion Models (Christopher et al., 2024)
        | https://arxiv.org/abs/2402.03559, Algorithm 1

    Arguments:
        repeats: The number of Langevin steps at a level.
        kappa: The size :math:`\kappa` of a Langevin step.
        where: What is projected: "x_t" or "x_0".
        minimize: The minimizer of the projection; None for the constraint's closed form and,
            where it has none, `LBFGS()`.
        steps, output: See :class:`Method`.

    Example:
        >>> method = feasibly.samplers.PDM(steps=16, repeats=2)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    space = "x_t"

    steps: int = 64
    eta: float = field(default=1.0, init=False, repr=False)
    repeats: int = 16
    kappa: float = 0.5
    where: str = "x_t"
    minimize: Minimizer | None = None
    output: str = "projected"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "repeats")
        if not 0 < self.kappa <= 1:
            raise ValueError(f"PDM(kappa=...) must lie in (0, 1], got {self.kappa}.")
        if self.where not in ("x_t", "x_0"):
            raise ValueError(f"PDM(where=...) must be 'x_t' or 'x_0', got {self.where!r}.")

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        alpha_t, _ = self.denoiser.schedule(t)
        alpha_s, _ = self.denoiser.schedule(s)
        x_s, x_0 = alpha_s / alpha_t * x_t, x_t
        for _ in range(self.repeats):
            x_s = self.langevin(x_s, s, randn)
            if self.where == "x_t":
                x_0 = self.project(x_s / alpha_s)
                x_s = alpha_s * x_0
            else:
                x_0 = self.project(self.denoiser(x_s, s))
                x_s = self.renoise(x_0, s, randn)
        return Step(x_s, x_0)

    def langevin(self, x_t: Tensor, t: Tensor, randn: Randn) -> Tensor:
        r"""Makes a Langevin step at time `t`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        drift = alpha_t * self.denoiser(x_t, t) - x_t
        return x_t + self.kappa / 2 * drift + self.kappa**0.5 * sigma_t * randn(x_t)

    def project(self, x: Tensor) -> Tensor:
        r"""Returns :math:`\Pi_\mathcal{C}(x)`."""
        nearest = closed_form(self.constraint, x) if self.minimize is None else None
        if nearest is not None:
            return nearest
        return search(self.constraint, x, self.minimize or LBFGS(), self.stop)

    def cost(self, residuals: int) -> tuple[int, int]:
        return self.repeats * (2 if self.where == "x_0" else 1), 0
