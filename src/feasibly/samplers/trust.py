r"""Trust Sampling (TS)."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, randn_like

from ..errors import SamplingError
from ..members import among
from ..minimizers.base import per_sample
from ..network import counted
from ..problem import DryRun
from ..randomness import MemberNoise
from .base import Method, Randn, Step

CALIBRATION = 64  # unconditional members behind a bound


@dataclass(frozen=True, kw_only=True)
class TrustSampling(Method):
    r"""Samples by optimising the mean of every ancestral step, while the network can be trusted:

    .. math::
        \mu &\gets \mathbb{E}[x_s \mid x_t, d_\theta(x_t)] \\
        \mu &\gets \mu - w \rho_s \frac{g}{\|g\|}, \quad g = \nabla_\mu \|r(d_\theta(\mu))\|^2
            \qquad \text{(up to J times, while } \|\hat{\epsilon}(\mu)\| \leq \epsilon_{\max}
            \text{)} \\
        x_s &\sim \mathcal{N}\big(\mu, \mathrm{Var}[x_s \mid x_t]\big)

    with :math:`\hat{\epsilon}(\mu) = (\mu - \alpha_t d_\theta(\mu)) / \sigma_t`, the noise that
    the network sees at the time :math:`t` of the step's beginning, and :math:`\rho =
    \sqrt{\alpha^2 + \sigma^2}`, by which the authors' step is taken to any schedule. Steps have a
    fixed length, so that samples end around the constraint, about :math:`w` apart, and not on it.

    The authors choose :math:`\epsilon_{\max}` by hand from unconditional runs. Here it is
    calibrated by one, of 64 samples with a seed of its own, before a run: for every step, the
    `quantile` of :math:`\|\hat{\epsilon}(\mu)\|`. These evaluations are not counted. A sample
    that fails the test rests until the next step. The authors do not optimise in the last step;
    here it is like the others. The clean estimate is one gradient step behind the mean.

    References:
        | Constrained Diffusion with Trust Sampling (Huang et al., 2024)
        | https://arxiv.org/abs/2411.10932, Algorithm 1

    Arguments:
        iterations: The most optimisation steps :math:`J` at a level.
        length: The length :math:`w` of such a step.
        bound: The bound :math:`\epsilon_{\max}`; None to calibrate it, infinity for none.
        quantile: The quantile of the calibration.
        bounds: The calibrated bound of each step; None to calibrate them before the run.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> ring = feasibly.Equality(circle.residual, atol=0.5)  # it ends near, not on it
        >>> method = feasibly.samplers.TrustSampling(steps=16)
        >>> result = feasibly.sample(denoiser, ring, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    lands = False
    space = "x_t"
    renoises = True
    differentiates = True

    iterations: int = 8
    length: float = 0.1
    bound: float | None = None
    quantile: float = 0.99
    output: str = "projected"
    bounds: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "iterations")
        if not self.length > 0:
            raise ValueError(f"TrustSampling(length=...) must be positive, got {self.length}.")
        if self.bound is not None and not self.bound > 0:
            raise ValueError(f"TrustSampling(bound=...) must be positive, got {self.bound}.")
        if not 0 < self.quantile <= 1:
            raise ValueError(
                f"TrustSampling(quantile=...) must lie in (0, 1], got {self.quantile}."
            )
        if self.bounds is not None and len(self.bounds) != self.steps:
            raise ValueError(
                f"TrustSampling(bounds=...) needs a bound for each of {self.steps} steps, got "
                f"{len(self.bounds)}; give None to calibrate them."
            )

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0 = self.denoiser(x_t, t)
        mean, std = self.transition(x_t, x_0, t, s)
        mean, x_0 = self.optimise(mean, x_0, t, s)
        return Step(mean + std * randn(x_t), x_0)

    def optimise(self, mean: Tensor, x_0: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Moves the means of a step to `s` toward the constraint, as far as they are trusted, and
        returns them with the last clean estimates."""
        length = self.length * self.scale(s)
        bound = self.bound_at(t)
        trusted = torch.arange(len(mean), device=mean.device)  # the members still moved
        for _ in range(self.iterations):
            with among(trusted):
                x_0_now, noise, gradient = self._look(mean[trusted], t, bound)
            x_0 = x_0.index_copy(0, trusted, x_0_now)
            trusted, gradient = trusted[noise <= bound], gradient[noise <= bound]
            if not trusted.numel():
                break
            size = per_sample(gradient.flatten(start_dim=1).norm(dim=1), gradient)
            mean = mean.index_add(0, trusted, -length * gradient / (size + 1e-12))
        return mean, x_0

    @torch.enable_grad()
    def _look(self, mean: Tensor, t: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor]:
        """The clean estimates of means, the size of the noise in them, and the objective's
        gradient, which is evaluated only if some are trusted."""
        mean = mean.detach().requires_grad_()
        x_0 = self.denoiser(mean, t)
        noise = self._noise(mean.detach(), x_0.detach(), t)
        gradient = torch.zeros_like(x_0)
        if (noise <= bound).any():
            value = self.constraint.residual(x_0).square().sum()
            (gradient,) = torch.autograd.grad(value, mean)
        return x_0.detach(), noise, gradient

    def _noise(self, x_t: Tensor, x_0: Tensor, t: Tensor) -> Tensor:
        alpha_t, sigma_t = self.denoiser.schedule(t)
        return ((x_t - alpha_t * x_0) / sigma_t).flatten(start_dim=1).norm(dim=1)

    def bound_at(self, t: Tensor) -> float:
        r"""Returns :math:`\epsilon_{\max}` for the step from time `t`."""
        if self.bound is not None:
            return self.bound
        if self.bounds is None:
            raise ValueError(
                "TrustSampling needs its bounds: pass `bound`, or call `kernel.prepare(seen)`, "
                "which calibrates them."
            )
        return self.bounds[self.index(t)]

    def prepare(self, seen: DryRun) -> Self:
        """Returns the sampler with calibrated bounds."""
        if self.bound is not None or self.bounds is not None:
            return self
        shape, like = tuple(seen.x_0.shape[1:]), seen.x_0
        groups = torch.arange(CALIBRATION).split(16)  # few at a time, for large models
        sizes = torch.cat([self._unconditional(g.tolist(), shape, like) for g in groups], dim=1)
        if not sizes.isfinite().all():
            raise SamplingError(
                "TrustSampling: an unconditional run, which calibrates the bound, became "
                "non-finite; test the denoiser with `python -m feasibly check`, or pass a bound."
            )
        return replace(self, bounds=tuple(sizes.quantile(self.quantile, dim=1).tolist()))

    @torch.no_grad()
    def _unconditional(self, ids: list[int], shape: tuple[int, ...], like: Tensor) -> Tensor:
        r"""Returns :math:`\|\hat{\epsilon}(\mu)\|` of every step and member of an unconditional
        run, with shape (T, B)."""
        noise = MemberNoise(2**32 - 1, ids, shape, 0, like.dtype, like.device)
        x_t, times, *_ = self.begin(noise)
        sizes = []
        first = torch.zeros(len(ids), dtype=torch.long, device=like.device)
        # the conditions of the first, if there are any, stand for all
        with among(first), counted(None):
            for t, s in pairwise(times):
                mean, std = self.transition(x_t, self.denoiser(x_t, t), t, s)
                sizes.append(self._noise(mean, self.denoiser(mean, t), t).double())
                x_t = mean + std * noise()
        return torch.stack(sizes)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1 + self.iterations, self.iterations
