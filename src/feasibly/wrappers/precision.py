"""Half precision where the noise hides its rounding."""

__all__ = ["MixedPrecision"]

import torch
from torch import Tensor, nn

from ..denoisers import Denoiser, Posterior


class MixedPrecision(nn.Module):
    r"""Runs a denoiser in half precision where that is safe, by `torch.autocast`.

    Below `sigma_min` a projection must resolve the tolerance, and half precision does not: on the
    Kuramoto-Sivashinsky prior it moves the estimate by :math:`10^{-3}`, which is what separates
    feasible from infeasible. There the denoiser runs in the precision of the state.

    Arguments:
        denoiser: The denoiser, with single-precision weights.
        dtype: The half precision.
        sigma_min: The lowest noise level :math:`\sigma / \alpha` at which it is used.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        dtype: torch.dtype = torch.bfloat16,
        sigma_min: float = 0.1,
    ) -> None:
        super().__init__()
        self.denoiser, self.dtype, self.sigma_min = denoiser, dtype, sigma_min
        self.schedule = denoiser.schedule

    def forward(self, x_t: Tensor, t: Tensor) -> Posterior:
        alpha_t, sigma_t = self.schedule(t)
        coarse = bool((sigma_t / alpha_t >= self.sigma_min).all())
        with torch.autocast(x_t.device.type, self.dtype, enabled=coarse):
            mean = self.denoiser(x_t, t).mean
        return Posterior(mean.to(x_t.dtype))
