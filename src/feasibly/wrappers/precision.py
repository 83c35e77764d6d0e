"""Denoisers that run in half precision at high noise levels."""

__all__ = ["MixedPrecision"]

from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import typed
from ..denoisers import Posterior, hand_on


class MixedPrecision(nn.Module):
    r"""Runs a denoiser in half precision at high noise levels, by `torch.autocast`.

    Below `sigma_min` the denoiser runs in the precision of the state, since a projection must
    resolve the tolerance there. On the Kuramoto-Sivashinsky prior, half precision moves the
    estimate by :math:`10^{-3}`, which can make a feasible sample infeasible.

    Arguments:
        denoiser: The denoiser, with single-precision weights.
        dtype: The half precision.
        sigma_min: The lowest noise level :math:`\sigma / \alpha` at which it is used.

    Example:
        >>> half = feasibly.MixedPrecision(denoiser, sigma_min=0.1)
        >>> half(torch.zeros(3, 2), torch.tensor(0.5)).mean.dtype
        torch.float32
    """

    schedule: Any

    @typed
    def __init__(
        self,
        denoiser: Any,
        dtype: torch.dtype = torch.bfloat16,
        sigma_min: float = 0.1,
    ) -> None:
        super().__init__()
        self.denoiser, self.dtype, self.sigma_min = denoiser, dtype, sigma_min
        hand_on(self, denoiser)

    def forward(self, x_t: Tensor, t: Tensor) -> Posterior:
        alpha_t, sigma_t = self.schedule(t)
        coarse = bool((sigma_t / alpha_t >= self.sigma_min).all())
        with torch.autocast(x_t.device.type, self.dtype, enabled=coarse):
            mean = self.denoiser(x_t, t).mean
        return Posterior(mean.to(x_t.dtype))
