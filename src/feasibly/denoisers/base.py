"""The base class of denoisers, and networks with EDM's preconditioning."""

__all__ = ["Correlated", "Denoiser", "Karras", "Posterior", "broadcast", "hand_on"]

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..schedules import Schedule


@dataclass(frozen=True)
class Posterior:
    r"""A denoiser's estimate of :math:`p(x_0 \mid x_t)`: the mean, with the shape of `x_t`.

    Example:
        >>> feasibly.Posterior(torch.zeros(3, 2)).mean.shape
        torch.Size([3, 2])
    """

    mean: Tensor


def broadcast(scale: Tensor, x: Tensor) -> Tensor:
    r"""Returns `scale` with the trailing axes that it needs to multiply `x`.

    Arguments:
        scale: The factors, with shape :math:`()` or :math:`(B)`.
        x: What they multiply, with shape :math:`(B, *)`.

    Example:
        >>> feasibly.denoisers.broadcast(torch.ones(3), torch.zeros(3, 8, 8)).shape
        torch.Size([3, 1, 1])
    """
    return scale.reshape(scale.shape + (1,) * (x.ndim - 1)) if scale.ndim else scale


def hand_on(wrapper: Any, denoiser: Any) -> None:
    """Gives a denoiser around another what samplers ask the other for.

    Example:
        >>> class Doubled(torch.nn.Module):
        ...     def __init__(self, denoiser):
        ...         super().__init__()
        ...         self.denoiser = denoiser
        ...         feasibly.denoisers.hand_on(self, denoiser)
        >>> Doubled(denoiser).schedule is denoiser.schedule
        True
    """
    wrapper.schedule = getattr(denoiser, "schedule", None)
    wrapper.data_moments = getattr(denoiser, "data_moments", None)
    wrapper.own_means = getattr(denoiser, "own_means", False)


class Denoiser(nn.Module, ABC):
    r"""The base class of this library's denoisers.

    Arguments:
        schedule: The noise schedule that :math:`x_t` follows.

    Example:
        >>> class Zeros(feasibly.Denoiser):  # all data are zero
        ...     def mean(self, x, sigma):
        ...         return torch.zeros_like(x)
        >>> zeros = Zeros(feasibly.schedules.VP())
        >>> zeros(torch.ones(1, 2), torch.tensor(0.5)).mean.tolist()
        [[0.0, 0.0]]
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule

    def forward(self, x_t: Tensor, t: Tensor) -> Posterior:
        r"""Estimates :math:`p(x_0 \mid x_t)`, for states :math:`x_t` with shape :math:`(B, *)` and
        times with shape :math:`()` or :math:`(B)`."""
        alpha_t, sigma_t = (broadcast(scale, x_t) for scale in self.schedule(t))
        return Posterior(self.mean(x_t / alpha_t, sigma_t / alpha_t))

    @abstractmethod
    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns :math:`\mathbb{E}[x_0 \mid x]` for :math:`x = x_0 + \sigma \epsilon`.

        Arguments:
            x: The noisy state, with shape :math:`(B, *)`.
            sigma: The noise scale, which broadcasts against `x`.
        """


class Karras(Denoiser):
    r"""A network with EDM's preconditioning,

    .. math::
        d_\theta(x) = \frac{s^2}{\sigma^2 + s^2} x + \frac{\sigma s}{\sqrt{\sigma^2 + s^2}}
            F_\theta\!\left(\frac{x}{\sqrt{\sigma^2 + s^2}}, \tfrac{1}{4} \log \sigma\right) ,

    with :math:`s` the standard deviation of the data.

    References:
        | Elucidating the Design Space of Diffusion-Based Generative Models (Karras et al., 2022)
        | https://arxiv.org/abs/2206.00364, Table 1

    Arguments:
        backbone: The network :math:`F_\theta(x, c)`, with `x` of shape :math:`(B, *)` and the
            noise label `c` of shape :math:`()` or :math:`(B)`.
        schedule: The noise schedule.
        sigma_data: The standard deviation :math:`s` of the data.

    Example:
        >>> class Zero(torch.nn.Module):
        ...     def forward(self, x, label):
        ...         return torch.zeros_like(x)
        >>> linear = feasibly.Karras(Zero(), feasibly.schedules.EDM(), sigma_data=1.0)
        >>> linear.mean(torch.ones(1, 2), torch.tensor(1.0))  # half way to zero, the data's mean
        tensor([[0.5000, 0.5000]])
    """

    def __init__(self, backbone: nn.Module, schedule: Schedule, sigma_data: float = 1.0) -> None:
        super().__init__(schedule)
        self.backbone = backbone
        self.sigma_data = sigma_data

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        scale = torch.sqrt(sigma**2 + self.sigma_data**2)
        label = sigma.log().reshape(-1) / 4 if sigma.ndim else sigma.log() / 4
        output = self.backbone(x / scale, label)
        return self.sigma_data**2 / scale**2 * x + sigma * self.sigma_data / scale * output

    def loss(self, x_0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        r"""Returns the denoising objective of each sample, with shape :math:`(B)`.

        .. math:: \frac{\sigma^2 + s^2}{\sigma^2 s^2} \| d_\theta(x_t) - x_0 \|^2 / D

        EDM's weight gives all noise levels equal importance.

        Arguments:
            x_0: The clean data, with shape :math:`(B, *)`.
            t: The diffusion times, with shape :math:`(B)`.
            noise: Standard normal noise, with the shape of `x_0`.
        """
        alpha_t, sigma_t = (broadcast(scale, x_0) for scale in self.schedule(t))
        error = self(alpha_t * x_0 + sigma_t * noise, t).mean - x_0
        sigma = sigma_t / alpha_t
        weight = (sigma**2 + self.sigma_data**2) / (sigma * self.sigma_data) ** 2
        return (weight * error**2).flatten(start_dim=1).mean(dim=1)


class Correlated(Karras):
    r"""A network with EDM's preconditioning, for data of a known covariance :math:`\Sigma`:

    .. math::
        d_\theta(x) = \frac{\Sigma}{\sigma^2 + \Sigma} x + \sigma \sqrt{\frac{S}{\sigma^2 + S}} \,
            F_\theta\!\left(\frac{x}{\sqrt{\sigma^2 + S}}, \tfrac{1}{4} \log \sigma\right)

    Without a network it is the best linear denoiser. The network works in units of :math:`S`, a
    coarser covariance. :class:`Karras` is the case of :math:`\Sigma = S = s^2`.

    Arguments:
        backbone: The network, as for :class:`Karras`.
        schedule: The noise schedule.
        covariance: The covariance, a module. Its call `(f, x, sigma)` returns
            :math:`f(\Sigma, \sigma) x`, where f acts on variances. Its method `coarse` does the
            same for :math:`S`.

    Example:
        >>> class Zero(torch.nn.Module):
        ...     def forward(self, x, label):
        ...         return torch.zeros_like(x)
        >>> covariance = feasibly.nn.ZonalCovariance(1, 1, rows=4, columns=8, leading=1)
        >>> model = feasibly.denoisers.Correlated(Zero(), feasibly.schedules.EDM(), covariance)
        >>> model(torch.ones(2, 1, 1, 4, 8), torch.tensor(0.5)).mean.shape
        torch.Size([2, 1, 1, 4, 8])
    """

    def __init__(self, backbone: nn.Module, schedule: Schedule, covariance: Any) -> None:
        super().__init__(backbone, schedule)
        self.covariance = covariance

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        label = sigma.log().reshape(-1) / 4 if sigma.ndim else sigma.log() / 4
        coarse = self.covariance.coarse
        output = self.backbone(coarse(lambda v, s: (s**2 + v).rsqrt(), x, sigma), label)
        skip = self.covariance(lambda v, s: v / (s**2 + v), x, sigma)
        return skip + coarse(lambda v, s: s * (v / (s**2 + v)).sqrt(), output, sigma)

    def loss(self, x_0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        r"""Returns the denoising objective of each sample, with shape :math:`(B)`.

        In each component of :math:`S` it is that of :class:`Karras`. Components whose variance is
        below 0.01, in units of the data, have less weight, since their errors do not show.
        """
        alpha_t, sigma_t = (broadcast(scale, x_0) for scale in self.schedule(t))
        error = self(alpha_t * x_0 + sigma_t * noise, t).mean - x_0

        def weight(v: Tensor, s: Tensor) -> Tensor:
            return ((s**2 + v) / (s**2 * (v + 0.01))).sqrt()

        error = self.covariance.coarse(weight, error, sigma_t / alpha_t)
        return (error**2).flatten(start_dim=1).mean(dim=1)
