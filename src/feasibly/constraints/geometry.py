"""Constraints on paths and bodies: closed loops, lengths of joints, obstacles."""

__all__ = ["ClosedLoop", "Lengths", "Obstacles"]

import torch
from torch import Tensor

from ..arguments import typed
from ..errors import ConstraintError
from .base import Array, Constraint, Inequalities, at_most_zero, check_axes, constant


class ClosedLoop(Constraint):
    r"""The constraint that a path ends where it begins.

    Samples are paths, with shape :math:`(B, T, d)`.

    Arguments:
        tolerance: The largest squared distance of the ends, in squared units of length.
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
    """

    @typed
    def __init__(self, pairs: Array, lengths: Array, tolerance: float) -> None:
        super().__init__(tolerance)
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
        if x.ndim < 3 or int(self.pairs.max()) >= x.shape[-2]:
            raise ConstraintError(
                f"Lengths needs samples of shape (*, J, d) with J > {int(self.pairs.max())}: "
                f"its pairs name point {int(self.pairs.max())}. Got {tuple(x.shape[1:])}."
            )
        i, j = self.pairs.to(x.device).unbind(dim=1)
        distance = _norm(x[..., i, :] - x[..., j, :])
        return (distance - self.lengths.to(x)).flatten(start_dim=1)


class Obstacles(Constraint):
    r"""The constraint that points keep out of discs or balls: :math:`\|x_t - c_k\| \geq r_k`.

    Samples are paths, with shape :math:`(B, T, d)`. Only their points are tested. A path may cut
    a corner between two points; to prevent that, add half the length of a step to the radii.

    Arguments:
        centers: The centers :math:`c_k`, with shape :math:`(K, d)`.
        radii: The positive radii :math:`r_k`, which broadcast to :math:`(K)`.
        tolerance: The largest sum of squared depths, in squared units of length.
    """

    @typed
    def __init__(self, centers: Array, radii: Array, tolerance: float) -> None:
        super().__init__(tolerance)
        self.centers = constant(centers, "Obstacles(centers=...)")
        self.radii = constant(radii, "Obstacles(radii=...)")
        if self.centers.ndim != 2 or not (self.radii > 0).all():
            raise ValueError(
                "Obstacles needs centers of shape (K, d) and positive radii, got "
                f"{tuple(self.centers.shape)} and {self.radii.tolist()}."
            )

    @property
    def equalities(self) -> None:
        return None

    @property
    def inequalities(self) -> Inequalities:
        return lambda x: at_most_zero(self._depths(x))

    def residual(self, x: Tensor) -> Tensor:
        return self._depths(x).relu()

    def _depths(self, x: Tensor) -> Tensor:
        """Returns how deep points are inside of obstacles, with shape (B, m)."""
        if self.centers.shape[1] != x.shape[-1]:
            raise ConstraintError(
                f"Obstacles: centers have {self.centers.shape[1]} coordinates, but points have "
                f"{x.shape[-1]}."
            )
        distance = _norm(x[..., None, :] - self.centers.to(x))
        return (self.radii.to(x) - distance).flatten(start_dim=1)


def _norm(x: Tensor) -> Tensor:
    """Returns the length of the vectors on the last axis, with a slope of zero at zero."""
    return x.square().sum(dim=-1).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
