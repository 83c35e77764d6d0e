r"""Inequalities: :math:`g(x) \leq 0`."""

__all__ = ["Bounds", "Inequality", "Obstacles", "length"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import typed
from ..errors import ConstraintError
from .base import (
    Array,
    Constraint,
    Inequalities,
    Intervals,
    Limit,
    at_most_zero,
    constant,
    ordered,
    rows,
    target,
)


class Inequality(Constraint):
    r"""The constraint :math:`g(x) \leq 0`, elementwise, with residual :math:`\max(g, 0)`.

    Inside, the residual and its gradient are zero, so that a projection leaves samples there.

    Arguments:
        g: A differentiable function of a batch :math:`(B, *)`.
        tolerance: The largest :math:`\|\max(g, 0)\|^2` of a feasible sample.
        atol: Instead, the largest :math:`g_i`; see :class:`Constraint`.

    Example:
        >>> disc = feasibly.Inequality(lambda x: x.norm(dim=1) - 1, atol=1e-3)
        >>> disc.residual(torch.tensor([[0.6, 0.0], [3.0, 4.0]])).tolist()
        [[0.0], [4.0]]
    """

    @typed
    def __init__(
        self, g: Callable[[Tensor], Tensor], tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(tolerance, atol)
        self.g = g

    @property
    def equalities(self) -> None:
        return None

    @property
    def inequalities(self) -> Inequalities:
        return lambda x: at_most_zero(self._values(x))

    def residual(self, x: Tensor) -> Tensor:
        return self._values(x).relu()

    def _values(self, x: Tensor) -> Tensor:
        name = f"{type(self).__name__}(g=...)"
        return rows(ordered(self.g(x), name), x, name)


class Obstacles(Inequality):
    r"""The constraint that points keep out of discs or balls: :math:`\|x_t - c_k\| \geq r_k`.

    Samples are paths, with shape :math:`(B, T, d)`. Only their points are tested. A path may cut
    a corner between two points; to prevent that, add half the length of a step to the radii.

    Arguments:
        centers: The centers :math:`c_k`, with shape :math:`(K, d)`.
        radii: The positive radii :math:`r_k`, which broadcast to :math:`(K)`.
        tolerance: The largest sum of squared depths, in squared units of length.
        atol: Instead, the largest depth.

    Example:
        >>> disc = feasibly.constraints.Obstacles([[0.0, 0.0]], 1.0, atol=0.01)
        >>> paths = torch.tensor([[[-2.0, 0.0], [2.0, 0.0]], [[-2.0, 0.0], [0.5, 0.0]]])
        >>> disc.is_feasible(paths).tolist()
        [True, False]
    """

    @typed
    def __init__(
        self, centers: Array, radii: Array, tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(self._depths, tolerance, atol=atol)
        self.centers = constant(centers, "Obstacles(centers=...)")
        self.radii = constant(radii, "Obstacles(radii=...)")
        if self.centers.ndim != 2 or not (self.radii > 0).all():
            raise ValueError(
                "Obstacles needs centers of shape (K, d) and positive radii, got "
                f"{tuple(self.centers.shape)} and {self.radii.tolist()}."
            )

    def _depths(self, x: Tensor) -> Tensor:
        """Returns how deep points are inside of obstacles, with shape (B, *)."""
        if self.centers.shape[1] != x.shape[-1]:
            raise ConstraintError(
                f"Obstacles: centers have {self.centers.shape[1]} coordinates, but points have "
                f"{x.shape[-1]}."
            )
        return self.radii.to(x) - length(x[..., None, :] - self.centers.to(x))


def length(x: Tensor) -> Tensor:
    """Returns the length of the vectors on the last axis, with a slope of zero at zero."""
    return x.square().sum(dim=-1).clamp_min(torch.finfo(x.dtype).tiny).sqrt()


class Bounds(Constraint):
    r"""The constraint :math:`l \leq x \leq u`, elementwise.

    Arguments:
        lower: The lower bound :math:`l`, which broadcasts to a sample; None or -inf for none.
        upper: The upper bound :math:`u`, likewise; None or inf for none.
        tolerance: The largest squared distance to the box of a feasible sample.
        atol: Instead, how far one element may be outside of its bounds.

    Example:
        >>> bounds = feasibly.Bounds(0, [1.0, 2.0], atol=1e-3)
        >>> bounds.is_feasible(torch.tensor([[0.5, 1.5], [1.5, 1.5]])).tolist()
        [True, False]
        >>> feasibly.Bounds(0, None, atol=1e-3).projection(torch.tensor([[-1.0, 2.0]])).tolist()
        [[0.0, 2.0]]
    """

    @typed
    def __init__(
        self,
        lower: Array | None,
        upper: Array | None,
        tolerance: Limit = None,
        *,
        atol: Limit = None,
    ) -> None:
        super().__init__(tolerance, atol)
        lower = -math.inf if lower is None else lower
        upper = math.inf if upper is None else upper
        low, high = constant(lower, "Bounds(lower=...)"), constant(upper, "Bounds(upper=...)")
        if not torch.all(low <= high):
            raise ValueError(
                "Bounds: the lower bound is above the upper bound somewhere, or a bound is not a "
                "number. Correct the bounds."
            )
        if torch.isinf(low).all() and torch.isinf(high).all():
            raise ValueError("Bounds: neither bound is finite anywhere; give at least one.")
        self.lower, self.upper = low, high

    @property
    def equalities(self) -> Constraint | None:
        fixed = self.lower == self.upper
        return _Fixed(self, fixed) if torch.any(fixed) else None

    @property
    def inequalities(self) -> Inequalities | None:
        return None if torch.all(self.lower == self.upper) else self._intervals

    def _limits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return target(self.lower, x, "Bounds(lower)"), target(self.upper, x, "Bounds(upper)")

    def _intervals(self, x: Tensor) -> Intervals:
        """The elements that have bounds, and whose bounds are not equal."""
        lower, upper = (limit.expand(x.shape[1:]) for limit in self._limits(x))
        free = (lower < upper) & ((lower > -math.inf) | (upper < math.inf))
        values = x[:, free]
        return Intervals(values, lower[free].expand_as(values), upper[free].expand_as(values))

    def residual(self, x: Tensor) -> Tensor:
        return (x - self.projection(x)).flatten(start_dim=1)

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns `x`, clamped to the bounds."""
        lower, upper = self._limits(x)
        return torch.minimum(torch.maximum(x, lower), upper)


class _Fixed(Constraint):
    """The equality part of bounds: the elements whose bounds are equal."""

    linear = True

    def __init__(self, bounds: Bounds, fixed: Tensor) -> None:
        super().__init__(*bounds.given)
        self.bounds, self.fixed = bounds, fixed

    def residual(self, x: Tensor) -> Tensor:
        y, _ = self.bounds._limits(x)
        return (x - y)[:, self.fixed.to(x.device).expand(x.shape[1:])]
