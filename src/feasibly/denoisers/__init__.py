r"""Denoisers: :math:`d_\theta(x_t, t) \approx \mathbb{E}[x_0 \mid x_t]`.

A denoiser is any callable `(x_t, t) -> posterior` with an attribute `schedule`, where
`posterior.mean` has the shape of `x_t`. Azula's denoisers are of this form, and are used as they
are. A denoiser may also return a tensor in place of the posterior. It may have the mean and the
standard deviation of its data as `data_moments`, and `own_means` if these differ between members.
"""

from .adapter import Adapter, AsIs
from .base import Correlated, Denoiser, Karras, Posterior, broadcast, hand_on

__all__ = [
    "Adapter",
    "AsIs",
    "Correlated",
    "Denoiser",
    "Karras",
    "Posterior",
    "broadcast",
    "hand_on",
]
