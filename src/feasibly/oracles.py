r"""Exact denoisers :math:`\mathbb{E}[x_0 \mid x_t]` of known distributions.

They need no training, and hold at every noise level and for every schedule. Samplers are tested
against them. All compute in double precision and return the dtype of the input.
"""

__all__ = ["Checkerboard", "Empirical", "Gaussian", "GaussianMixture"]

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from .denoisers import Denoiser
from .schedules import Schedule


def _rows(x: Tensor) -> Tensor:
    return x.flatten(start_dim=1).double()


class Gaussian(Denoiser):
    r"""The denoiser of :math:`\mathcal{N}(\mu, \Sigma)`:
    :math:`\mathbb{E}[x_0 \mid x] = \mu + \Sigma (\Sigma + \sigma^2 I)^{-1} (x - \mu)`.

    Arguments:
        mu: The mean, with shape :math:`(D)`.
        cov: The covariance, with shape :math:`(D, D)`.
        schedule: The noise schedule.

    Example:
        >>> model = feasibly.oracles.Gaussian(torch.ones(2), torch.eye(2), feasibly.schedules.VP())
        >>> model.mean(torch.tensor([[3.0, 1.0]]), torch.tensor(1.0))
        tensor([[2., 1.]])
    """

    mu: Tensor
    values: Tensor
    vectors: Tensor

    def __init__(self, mu: Tensor, cov: Tensor, schedule: Schedule) -> None:
        super().__init__(schedule)
        values, vectors = torch.linalg.eigh(cov.double())
        if values.min() < -1e-10 * values.max():
            raise ValueError(
                f"Gaussian needs a positive semi-definite covariance, got an eigenvalue of "
                f"{values.min().item():.3g}."
            )
        self.register_buffer("mu", mu.double())
        self.register_buffer("values", values.clamp_min(0))
        self.register_buffer("vectors", vectors)

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma.double().reshape(-1, 1)
        shrink = self.values / (self.values + sigma**2)
        x_0 = self.mu + ((_rows(x) - self.mu) @ self.vectors * shrink) @ self.vectors.T
        return x_0.reshape(x.shape).to(x.dtype)


class GaussianMixture(Denoiser):
    r"""The denoiser of :math:`\sum_k w_k \mathcal{N}(\mu_k, \Sigma_k)`: the Gaussian denoisers of
    the components, weighted by :math:`w_k \mathcal{N}(x; \mu_k, \Sigma_k + \sigma^2 I)`.

    Arguments:
        weights: The weights, with shape :math:`(K)`. They are normalised.
        mu: The means, with shape :math:`(K, D)`.
        cov: The covariances, with shape :math:`(K, D, D)`.
        schedule: The noise schedule.

    Example:
        >>> mu, cov = torch.tensor([[-1.0], [1.0]]), torch.full((2, 1, 1), 0.01)
        >>> schedule = feasibly.schedules.VP()
        >>> model = feasibly.oracles.GaussianMixture(torch.ones(2), mu, cov, schedule)
        >>> model.mean(torch.tensor([[0.9]]), torch.tensor(0.1))  # half way to the nearer mean
        tensor([[0.9500]])
    """

    log_weights: Tensor
    mu: Tensor
    values: Tensor
    vectors: Tensor

    def __init__(self, weights: Tensor, mu: Tensor, cov: Tensor, schedule: Schedule) -> None:
        super().__init__(schedule)
        values, vectors = torch.linalg.eigh(cov.double())
        self.register_buffer("log_weights", (weights.double() / weights.double().sum()).log())
        self.register_buffer("mu", mu.double())
        self.register_buffer("values", values.clamp_min(0))
        self.register_buffer("vectors", vectors)

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma.double().reshape(-1, 1, 1)
        var = self.values + sigma**2  # (B or 1, K, D), in each component's eigenbasis
        z = torch.einsum("bkd,kde->bke", _rows(x)[:, None] - self.mu, self.vectors)
        log_w = self.log_weights - (z**2 / var + var.log()).sum(dim=-1) / 2
        x_k = self.mu + torch.einsum("bke,kde->bkd", self.values / var * z, self.vectors)
        x_0 = torch.einsum("bk,bkd->bd", log_w.softmax(dim=1), x_k)
        return x_0.reshape(x.shape).to(x.dtype)


class Empirical(Denoiser):
    r"""The denoiser of a finite data set: :math:`\sum_n w_n x_n` with
    :math:`w \propto \exp(- \|x - x_n\|^2 / 2 \sigma^2)`.

    Arguments:
        data: The data set, with shape :math:`(N, *)`.
        schedule: The noise schedule.

    Example:
        >>> data = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
        >>> model = feasibly.oracles.Empirical(data, feasibly.schedules.LogLogit())
        >>> model.mean(torch.tensor([[0.9, 0.9]]), torch.tensor(0.1))
        tensor([[1., 1.]])
    """

    data: Tensor

    def __init__(self, data: Tensor, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.register_buffer("data", data.double())

    def log_weights(self, x: Tensor, sigma: Tensor) -> Tensor:
        r"""Returns :math:`\log p(x_0 = x_n \mid x)`, with shape :math:`(B, N)`."""
        # |x|^2 - 2 x.x_n + |x_n|^2 would cancel for small sigma
        distance = torch.cdist(
            _rows(x), _rows(self.data), compute_mode="donot_use_mm_for_euclid_dist"
        )
        return (-(distance**2) / (2 * sigma.double().reshape(-1, 1) ** 2)).log_softmax(dim=1)

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        x_0 = self.log_weights(x, sigma).exp() @ _rows(self.data)
        return x_0.reshape(x.shape).to(x.dtype)


class Checkerboard(Denoiser):
    r"""The denoiser of the uniform checkerboard, standardised (Data2D).

    Given a square, the posterior of each coordinate is a normal truncated to an interval. The
    result is accurate for :math:`\sigma` from 1e-4 to 1e4, on the board and far from it.

    Arguments:
        m: The number of squares per side, which is even.
        schedule: The noise schedule.

    Example:
        >>> board = feasibly.oracles.Checkerboard(4, feasibly.schedules.LogLogit())
        >>> far = torch.tensor([[9.0, 9.0]])  # the nearest corner of the board is at sqrt(3)
        >>> board.mean(far, torch.tensor(0.01)).round(decimals=1)
        tensor([[1.7000, 1.7000]])
    """

    edges: Tensor
    board: Tensor

    def __init__(self, m: int, schedule: Schedule) -> None:
        super().__init__(schedule)
        if m < 2 or m % 2:
            raise ValueError(f"Checkerboard(m=...) must be even and positive, got {m}.")
        ij = torch.arange(m)
        self.register_buffer("edges", (torch.arange(m + 1).double() - m / 2) / (m / math.sqrt(12)))
        self.register_buffer("board", (ij[:, None] + ij[None, :]) % 2 == 0)

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        z = _rows(x)[:, :, None]
        scale = sigma.double().reshape(-1, 1, 1)
        log_mass, mean = truncated_normal(z, scale, self.edges[:-1], self.edges[1:])

        log_w = log_mass[:, 0, :, None] + log_mass[:, 1, None, :]  # (B, m, m)
        log_w = log_w.masked_fill(~self.board, -math.inf)
        w = log_w.flatten(start_dim=1).softmax(dim=1).reshape(log_w.shape)
        x_0 = torch.stack(
            ((w.sum(dim=2) * mean[:, 0]).sum(dim=1), (w.sum(dim=1) * mean[:, 1]).sum(dim=1)), dim=1
        )
        return x_0.to(x.dtype)


def truncated_normal(mu: Tensor, sigma: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Returns the log-mass and the mean of :math:`\mathcal{N}(\mu, \sigma^2)` on [a, b].

    Differences of distribution functions cancel if the interval is short or far away. So there
    are three formulas, in units of :math:`\sigma` and mirrored so that the centre :math:`u` of the
    interval, of half length :math:`h`, is not negative.

    * A short interval (:math:`h \leq 1/2`, :math:`u h \leq 4`): Gauss-Legendre quadrature.
    * Else, an interval to the right of zero (:math:`u \geq h`): Mills ratios by `erfcx`.
    * Else, an interval around zero: distribution functions.
    """
    u = ((a + b) / 2 - mu) / sigma
    h = ((b - a) / 2 / sigma).expand_as(u)
    sign = torch.where(u < 0, -1.0, 1.0).to(u)
    u = u * sign

    short = (h <= 0.5) & (u * h <= 4)
    right = ~short & (u >= h)
    zero, one = torch.zeros_like(u), torch.ones_like(u)

    # A formula gets harmless inputs where another one is chosen: `where` would pass NaN gradients.
    node, weight = (torch.from_numpy(values).to(u.device) for values in _rule())
    u_s, h_s = torch.where(short, u, zero)[..., None], torch.where(short, h, one / 2)[..., None]
    delta = h_s * node
    log_density = weight.log() - u_s * delta - delta**2 / 2
    p = log_density.softmax(dim=-1)
    mass_s = log_density.logsumexp(dim=-1) + (h_s.log() - u_s**2 / 2).squeeze(-1)
    mean_s = u_s.squeeze(-1) + (p * delta).sum(dim=-1)

    u_r, h_r = torch.where(right, u, one), torch.where(right, h, one)
    low, high = u_r - h_r, u_r + h_r  # 0 <= low, by the choice of `right`
    decay = -2 * u_r * h_r  # log of phi(high) / phi(low)
    mills = _mills(low) - decay.exp() * _mills(high)
    mass_r = mills.log() - low**2 / 2
    mean_r = -torch.expm1(decay) / mills

    around = ~short & ~right
    u_a, h_a = torch.where(around, u, zero), torch.where(around, h, one)
    low, high = u_a - h_a, u_a + h_a
    mass = torch.special.ndtr(high) - torch.special.ndtr(low)
    mass_a = mass.log() + math.log(2 * math.pi) / 2
    mean_a = (torch.exp(-(low**2) / 2) - torch.exp(-(high**2) / 2)) / (
        mass * math.sqrt(2 * math.pi)
    )

    log_mass = torch.where(short, mass_s, torch.where(right, mass_r, mass_a))
    mean = torch.where(short, mean_s, torch.where(right, mean_r, mean_a))
    return log_mass - math.log(2 * math.pi) / 2, mu + sigma * sign * mean


def _mills(z: Tensor) -> Tensor:
    r"""Returns the Mills ratio :math:`(1 - \Phi(z)) / \phi(z)`, for :math:`z \geq 0`."""
    return math.sqrt(math.pi / 2) * torch.special.erfcx(z / math.sqrt(2))


@cache
def _rule() -> tuple[np.ndarray, np.ndarray]:
    # arrays and not tensors: one that is made in inference mode would have no gradient later
    return np.polynomial.legendre.leggauss(32)
