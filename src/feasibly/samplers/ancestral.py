"""Unconditional sampling: DDIM and DDPM."""

__all__ = ["Ancestral"]

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Randn, Sampler, Step


@dataclass(frozen=True, repr=False, eq=False)
class Ancestral(Sampler):
    r"""Samples without a constraint: predictions alone, DDPM by default, DDIM with `eta` = 0.

    A constraint is not enforced, but violations are reported.

    References:
        | Denoising Diffusion Probabilistic Models (Ho et al., 2020)
        | https://arxiv.org/abs/2006.11239
    """

    enforces = False

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        x_0 = self.estimate(x_t, t)
        return Step(self.predict(x_t, x_0, t, s, randn), x_0)
