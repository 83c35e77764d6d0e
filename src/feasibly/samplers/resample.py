r"""ReSample, with its three stages and its time travel."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, randn_like

from ..constraints.decoded import Decoded
from ..minimizers import Adam, Minimizer
from .base import Randn, Step
from .guidance import check_strength, guidance, unit
from .hdc import HDC
from .projection import project


@dataclass(frozen=True, kw_only=True)
class ReSample(HDC):
    r"""Samples by the authors' full schedule, in three equal stages:

    1. DDIM steps with DPS's guidance,
       :math:`x_s \gets \textsc{Predict}(x_t, d_\theta(x_t)) - \zeta
       \bar{\alpha}_t \nabla \|r(d_\theta(x_t))\|` with :math:`\bar{\alpha} = \alpha^2 /
       (\alpha^2 + \sigma^2)`;
    2. the same and, at every `every`-th step, *time travel*: `travel` DDIM steps go on from
       :math:`x_s`, the clean estimate that they reach is projected, and :math:`x_s` is resampled
       from it as in :class:`HDC`;
    3. the same, with the projection in latent space.

    In the end the sample itself is projected. Where the constraint is :class:`Decoded` and has
    an encoder, the second stage projects the decoded estimate and encodes it again; without one,
    stages two and three are the same.

    Changed to take a constraint: the norm is that of each sample, the projection stops at the
    tolerance, and the clean estimate is the denoiser's (the authors' code has
    :math:`1 - \bar{\alpha}` where its square root belongs). One minimizer serves all stages,
    Adam; the authors use AdamW with up to 2000 steps of 0.01 in pixels and 500 of 0.005 in
    latents. Travelling back, their network's time is one step off, and ours is not.

    References:
        | Solving Inverse Problems with Latent Diffusion Models via Hard Data Consistency (Song et
        | al., 2024), https://arxiv.org/abs/2307.08123, Algorithms 1 and 2

    Arguments:
        zeta: The strength :math:`\zeta` of guidance, in the units of the residual: see
            :class:`DPS`. The authors' 0.5, for images, throws small samples off the data.
        travel: The number of steps that time travel looks ahead.
        minimize: The minimizer of the projections, where the constraint has no closed form.
        gamma, every: See :class:`HDC`.
        steps, eta, output: See :class:`Method`.

    Example:
        >>> quick = feasibly.minimizers.LBFGS(steps=8)
        >>> method = feasibly.samplers.ReSample(steps=24, every=4, minimize=quick)
        >>> result = feasibly.sample(denoiser, circle, 4, (2,), method=method, monitor=False)
        >>> result.feasible.tolist()
        [True, True, True, True]
    """

    differentiates = True

    steps: int = 500
    every: int = 10
    zeta: float = 0.01
    travel: int = 5
    minimize: Minimizer = Adam(steps=500, lr=5e-3)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "travel")
        check_strength(self, self.zeta, "vp")

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = randn_like, memory: Any = None
    ) -> Step:
        x_0, _, gradient = guidance(self, self.constraint, x_t, t)
        alpha_t, sigma_t = self.denoiser.schedule(t)
        zeta = self.zeta * alpha_t**2 / (alpha_t**2 + sigma_t**2)
        strength = zeta * unit(self, "vp", t, s)
        x_s = self.predict(x_t, x_0, t, s, randn) - strength * gradient

        if self._resamples_at(s):
            x_0 = self.look_ahead(x_s, s, randn)
            x_0 = self.correct(x_0, in_pixels=self._stage(s) == 2)
            x_s = self.resample(x_s, x_0, t, s, randn)
        return Step(x_s, x_0)

    def look_ahead(self, x_t: Tensor, t: Tensor, randn: Randn) -> Tensor:
        r"""TIME TRAVEL: the clean estimate that `travel` predictions from :math:`x_t` reach."""
        x_0 = self.denoiser(x_t, t)
        done = self.index(t)
        for s in self.times(t.dtype, t.device)[done + 1 : done + 1 + self.travel]:
            x_t, t = self.predict(x_t, x_0, t, s, randn), s
            x_0 = self.denoiser(x_t, t)
        return x_0

    def correct(self, x_0: Tensor, in_pixels: bool = False) -> Tensor:
        """Projects clean estimates, in pixels or through the decoder."""
        constraint, encode = self.constraint, getattr(self.constraint, "encode", None)
        if in_pixels and isinstance(constraint, Decoded) and encode is not None:
            decoded = constraint.decode(x_0)
            return encode(project(constraint.constraint, decoded, self.minimize, self.stop))
        return project(constraint, x_0, self.minimize, self.stop)

    def finish(self, x_0: Tensor) -> Tensor:
        return self.correct(x_0)

    def cost(self, residuals: int) -> tuple[int, int]:
        return 2 + self.travel, 1

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        travels = sum(self._resamples_at(s) for s in self.times()[1:])
        last = 1 if self.output == "denoised" else 0
        return self.steps + travels * (1 + self.travel) + last, self.steps

    def _stage(self, t: Tensor) -> int:
        """The stage, from 1 to 3, of the step to `t`."""
        return 1 + 3 * (self.index(t) - 1) // self.steps

    def _resamples_at(self, t: Tensor) -> bool:
        return self._stage(t) > 1 and (self.steps - self.index(t)) % self.every == 0
