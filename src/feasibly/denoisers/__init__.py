r"""Denoisers: :math:`d_\theta(x_t, t) \approx \mathbb{E}[x_0 \mid x_t]`.

A denoiser is any callable `(x_t, t) -> posterior` with an attribute `schedule`, where
`posterior.mean` has the shape of `x_t`. That is azula's shape, and azula's denoisers are used as
they are. A plain tensor in place of the posterior is accepted as well.
"""

from .adapter import Adapter, AsIs
from .base import Correlated, Denoiser, Karras, Posterior, broadcast

__all__ = [
    "Adapter",
    "AsIs",
    "Correlated",
    "Denoiser",
    "Karras",
    "Posterior",
    "broadcast",
]
