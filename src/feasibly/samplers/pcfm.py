r"""Physics-Constrained Flow Matching (PCFM)."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, randn_like

from ..minimizers import GaussNewton, Minimizer
from ..randomness import MemberNoise
from .base import Method, Randn, Start, Step
from .projection import project


@dataclass(frozen=True, kw_only=True)
class PCFM(Method):
    r"""Samples by one Gauss-Newton step on the clean estimate, noised again with the *same*
    noise :math:`n`:

    .. math::
        x_0^* = d_\theta(x_t) - J^\top (J J^\top)^{-1} r(d_\theta(x_t)), \qquad
        x_s \gets \alpha_s x_0^* + \sigma_s n .

    With a `penalty` :math:`\lambda`, :math:`x_s` is relaxed by 20 gradient steps of 0.01 on
    :math:`\|x - x_s\|^2 + \lambda \|r(x + \delta)\|^2`, where :math:`\delta` leads from the end of
    the unconstrained step to its clean estimate. In the end the sample is projected, by many
    Gauss-Newton steps. Made for flows, stated here for any schedule.

    Changed: a step that would make a sample's violation larger is not taken, and samples that
    are feasible already make none. Up to 1024 residuals the system is dense, as the authors'.

    References:
        | Physics-Constrained Flow Matching (Utkarsh et al., 2025)
        | https://arxiv.org/abs/2506.04171, Algorithm 1

    Arguments:
        penalty: The weight :math:`\lambda` of the relaxation; zero for none.
        minimize: The minimizer on the clean estimate.
        last: The minimizer of the last projection.
        steps, output: See :class:`Method`.

    Example:
        >>> method = feasibly.samplers.PCFM(steps=16)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    space = "x_0"
    renoises = True

    steps: int = 128
    eta: float = field(default=0.0, init=False, repr=False)  # there is no fresh noise
    penalty: float = 0.0
    minimize: Minimizer = GaussNewton(steps=1, max_distance=None, dense=1024)
    last: Minimizer = GaussNewton(steps=32, max_distance=None, dense=1024)
    output: str = "projected"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.penalty >= 0:
            raise ValueError(f"PCFM(penalty=...) must not be negative, got {self.penalty}.")

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_hat = self.denoiser(x_t, t)
        x_0 = project(self.constraint, x_hat, self.minimize, self.stop)
        n = randn(x_t) if memory is None else memory
        x_s = self.renoise(x_0, s, lambda _: n)
        if self.penalty > 0:
            mean, _ = self.transition(x_t, x_hat, t, s)
            x_s = self.relax(x_s, x_hat - mean)
        return Step(x_s, x_0, n)

    @torch.enable_grad()
    def relax(self, x_s: Tensor, delta: Tensor) -> Tensor:
        r"""Moves states by gradient descent on the relaxed penalty."""
        x = x_s
        for _ in range(20):
            x = x.detach().requires_grad_()
            r = self.constraint.residual(x + delta)
            loss = (x - x_s).square().sum() + self.penalty * r.square().sum()
            x = x - 0.01 * torch.autograd.grad(loss, x)[0]
        return x.detach()

    def begin(self, noise: MemberNoise) -> Start:
        times, n = self.times(noise.dtype, noise.device), noise()
        return Start(self.denoiser.begin(n, times[0]), times, n)

    def finish(self, x_0: Tensor) -> Tensor:
        return project(self.constraint, x_0, self.last, self.stop)
