r"""Constrained Diffusion Implicit Models (CDIM)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, randn_like

from ..constraints.observation import Linear
from ..members import among
from ..minimizers.base import per_sample
from ..problem import Problem
from .base import Method, Randn, Step
from .guidance import guidance


@dataclass(frozen=True, kw_only=True)
class CDIM(Method):
    r"""Samples by DDIM steps, each followed by gradient steps until the residual of the *noisy*
    state is what the forward process would make it, for a linear constraint :math:`A x = y`:

    .. math::
        x_s &\gets \textsc{Predict}(x_t, d_\theta(x_t)) \\
        x_s &\gets x_s - \eta^* g, \quad g = \nabla_{x_s} \|A d_\theta(x_s) - y\|^2 \qquad
            \text{(up to K times, while } \|A x_s - y\|^2 > \tau_s \text{)} \\
        \tau_s &= \mu_s + c \sqrt{\nu_s}

    where :math:`\mu_s = (1 - \alpha_s)^2 \|y\|^2 + \sigma_s^2 \mathrm{tr} A A^\top` and
    :math:`\nu_s = 2 \sigma_s^4 \mathrm{tr} (A A^\top)^2 + 4 (1 - \alpha_s)^2 \sigma_s^2
    \|A^\top y\|^2` are mean and variance of :math:`\|A x_s - y\|^2` for :math:`A x_0 = y`. The
    step :math:`\eta^*` is the least that meets :math:`\tau_s` or, if none does, comes closest.
    Samples are as exact as the last noise level is small.

    Changed: the observation has no noise, traces are exact, :math:`\eta^*` is the root of its
    quadratic, and each sample has a step and a test of its own. The paper's Table 1 says that
    CDIM does not propagate through the denoiser; its Section 4 and the authors' code do.

    References:
        | Linearly Constrained Diffusion Implicit Models (Jayaram et al., 2025)
        | https://arxiv.org/abs/2411.00359, Algorithm 1

    Arguments:
        iterations: The most gradient steps :math:`K` at a level.
        c: How many standard deviations above its mean a residual may be.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> total = feasibly.Linear([[1.0, 1.0]], [1.0], atol=0.5)
        >>> method = feasibly.samplers.CDIM(steps=16)
        >>> result = feasibly.sample(denoiser, total, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    lands = False
    space = "x_t"
    differentiates = True

    steps: int = 25
    eta: float = 0.0
    iterations: int = 20
    c: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "iterations")
        if not self.c >= 0:
            raise ValueError(f"CDIM(c=...) must not be negative, got {self.c}.")

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if not isinstance(problem.constraint, Linear):
            raise ValueError(
                "CDIM needs a Linear constraint, whose residual has a known distribution under "
                f"noise, got {problem.constraint!r}; use method='auto', or DPS as the most "
                "similar method."
            )

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0 = self.denoiser(x_t, t)
        x_s = self.predict(x_t, x_0, t, s, randn)
        return Step(self.correct(x_s, s), x_0)

    def correct(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Moves states until their residual is plausible at time `t`."""
        limit = self.limit(t, x_t)
        rows = torch.arange(len(x_t), device=x_t.device)
        for _ in range(self.iterations):
            r = self.constraint.residual(x_t[rows])
            # a step lands on the limit, up to rounding, and is not repeated
            rows = rows[r.square().sum(dim=1) > limit * (1 + 1e-5)]
            if not rows.numel():
                break
            with among(rows):
                _, norm, g = guidance(self, self.constraint, x_t[rows], t)
            g = 2 * per_sample(norm, g) * g
            length = self._length(self.constraint.residual(x_t[rows]), g, limit)
            x_t = x_t.index_add(0, rows, -per_sample(length, g) * g)
            rows = rows[length > 0]  # no step along the gradient helps the others
        return x_t

    def limit(self, t: Tensor, like: Tensor) -> Tensor:
        r"""Returns :math:`\tau_t`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        A, y = self.constraint.A.to(like), self.constraint.y.to(like)
        gram, bias = A @ A.T, (1 - alpha_t) ** 2
        mean = bias * y.square().sum() + sigma_t**2 * gram.trace()
        variance = 2 * sigma_t**4 * gram.square().sum()
        variance = variance + 4 * bias * sigma_t**2 * (A.T @ y).square().sum()
        return mean + self.c * variance.sqrt()

    def _length(self, r: Tensor, g: Tensor, limit: Tensor) -> Tensor:
        r"""The least :math:`\eta` with :math:`\|r - \eta A g\|^2 \leq \tau`, or the best."""
        A_g = g.flatten(start_dim=1) @ self.constraint.A.to(g).T
        a, b = A_g.double().square().sum(dim=1), (A_g.double() * r).sum(dim=1)
        gap = r.double().square().sum(dim=1) - limit
        root = gap / (b + (b**2 - a * gap).clamp_min(0).sqrt())
        length = torch.where(b**2 >= a * gap, root, b / a)
        return torch.where((a > 0) & (b > 0), length, 0.0).to(g.dtype)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1 + self.iterations, self.iterations
