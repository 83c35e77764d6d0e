"""Constraints on the values of a field or path: known ones, slopes, distances and integrals."""

__all__ = ["ClosedLoop", "Energy", "Integral", "Lengths", "Mask", "Neumann"]

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..arguments import typed
from ..errors import ConstraintError
from .base import Array, Constraint, Limit, check_axes, constant, finite, target
from .inequality import length


class Mask(Constraint):
    r"""The constraint that some values are known: :math:`x_i = y_i` where a mask is true.

    Use it for in-painting, sensors on a grid, and boundary (Dirichlet) and initial conditions.

    Arguments:
        mask: Where the values are known, booleans with the shape of a sample.
        y: The values, in the units of a sample. Give one number, or the known values in the order
            of `x[mask]`, or a whole sample, of which only the masked part counts.
        tolerance: The largest sum of squared errors over the mask, in those units squared.
        atol: Instead, the largest error of one value.

    Example:
        >>> image = torch.arange(4.0).reshape(2, 2)
        >>> known = torch.tensor([[True, False], [True, True]])  # in-painting of one pixel
        >>> mask = feasibly.constraints.Mask(known, image, atol=1e-3)
        >>> mask.projection(torch.zeros(1, 2, 2)).tolist()
        [[[0.0, 0.0], [2.0, 3.0]]]
    """

    linear = True

    @typed
    def __init__(
        self, mask: Array, y: Array, tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(tolerance, atol)
        mask = mask if isinstance(mask, Tensor) else torch.tensor(np.asarray(mask))
        if mask.dtype != torch.bool or not mask.any():
            raise ValueError(
                "Mask(mask=...) must be booleans, true where a value is known. Got "
                f"{mask.dtype}, true at {int(mask.count_nonzero())} of {mask.numel()} places."
            )
        y, known = constant(y, "Mask(y=...)"), int(mask.count_nonzero())
        if y.ndim == 1 and y.numel() == known and y.shape != mask.shape:
            y = torch.zeros(mask.shape, dtype=y.dtype).masked_scatter(mask.cpu(), y.cpu())
        if y.ndim and y.shape != mask.shape:
            raise ValueError(
                f"Mask(y=...) has shape {tuple(y.shape)}. Give a number, the {known} values where "
                f"the mask is true, or a sample, with shape {tuple(mask.shape)}."
            )
        self.mask, self.y = mask, y.expand(mask.shape)
        if not self.y[mask].isfinite().all():
            raise ValueError("Mask(y=...) must be finite where the mask is true.")

    @classmethod
    def boundary(
        cls,
        shape: Sequence[int],
        dims: Sequence[int],
        y: Array,
        tolerance: Limit = None,
        *,
        atol: Limit = None,
    ) -> "Mask":
        r"""Returns a Dirichlet condition: the value is `y` at both ends of the axes `dims` of
        samples of a `shape`; see :class:`Mask`."""
        mask = torch.zeros(tuple(shape), dtype=torch.bool)
        for dim in dims:
            mask.select(dim, 0).fill_(True)
            mask.select(dim, -1).fill_(True)
        return cls(mask, y, tolerance, atol=atol)

    @classmethod
    def initial(
        cls, u: Array, frames: int, tolerance: Limit = None, *, atol: Limit = None
    ) -> "Mask":
        r"""Returns an initial condition: samples of so many `frames`, on their first axis, begin
        with the frames `u`, with shape :math:`(k, *)`; see :class:`Mask`."""
        u = constant(u, "Mask.initial(u=...)")
        mask = torch.zeros((frames, *u.shape[1:]), dtype=torch.bool)
        mask[: u.shape[0]] = True
        y = torch.zeros(mask.shape, dtype=u.dtype)
        y[: u.shape[0]] = u.cpu()
        return cls(mask, y, tolerance, atol=atol)

    def residual(self, x: Tensor) -> Tensor:
        mask = self.mask.to(x.device)
        return x[:, mask] - self.y.to(x)[mask]

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns `x` with the known values set."""
        return torch.where(self.mask.to(x.device), self.y.to(x), x)


class Neumann(Constraint):
    r"""The constraint that the slope at both ends of an axis is known:
    :math:`\partial x / \partial n = y`.

    Here :math:`n` grows with the index. Slopes are one-sided differences of second order.

    Arguments:
        dim: The axis of a sample, negative. It needs at least three points.
        spacing: The distance between two points.
        y: The slope, in units of a sample over those of the spacing; 0 is no flux. It
            broadcasts to the shape :math:`(2, *)` of the two ends, the lower end first.
        tolerance: The largest sum of squared errors, in squared units of the slope.
        atol: Instead, the largest error of one slope.

    Example:
        >>> no_flux = feasibly.constraints.Neumann(-1, 1.0, 0.0, atol=1e-3)
        >>> no_flux.residual(torch.tensor([[0.0, 1.0, 2.0, 3.0]])).tolist()
        [[1.0, 1.0]]
    """

    linear = True

    @typed
    def __init__(
        self, dim: int, spacing: float, y: Array, tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(tolerance, atol)
        if dim >= 0:
            raise ValueError(f"Neumann(dim=...) must be negative, got {dim}. The last axis is -1.")
        if not 0 < spacing < math.inf:
            raise ValueError(f"Neumann(spacing=...) must be positive and finite, got {spacing}.")
        self.dim, self.spacing, self.y = dim, spacing, finite(y, "Neumann(y=...)")

    def residual(self, x: Tensor) -> Tensor:
        check_axes(x, -self.dim, f"Neumann(dim={self.dim})")
        u = x.movedim(self.dim, -1)
        low = (-3 * u[..., 0] + 4 * u[..., 1] - u[..., 2]) / (2 * self.spacing)
        high = (3 * u[..., -1] - 4 * u[..., -2] + u[..., -3]) / (2 * self.spacing)
        slopes = torch.stack((low, high), dim=1)
        return (slopes - target(self.y, slopes, "Neumann(y)")).flatten(start_dim=1)


class ClosedLoop(Constraint):
    r"""The constraint that a path, with shape :math:`(B, T, d)`, ends where it begins.

    Arguments:
        tolerance: The largest squared distance of the ends, in squared units of length.
        atol: Instead, the largest difference of one coordinate.

    Example:
        >>> loop = feasibly.constraints.ClosedLoop(atol=0.01)
        >>> square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
        >>> loop.is_feasible(torch.stack((square, square.cumsum(dim=0)))).tolist()
        [True, False]
    """

    linear = True

    def residual(self, x: Tensor) -> Tensor:
        check_axes(x, 2, "ClosedLoop")
        return (x[:, -1] - x[:, 0]).flatten(start_dim=1)

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns the path with both ends moved to the point between them."""
        closed = x.clone()
        closed[:, 0] = closed[:, -1] = (x[:, 0] + x[:, -1]) / 2
        return closed


class Lengths(Constraint):
    r"""The constraint that distances between points are known: :math:`\|x_i - x_j\| = l_{ij}`.

    Use it for joints of a skeleton, links of a chain, or bonds. Samples have shape
    :math:`(B, *, J, d)`, such as frames of :math:`J` points each.

    Arguments:
        pairs: The pairs :math:`(i, j)` of points, whole numbers with shape :math:`(K, 2)`.
        lengths: Their positive lengths, which broadcast to :math:`(K)`.
        tolerance: The largest sum of squared errors of length, in squared units of length.
        atol: Instead, the largest error of one length.

    Example:
        >>> bonds = feasibly.constraints.Lengths([[0, 1], [1, 2]], 1.0, atol=0.01)
        >>> chain = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 3.0]])
        >>> bonds.residual(chain[None]).tolist()
        [[0.0, 2.0]]
    """

    @typed
    def __init__(
        self, pairs: Array, lengths: Array, tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(tolerance, atol)
        pairs = constant(pairs, "Lengths(pairs=...)").long()
        if pairs.ndim != 2 or pairs.shape[1] != 2 or (pairs[:, 0] == pairs[:, 1]).any():
            raise ValueError(
                "Lengths(pairs=...) must be pairs of different points, with shape (K, 2), got "
                f"shape {tuple(pairs.shape)}."
            )
        self.pairs, self.lengths = pairs, constant(lengths, "Lengths(lengths=...)")
        if not (self.lengths > 0).all():
            raise ValueError("Lengths(lengths=...) must be positive.")

    def residual(self, x: Tensor) -> Tensor:
        last = int(self.pairs.max())
        if x.ndim < 3 or last >= x.shape[-2]:
            raise ConstraintError(
                f"Lengths needs samples of shape (*, J, d) with J > {last}: its pairs name point "
                f"{last}. Got {tuple(x.shape[1:])}."
            )
        i, j = self.pairs.to(x.device).unbind(dim=1)
        distance = length(x[..., i, :] - x[..., j, :])
        return (distance - self.lengths.to(x)).flatten(start_dim=1)


class _Sum(Constraint):
    """A constraint on sums over some axes: they are known, or they are conserved."""

    def __init__(
        self,
        dims: Sequence[int],
        y: Array | None,
        tolerance: Limit = None,
        weights: Array | None = None,
        *,
        atol: Limit = None,
    ) -> None:
        super().__init__(tolerance, atol)
        self.dims = tuple(dims)
        name = type(self).__name__
        if not self.dims or max(self.dims) >= 0 or list(self.dims) != sorted(set(self.dims)):
            raise ValueError(
                f"{name}(dims=...) must be negative axes in increasing order, such as (-2, -1), "
                f"got {self.dims}."
            )
        self.y = None if y is None else finite(y, f"{name}(y=...)")
        self.weights = None if weights is None else finite(weights, f"{name}(weights=...)")

    def _weights(self, x: Tensor) -> Tensor:
        """Returns the weights, with as many axes as `x`; the axes that are not summed are ones."""
        check_axes(x, -self.dims[0], f"{type(self).__name__}(dims={self.dims})")
        shape = [n if i - x.ndim in self.dims else 1 for i, n in enumerate(x.shape)]
        if self.weights is None:
            return torch.full(shape, 1 / math.prod(shape), dtype=x.dtype, device=x.device)
        return self.weights.to(x).expand([shape[dim] for dim in self.dims]).reshape(shape)

    def _sum(self, x: Tensor) -> Tensor:
        """Returns the weighted sums of each sample, without the summed axes."""
        sums = (x * self._weights(x)).sum(dim=self.dims)
        if self.y is None and sums.ndim < 2:
            raise ConstraintError(
                f"{type(self).__name__}(dims={self.dims}) sums over all axes of a sample, so "
                "nothing is left to be conserved. Give y, or sum over fewer axes."
            )
        return sums

    def _target(self, sums: Tensor) -> Tensor:
        """Returns the nearest sums that are feasible, in the shape of `sums`."""
        if self.y is None:
            return sums.mean(dim=1, keepdim=True).expand_as(sums)
        return target(self.y, sums, f"{type(self).__name__}(y)").expand_as(sums)

    def _miss(self, sums: Tensor) -> Tensor:
        miss = sums[:, 1:] - sums[:, :1] if self.y is None else sums - self._target(sums)
        return miss.reshape(sums.shape[0], -1)

    def _restore(self, sums: Tensor, x: Tensor) -> Tensor:
        """Returns `sums` with the summed axes of `x` as ones, to broadcast against `x`."""
        return sums.reshape([1 if i - x.ndim in self.dims else n for i, n in enumerate(x.shape)])


class Integral(_Sum):
    r"""The constraint that an integral or average is known: :math:`\sum_i w_i x_i = y`.

    The sum runs over some axes of a sample. There is one equation for each element of the other
    axes. Use it for mass, brightness, or the flux through a section.

    Arguments:
        dims: The axes to sum over, negative and in increasing order.
        y: The values, in units of a sample times those of the weights. They broadcast to the
            other axes. None if they are unknown but conserved, that is, the same along the first
            of the other axes.
        tolerance: The largest sum of squared errors, in those units squared.
        weights: The weights :math:`w`, such as the areas of cells, which broadcast to the axes
            `dims`; None for an average.
        atol: Instead of a tolerance, the largest error of one sum.

    Example:
        >>> mean = feasibly.constraints.Integral((-1,), 2.0, atol=1e-3)  # of the last axis
        >>> mean.residual(torch.tensor([[1.0, 3.0], [1.0, 1.0]])).tolist()
        [[0.0], [-1.0]]
    """

    linear = True

    def residual(self, x: Tensor) -> Tensor:
        return self._miss(self._sum(x))

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns :math:`x - w \, (w^\top x - y) / \|w\|^2`."""
        sums, w = self._sum(x), self._weights(x)
        return x - w * self._restore(sums - self._target(sums), x) / w.square().sum()


class Energy(_Sum):
    r"""The constraint that an energy is known: :math:`\frac{1}{2} \sum_i w_i x_i^2 = y`.

    The arguments are those of :class:`Integral`, of squared values. Of a velocity, sum over the
    axis of its components too.

    Example:
        >>> energy = feasibly.constraints.Energy((-1,), 2.0, atol=1e-3, weights=1.0)
        >>> energy.residual(torch.tensor([[2.0, 0.0], [2.0, 2.0]])).tolist()
        [[0.0], [2.0]]
    """

    @typed
    def __init__(
        self,
        dims: Sequence[int],
        y: Array | None,
        tolerance: Limit = None,
        weights: Array | None = None,
        *,
        atol: Limit = None,
    ) -> None:
        super().__init__(dims, y, tolerance, weights, atol=atol)
        if self.y is not None and (self.y < 0).any():
            raise ValueError("Energy(y=...) must not be negative.")

    def residual(self, x: Tensor) -> Tensor:
        return self._miss(self._sum(x.square()) / 2)

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns `x` scaled to the energy.

        It is NaN where `x` is zero, since then all directions are equally near. There is no
        closed form if the weights differ, or the energy is conserved and not known.
        """
        uneven = self.weights is not None and self.weights.unique().numel() > 1
        if uneven or self.y is None:
            return super().projection(x)
        energy = self._sum(x.square()) / 2
        return x * self._restore(torch.sqrt(self._target(energy) / energy), x)
