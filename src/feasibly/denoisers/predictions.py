r"""What networks predict, and :math:`\mathbb{E}[x_0 \mid x_t]` from it.

All of these are linear in :math:`x_0` and :math:`x_t = \alpha x_0 + \sigma \epsilon`, so that a
network that predicts the conditional mean of one gives the conditional mean of any other.
"""

__all__ = ["FORMULAS", "PREDICTIONS", "Prediction", "Scales", "karras", "scales"]

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import DenoiserError
from ..schedules import rates
from .base import broadcast


class Scales(NamedTuple):
    r"""The scales of a noise level, in tensors that broadcast against states of shape
    :math:`(B, *)`; `rates` returns :math:`\alpha'` and :math:`\sigma'` likewise."""

    alpha: Tensor
    sigma: Tensor
    rates: Callable[[], tuple[Tensor, Tensor]]


def scales(schedule: Callable[[Tensor], tuple[Tensor, Tensor]], t: Tensor, like: Tensor) -> Scales:
    r"""Returns the scales at time `t`, with shape :math:`()` or :math:`(B)`, for states in
    the shape and dtype of `like`."""

    def fit(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        alpha, sigma = (broadcast(scale.to(like), like) for scale in pair)
        return alpha, sigma

    # in double precision, since differences like 1 - alpha cancel
    t = t.double()
    return Scales(*fit(schedule(t)), rates=lambda: fit(rates(schedule, t)))


Prediction = Callable[[Tensor, Tensor, Scales], Tensor]
r"""Maps what a network returned, :math:`F`, the state :math:`x_t` and its scales to
:math:`\mathbb{E}[x_0 \mid x_t]`."""


def x0(output: Tensor, x_t: Tensor, at: Scales) -> Tensor:
    """The clean sample itself."""
    return output


def eps(output: Tensor, x_t: Tensor, at: Scales) -> Tensor:
    r"""The noise :math:`\epsilon` (Ho et al., 2020, https://arxiv.org/abs/2006.11239)."""
    return (x_t - at.sigma * output) / at.alpha


def v(output: Tensor, x_t: Tensor, at: Scales) -> Tensor:
    r""":math:`(\alpha \epsilon - \sigma x_0) / \rho` with :math:`\rho^2 = \alpha^2 + \sigma^2`
    (Salimans & Ho, 2022, https://arxiv.org/abs/2202.00512, for :math:`\rho = 1`)."""
    alpha, sigma, _ = at
    rho = torch.sqrt(alpha**2 + sigma**2)
    return (alpha * x_t / rho - sigma * output) / rho


def score(output: Tensor, x_t: Tensor, at: Scales) -> Tensor:
    r"""The score :math:`\nabla \log p(x_t)`, by Tweedie's formula (Efron, 2011,
    https://doi.org/10.1198/jasa.2011.tm11181)."""
    return (x_t + at.sigma**2 * output) / at.alpha


def velocity(output: Tensor, x_t: Tensor, at: Scales) -> Tensor:
    r"""The velocity :math:`\alpha' x_0 + \sigma' \epsilon`, with derivatives in the network's own
    clock (Lipman et al., 2023, https://arxiv.org/abs/2210.02747)."""
    d_alpha, d_sigma = at.rates()
    slope = d_sigma * at.alpha - at.sigma * d_alpha
    if not (slope.isfinite() & (slope != 0)).all():
        raise DenoiserError(
            "The schedule does not determine how fast alpha and sigma change with its clock, "
            "which defines a velocity: they are constant around a time, or end there in a pole. "
            "Interpolate its table linearly, or use one of feasibly.schedules."
        )
    return (d_sigma * x_t - at.sigma * output) / slope


def karras(sigma_data: float, sign: float = 1.0) -> Prediction:
    r"""What remains behind the skip connection of EDM (Karras et al., 2022,
    https://arxiv.org/abs/2206.00364, Table 1), for data of standard deviation `sigma_data`; a
    negative `sign` turns the output around."""

    def prediction(output: Tensor, x_t: Tensor, at: Scales) -> Tensor:
        sigma = at.sigma / at.alpha
        scale = torch.sqrt(sigma**2 + sigma_data**2)
        skip = (sigma_data / scale) ** 2 * x_t / at.alpha
        return skip + sign * sigma * sigma_data / scale * output

    return prediction


PREDICTIONS: dict[str, Prediction] = {
    "x0": x0,
    "eps": eps,
    "v": v,
    "score": score,
    "velocity": velocity,
}
"""What a network may predict, by name."""

FORMULAS = {
    "x0": "the clean sample: x_0 = F",
    "eps": "the noise: x_0 = (x_t - sigma F) / alpha",
    "v": "v: x_0 = (alpha x_t / rho - sigma F) / rho, rho^2 = alpha^2 + sigma^2",
    "score": "the score: x_0 = (x_t + sigma^2 F) / alpha",
    "velocity": "the velocity: x_0 = (sigma' x_t - sigma F) / (sigma' alpha - sigma alpha')",
    "karras": "the output behind EDM's skip connection: x_0 = c_skip x_t + c_out F",
}
"""The same, in words."""
