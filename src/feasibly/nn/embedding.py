"""Sinusoidal embedding and feature-wise modulation (paper, Appendix B, Architecture)."""

__all__ = ["FiLM", "SineEmbedding"]

import math

import torch
from torch import Tensor, nn


class SineEmbedding(nn.Module):
    r"""Embeds a scalar as :math:`(\sin \omega_k x, \cos \omega_k x)`, :math:`k = 1, \dots, K`.

    Arguments:
        frequencies: The number :math:`K` of frequencies.
        low: The lowest frequency :math:`\omega_1`.
        high: The highest frequency :math:`\omega_K`; the others lie between, log-spaced.
    """

    omega: Tensor

    def __init__(self, frequencies: int, low: float, high: float) -> None:
        super().__init__()
        ends = math.log10(low), math.log10(high)
        # copied, since on the meta device logspace imports torch's compiler, for two seconds
        omega = torch.empty(frequencies).copy_(torch.logspace(*ends, frequencies, device="cpu"))
        self.register_buffer("omega", omega, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        r"""Maps `x`, with shape :math:`(*)`, to features with shape :math:`(*, 2K)`."""
        angle = x[..., None] * self.omega
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


class FiLM(nn.Module):
    r"""Feature-wise linear modulation :math:`h \mapsto (1 + a) h + b`, with :math:`a, b` affine
    in the features of the condition.

    References:
        | FiLM: Visual Reasoning with a General Conditioning Layer (Perez et al., 2018)
        | https://arxiv.org/abs/1709.07871

    Arguments:
        features: The number of condition features.
        channels: The number of modulated channels.
    """

    def __init__(self, features: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 2 * channels)
        if not self.linear.weight.is_meta:  # where it would import torch's compiler
            nn.init.normal_(self.linear.weight, std=1e-2)
        nn.init.zeros_(self.linear.bias)

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        a, b = self.linear(condition).chunk(2, dim=-1)
        return torch.addcmul(b, 1 + a, h)
