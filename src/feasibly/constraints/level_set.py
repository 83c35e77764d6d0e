"""Level sets of a random field, the constraints of Data2D (paper, Appendix B.1)."""

__all__ = ["GaussianRandomField", "LevelSet"]

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ..arguments import typed
from .base import Constraint, ordered


class LevelSet(Constraint):
    r"""The constraint :math:`f(x) = 0` with the paper's violation
    :math:`c(x) = 1 - e^{- f(x)^2}`.

    Arguments:
        f: A differentiable scalar field, which maps :math:`(B, *)` to :math:`(B)`.
        tolerance: The largest :math:`c` of a feasible sample. The default is the paper's.
    """

    @typed
    def __init__(self, f: Callable[[Tensor], Tensor], tolerance: float = 4e-6) -> None:
        super().__init__(tolerance)
        self.f = f

    def residual(self, x: Tensor) -> Tensor:
        return ordered(self.f(x), "LevelSet(f=...)")[:, None]

    def violation(self, x: Tensor) -> Tensor:
        return -torch.expm1(-self.f(x).square())


class GaussianRandomField:
    r"""A sample of a Gaussian random field on :math:`\mathbb{R}^2` with an RBF kernel.

    It is made of random Fourier features:

    .. math::
        f(x) = \sqrt{2 \sigma_f^2 / M} \sum_{m=1}^M a_m \cos(\omega_m^\top x + \phi_m) + \beta ,

    with :math:`\omega_m \sim \mathcal{N}(0, \ell^{-2} I)`,
    :math:`\phi_m \sim \mathcal{U}(0, 2 \pi)`, :math:`a_m \sim \mathcal{N}(0, 1)` and
    :math:`\beta \sim \mathcal{N}(0, \sigma_b^2 \sigma_f^2)`.

    Arguments:
        seed: The seed of the field.
        features: The number :math:`M` of features.
        lengthscale: The lengthscale :math:`\ell`.
        std: The standard deviation :math:`\sigma_f`.
        bias: The relative standard deviation :math:`\sigma_b` of the bias.
    """

    @typed
    def __init__(
        self,
        seed: int,
        features: int = 64,
        lengthscale: float = 0.25,
        std: float = 1.0,
        bias: float = 0.05,
    ) -> None:
        generator = Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.omega = normal(features, 2) / lengthscale
        self.phi = 2 * math.pi * torch.rand(features, generator=generator, dtype=torch.float64)
        self.amplitude = math.sqrt(2 * std**2 / features) * normal(features)
        self.beta = bias * std * normal(1)

    def __call__(self, x: Tensor) -> Tensor:
        r"""Returns :math:`f(x)`, with shape :math:`(B)`, for `x` with shape :math:`(B, 2)`."""
        angle = torch.addmm(self.phi.to(x), x, self.omega.to(x).T)
        return torch.addmv(self.beta.to(x), angle.cos(), self.amplitude.to(x))
