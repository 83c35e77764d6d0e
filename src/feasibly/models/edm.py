r"""Denoisers in the form of EDM and EDM2: :math:`D(x, \sigma)`."""

__all__ = ["edm"]

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..denoisers.adapter import Adapter
from ..schedules import EDM


def edm(
    net: Any,
    schedule: Any = None,
    conditions: Mapping[str, Any] | None = None,
    *,
    sigma_range: tuple[float, float] | None = None,
) -> Adapter:
    r"""Wraps :math:`D(x, \sigma) = \mathbb{E}[x_0 \mid x = x_0 + \sigma \epsilon]`.

    Such a denoiser serves any schedule, as :math:`D(x_t / \alpha_t, \sigma_t / \alpha_t)`: EDM's
    and EDM2's networks, k-diffusion's denoisers and PhysicsNeMo's EDM preconditioner.

    References:
        | Elucidating the Design Space of Diffusion-Based Generative Models (Karras et al., 2022)
        | https://arxiv.org/abs/2206.00364

    Arguments:
        net: The denoiser, called as `net(x, sigma, **conditions)` with `sigma` of shape (B); for
            a class, `conditions={"class_labels": ...}`.
        schedule: The noise schedule to sample with; by default EDM's, over the noise levels that
            the network names, within [0.002, 80].
        conditions: See :class:`Adapter`.
        sigma_range: The noise levels that the network was trained on. It gets none beyond
            them. By default what its attributes `sigma_min` and `sigma_max` say.
    """
    named = (getattr(net, "sigma_min", 0.0), getattr(net, "sigma_max", math.inf))
    low, high = map(float, sigma_range or named)
    schedule = schedule or EDM(max(low, 2e-3), min(high, 80.0))

    def time(t: Tensor) -> Tensor:
        alpha, sigma = schedule(t)
        return (sigma / alpha).clamp(low, high)

    return Adapter(
        net,
        schedule,
        "x0",
        time=time,
        clock=f"the noise level sigma / alpha, kept in [{low:g}, {high:g}]",
        scale=lambda at: 1 / at.alpha,
        conditions=conditions,
        notes=("the network sees x_t / alpha",),
    )
