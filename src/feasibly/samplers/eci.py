r"""Extrapolation, Correction, Interpolation (ECI)."""

__all__ = ["ECI"]

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..randomness import MemberNoise, Repeated
from .base import Randn, Sampler
from .projection import has_closed_form


class ECI(Sampler):
    r"""Samples by correcting the clean estimate in closed form, and noising it again with the
    *same* noise:

    .. math::
        x_0^* = \Pi_\mathcal{C}(d_\theta(x_t)), \qquad
        x_t \gets \alpha_t x_0^* + \sigma_t n \quad \text{(mixes - 1 times)}, \qquad
        x_s \gets \alpha_s x_0^* + \sigma_s n .

    Made for flows, where extrapolating along the velocity is the clean estimate, and mixing the
    end points is the forward kernel; stated here for any schedule. The noise :math:`n` is drawn
    once, or again after every `resample` interpolations: with `resample=1` it is fresh, and a
    step is that of the paper's :math:`x_0^M`.

    References:
        | Gradient-Free Generation for Hard-Constrained Systems (Cheng et al., 2025)
        | https://arxiv.org/abs/2412.01786, Algorithm 1

    Arguments:
        args: The denoiser and the constraint, which must have a closed-form `projection`.
        mixes: The number of corrections a step.
        resample: After how many interpolations the noise is drawn again; None for never.
        kwargs: Keyword arguments passed to :class:`Sampler`.
    """

    default_readout = "clean"
    space = "x_0"
    renoises = True
    constraint: Constraint

    def __init__(
        self,
        *args: Any,
        steps: int = 200,
        mixes: int = 1,
        resample: int | None = None,
        **kwargs: Any,
    ) -> None:
        if "eta" in kwargs:
            raise ValueError("ECI interpolates, and makes no predictions: it has no eta.")
        super().__init__(*args, steps=steps, **kwargs)
        if mixes < 1:
            raise ValueError(f"ECI(mixes=...) must be at least 1, got {mixes}.")
        if resample is not None and resample < 1:
            raise ValueError(f"ECI(resample=...) must be at least 1 or None, got {resample}.")
        self.mixes = mixes
        self.resample = resample

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        for i in range(self.mixes):
            x_0 = self.constraint.projection(self.denoiser(x_t, t))
            x_t = self.renoise(x_0, t if i < self.mixes - 1 else s, randn)
        return x_t, x_0

    def trajectory(self, noise: MemberNoise) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return super().trajectory(Repeated(noise, self.resample))

    def prepare(self, x_0: Tensor, r: Tensor) -> None:
        if not has_closed_form(self.constraint, x_0):
            raise ValueError(
                f"ECI corrects in closed form, and {self.constraint!r} has no `projection`. Use "
                "PCFM, which solves for it, or PPR; or implement `projection`."
            )

    def cost(self, residuals: int) -> tuple[int, int]:
        return self.mixes, 0
