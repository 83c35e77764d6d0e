"""The two data distributions of Data2D (paper, Appendix B.1)."""

__all__ = ["Banana", "Checkerboard", "Distribution"]

import math
from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor


class Distribution(ABC):
    r"""A standardised distribution on :math:`\mathbb{R}^2`."""

    modes: int  # the number of modes

    @abstractmethod
    def sample(self, n: int, generator: Generator) -> Tensor:
        r"""Returns `n` standardised samples, with shape :math:`(n, 2)`, in double precision."""

    @abstractmethod
    def in_support(self, x: Tensor) -> Tensor:
        r"""Returns which points of `x`, with shape :math:`(n, 2)`, lie on the support."""

    @abstractmethod
    def mode(self, x: Tensor) -> Tensor:
        r"""Returns the index of the mode nearest to each point, with shape :math:`(n)`."""


class Checkerboard(Distribution):
    r"""Uniform on the :math:`m^2 / 2` squares of even parity of an :math:`m \times m` board.

    The paper states neither :math:`m` nor the jitter. Here :math:`m = 4`, without jitter; with an
    odd :math:`m` the board would not be uniform. The distribution is standardised by its exact
    moments, the mean :math:`m / 2` and the standard deviation :math:`m / \sqrt{12}`.

    Arguments:
        m: The number of squares per side, which is even.
    """

    def __init__(self, m: int = 4) -> None:
        if m < 2 or m % 2:
            raise ValueError(f"Checkerboard(m=...) must be even and positive, got {m}.")
        self.m = m
        self.mean, self.std = m / 2, m / math.sqrt(12)
        self.modes = m * m // 2

    def sample(self, n: int, generator: Generator) -> Tensor:
        i = torch.randint(self.m, (n,), generator=generator)
        j = 2 * torch.randint(self.m // 2, (n,), generator=generator) + i % 2
        u = torch.rand((n, 2), generator=generator, dtype=torch.float64)
        return (torch.stack((i, j), dim=1) + u - self.mean) / self.std

    @property
    def squares(self) -> Tensor:
        r"""The lower corners of the squares, with shape :math:`(m^2 / 2, 2)`, on the board."""
        ij = torch.cartesian_prod(torch.arange(self.m), torch.arange(self.m))
        return ij[ij.sum(dim=1) % 2 == 0].double()

    def _distance(self, x: Tensor) -> Tensor:
        """Returns the standardised distance of points to squares, with shape (n, modes)."""
        offset = (x.double() * self.std + self.mean)[:, None] - self.squares.to(x.device)
        return (offset - offset.clamp(0, 1)).norm(dim=-1) / self.std

    def in_support(self, x: Tensor) -> Tensor:
        return self._distance(x).amin(dim=1) == 0

    def mode(self, x: Tensor) -> Tensor:
        return self._distance(x).argmin(dim=1)


class Banana(Distribution):
    r"""The paper's "banana" mixture: a Gaussian mixture, sheared by a parabola,

    .. math:: x_1 = z_1, \qquad x_2 = z_2 + b \, (z_1^2 - \mathbb{E}[z_1^2]) .

    The paper states no parameters. Here there are four components of equal weight. Their means
    are :math:`(-3, -0.5), (-1, 0.5), (1, -0.5), (3, 0.5)`, their standard deviations
    :math:`(0.5, 0.35)`, and the curvature is :math:`b = 0.25`.

    Since the density is positive everywhere, the *support* is the smallest region of the
    standardised plane that holds 99.9 % of the mass. It holds the points whose density is above
    the 0.001-quantile of the density of samples.
    """

    means = torch.tensor([[-3.0, -0.5], [-1.0, 0.5], [1.0, -0.5], [3.0, 0.5]]).double()
    stds = torch.tensor([0.5, 0.35]).double()
    curvature = 0.25
    modes = 4

    def __init__(self) -> None:
        z_square = (self.means[:, 0] ** 2).mean() + self.stds[0] ** 2
        self.shift = self.curvature * z_square
        # E[x_1] = E[x_2] = 0 by symmetry and centring; the variances follow from the moments of
        # a Gaussian, E[z^4] = mu^4 + 6 mu^2 s^2 + 3 s^4. Cov(z_2, z_1^2) = 0 by symmetry.
        mu, s = self.means[:, 0], self.stds[0]
        z_fourth = (mu**4 + 6 * mu**2 * s**2 + 3 * s**4).mean()
        var_2 = (self.means[:, 1] ** 2).mean() + self.stds[1] ** 2
        var_2 = var_2 + self.curvature**2 * (z_fourth - z_square**2)
        self.std = torch.stack((z_square, var_2)).sqrt()

        generator = Generator().manual_seed(0)
        density = self.log_density(self.sample(2**18, generator))
        self.threshold = density.sort().values[2**18 // 1000]

    def _unshear(self, x: Tensor) -> Tensor:
        x = x.double() * self.std.to(x.device)
        return torch.stack((x[:, 0], x[:, 1] - self.curvature * x[:, 0] ** 2 + self.shift), 1)

    def _log_components(self, x: Tensor) -> Tensor:
        z = (self._unshear(x)[:, None] - self.means.to(x.device)) / self.stds.to(x.device)
        return -z.square().sum(dim=-1) / 2

    def sample(self, n: int, generator: Generator) -> Tensor:
        k = torch.randint(self.modes, (n,), generator=generator)
        noise = torch.randn((n, 2), generator=generator, dtype=torch.float64)
        z = self.means[k] + self.stds * noise
        x_2 = z[:, 1] + self.curvature * z[:, 0] ** 2 - self.shift
        return torch.stack((z[:, 0], x_2), dim=1) / self.std

    def log_density(self, x: Tensor) -> Tensor:
        r"""Returns the log-density of `x`, up to a constant: the shear preserves area."""
        return torch.logsumexp(self._log_components(x), dim=1)

    def in_support(self, x: Tensor) -> Tensor:
        return self.log_density(x) >= self.threshold.to(x.device)

    def mode(self, x: Tensor) -> Tensor:
        return self._log_components(x).argmax(dim=1)
