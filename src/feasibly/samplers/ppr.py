r"""Predict-Project-Renoise (PPR), Algorithm 2."""

__all__ = ["PPR"]

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..minimizers import LBFGS, Minimizer, Minimum
from ..problem import Problem
from ..randomness import MemberNoise
from .base import CHOSEN, Method, Randn, Start, Step


@dataclass(frozen=True, kw_only=True)
class PPR(Method):
    r"""Samples under a hard constraint by projecting *through the denoiser*, and renoising.

    After each prediction, the kernel

    .. math:: K_t^\mathrm{PPR}(x_t' \mid x_t) = p\big(x_t' \mid x_0 = d_\theta(\Pi_d(x_t))\big),
        \qquad \Pi_d(x_t) = \arg\min_x c(d_\theta(x))

    is applied :math:`M` times, which drives :math:`x_t` toward the constrained marginal
    :math:`p_t^\mathcal{C}`. With the projection at every level a run costs at most
    :math:`T (1 + M (P + 1))` forward and :math:`T M P` backward evaluations, where :math:`P` is
    the number of iterations of the minimizer.

    The parameters are the paper's. :class:`TunedPPR <feasibly.samplers.TunedPPR>` chooses others
    for a problem: it holds the projection within a trust radius, so that the denoiser is not
    evaluated where it was never trained. And it begins at a `sigma_max`: above it the estimate
    :math:`d_\theta(x_t)` is an average over data that are far apart, and projecting it says
    little. `docs/data2d.md` and `docs/ks.md` show what each of these is worth.

    The estimate of the last projection is the output.

    References:
        | Predict-Project-Renoise: Sampling Diffusion Models under Hard Constraints
        | (Rochman-Sharabi & Louppe, 2026), https://arxiv.org/abs/2601.21033

    Arguments:
        steps: The number :math:`T` of diffusion steps.
        repeats: The number :math:`M` of kernel applications a step, at least 1.
        minimize: The minimizer behind :meth:`project`.
        last: The minimizer of the projection at :math:`t = 0`; None for `minimize`.
        sigma_max: The highest noise level :math:`\sigma / \alpha` at which the kernel is applied,
            in units of the data.
        eta: The share of fresh noise in a prediction.
        output: What to return; see :class:`Method`.

    Example:
        >>> method = feasibly.PPR(steps=16, minimize=feasibly.minimizers.GaussNewton(steps=2))
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    space = "x_t"
    renoises = True
    differentiates = True

    repeats: int = 2
    minimize: Minimizer = LBFGS(steps=8, max_step=None)
    last: Minimizer | None = None
    sigma_max: float = math.inf
    output: str = "projected"

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        x_0 = self.denoiser(x_t, t)
        x_s = self.predict(x_t, x_0, t, s, randn)
        if self.noise_level(s) <= self.sigma_max:
            for _ in range(self.repeats):
                x_s, x_0, memory = self.kernel(x_s, s, self.noise_level(t), randn, memory)
        return Step(x_s, x_0, memory)

    def kernel(
        self, x_t: Tensor, t: Tensor, radius: float, randn: Randn, memory: Any = None
    ) -> Step:
        r"""Samples :math:`x_t' \sim K_t^\mathrm{PPR}(x_t' \mid x_t)`, and returns it with the
        projected estimate behind it."""
        found = self.project(x_t, t, radius, memory)
        return Step(self.renoise(found.x_0, t, randn), found.x_0, found.state)

    def project(self, x_t: Tensor, t: Tensor, radius: float, memory: Any = None) -> Minimum:
        r"""PROJECT: searches :math:`x_t^* = \arg\min_x c(d_\theta(x))` from :math:`x_t`.

        Arguments:
            x_t: The states, with shape :math:`(B, *)`.
            t: Their time, with shape :math:`()`.
            radius: The trust radius: a noise level :math:`\sigma / \alpha` whose
                :math:`\sqrt{D}`-fold is the minimizer's unit of length. In a step it is the level
                that `x_t` was predicted from, the size of a prediction's error.
            memory: The state of the minimizer.

        Returns:
            The estimate :math:`d_\theta(x_t^*)`, and :math:`x_t^*` relative to :meth:`scale`.
        """
        alpha_t, _ = self.denoiser.schedule(t)
        scale = self.scale(t)  # the search is in units of the state

        def residual(u: Tensor) -> tuple[Tensor, Tensor]:
            x_0 = self.denoiser(scale * u, t)
            return self.constraint.residual(x_0), x_0

        minimize = self.last if self.last and t == 0 else self.minimize
        unit = radius * math.sqrt(x_t[0].numel()) * (alpha_t / scale).item()
        return minimize(
            residual,
            x_t / scale,
            threshold=self.stop,
            unit=unit,
            state=memory,
            enough=self.constraint.tolerance,
            violation=self.constraint.violation_of,
        )

    def begin(self, noise: MemberNoise) -> Start:
        start = super().begin(noise)
        return start._replace(memory=self.minimize.init(start.x))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "repeats")  # without renoising it is an ablation, in experiments/
        if self.sigma_max is not CHOSEN and not self.sigma_max > 0:
            raise ValueError(
                f"{type(self).__name__}(sigma_max={self.sigma_max!r}) must be a noise level above "
                "0."
            )

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if self.sigma_max is not CHOSEN and not self.sigma_max > (lowest := problem.ends[0]):
            raise ValueError(
                f"{type(self).__name__}(sigma_max={self.sigma_max!r}) must be a number above the "
                f"schedule's lowest noise level, {lowest:.3g}, or nothing would be projected."
            )

    def cost(self, residuals: int) -> tuple[int, int]:
        forward, backward = self.minimize.cost(residuals)
        return 1 + self.repeats * forward, self.repeats * backward

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        times = self.times()[1:]
        forward, backward = self._projections(times, residuals)
        return len(times) + forward + (self.output == "denoised"), backward

    def expected(self, residuals: int = 1) -> tuple[float, float]:
        return replace(self, last=None).budget(residuals)

    def _projections(self, times: Tensor, residuals: int) -> tuple[int, int]:
        """Returns the most forward and backward evaluations of the projections at these times,
        the last of which is 0."""
        projected = [self.noise_level(t) <= self.sigma_max for t in times]
        minimizers = [self.minimize] * sum(projected[:-1])
        minimizers += [self.last or self.minimize] * projected[-1]
        costs = [minimize.cost(residuals) for minimize in minimizers]
        forward, backward = (self.repeats * sum(c[i] for c in costs) for i in (0, 1))
        return forward, backward
