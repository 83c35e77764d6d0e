r"""Divergence-free vector fields."""

__all__ = ["DivergenceFree"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments import typed
from .base import Constraint
from .operators import check_grid, divergence, wavenumber


class DivergenceFree(Constraint):
    r"""The constraint :math:`\nabla \cdot u = 0` on a uniform grid in two or three dimensions.

    Samples have shape :math:`(B, *, d, n_1, ..., n_d)`, where component :math:`i` points along
    grid axis :math:`i`. The constraint holds for all fields of a sample.

    Arguments:
        spacing: The :math:`d` distances between grid points.
        tolerance: The largest mean over the grid of :math:`(\nabla \cdot u)^2` of a feasible
            sample, in squared units of :math:`u` over those of the spacing.
        scheme: `spectral`, `periodic` (central differences) or `open` (central differences,
            one-sided at the ends).
    """

    linear = True

    @typed
    def __init__(
        self, spacing: Sequence[float], tolerance: float, scheme: str = "spectral"
    ) -> None:
        super().__init__(tolerance)
        check_grid(spacing, scheme, "DivergenceFree")
        if len(spacing) not in (2, 3):
            raise ValueError(
                "DivergenceFree(spacing=...) must be two or three distances, got "
                f"{tuple(spacing)}."
            )
        self.spacing, self.scheme = tuple(spacing), scheme

    def residual(self, x: Tensor) -> Tensor:
        d = len(self.spacing)
        if x.ndim < d + 2 or x.shape[-d - 1] != d:
            raise ValueError(
                f"DivergenceFree needs samples that end with an axis of {d} components and {d} "
                f"grid axes, got shape {tuple(x.shape[1:])}."
            )
        r = divergence(x, self.spacing, self.scheme).flatten(start_dim=1)
        return r / math.sqrt(r.shape[1])

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns the Leray projection :math:`\hat u - k (k \cdot \hat u) / |k|^2`.

        The wavenumbers are those of the scheme. For the scheme `open`, which has none, the
        equations are solved as those of any linear constraint.

        Raises:
            NotImplementedError: If the scheme is `open` and the grid is too large for that.
        """
        if self.scheme == "open":
            return super().projection(x)
        d = len(self.spacing)
        axes = tuple(range(-d, 0))
        sides = zip(x.shape[-d:], self.spacing, strict=True)
        grid = [wavenumber(n, h, self.scheme, x) for n, h in sides]
        k = torch.stack(torch.meshgrid(*grid, indexing="ij"))
        squares = k.square().sum(dim=0)
        # The mean, and waves whose derivatives vanish, have no divergence. Rounding of sin(k h)
        # must not give them one.
        still = squares <= 1e-10 * squares.max()
        inverse = torch.where(still, 0.0, 1 / squares)
        u_hat = torch.fft.fftn(x, dim=axes)
        along = (k * u_hat).sum(dim=-d - 1, keepdim=True) * inverse
        return torch.fft.ifftn(u_hat - k * along, dim=axes).real
