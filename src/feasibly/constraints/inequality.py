r"""Inequalities: :math:`g(x) \leq 0`."""

__all__ = ["Bounds", "Inequality"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import typed
from .base import (
    Array,
    Constraint,
    Inequalities,
    Intervals,
    at_most_zero,
    constant,
    ordered,
    rows,
    target,
)


class Inequality(Constraint):
    r"""The constraint :math:`g(x) \leq 0`, elementwise, with residual :math:`\max(g, 0)`.

    Inside, the residual and its gradient are zero, so that a projection leaves feasible samples
    as they are. :func:`feasibly.sample` resamples the prior before it projects.

    Arguments:
        g: A differentiable function of a batch :math:`(B, *)`.
        tolerance: The largest :math:`\|\max(g, 0)\|^2` of a feasible sample.
    """

    @typed
    def __init__(self, g: Callable[[Tensor], Tensor], tolerance: float) -> None:
        super().__init__(tolerance)
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
        name = "Inequality(g=...)"
        return rows(ordered(self.g(x), name), x, name)


class Bounds(Constraint):
    r"""The constraint :math:`l \leq x \leq u`, elementwise.

    Arguments:
        lower: The lower bound :math:`l`, which broadcasts to a sample; None or -inf for none.
        upper: The upper bound :math:`u`, likewise; None or inf for none.
        tolerance: The largest squared distance to the box of a feasible sample.
    """

    @typed
    def __init__(self, lower: Array | None, upper: Array | None, tolerance: float) -> None:
        super().__init__(tolerance)
        lower = -math.inf if lower is None else lower
        upper = math.inf if upper is None else upper
        low, high = constant(lower, "Bounds(lower=...)"), constant(upper, "Bounds(upper=...)")
        if not torch.all(low <= high):
            raise ValueError(
                "Bounds: the lower bound is above the upper bound somewhere, or a bound is not a "
                "number. Correct the bounds."
            )
        if torch.isinf(low).all() and torch.isinf(high).all():
            raise ValueError("Bounds: neither bound is finite anywhere; give one at least.")
        self.lower, self.upper = low, high

    @property
    def equalities(self) -> Constraint | None:
        fixed = self.lower == self.upper
        return _Fixed(self, fixed) if torch.any(fixed) else None

    @property
    def inequalities(self) -> Inequalities | None:
        return None if torch.all(self.lower == self.upper) else self._intervals

    def _intervals(self, x: Tensor) -> Intervals:
        """The elements that have bounds, and whose bounds are not equal."""
        lower = target(self.lower, x, "Bounds(lower)").expand(x.shape[1:])
        upper = target(self.upper, x, "Bounds(upper)").expand(x.shape[1:])
        free = (lower < upper) & ((lower > -math.inf) | (upper < math.inf))
        values = x[:, free]
        return Intervals(values, lower[free].expand_as(values), upper[free].expand_as(values))

    def residual(self, x: Tensor) -> Tensor:
        return (x - self.projection(x)).flatten(start_dim=1)

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns `x`, clamped to the bounds."""
        lower = target(self.lower, x, "Bounds(lower)")
        return torch.minimum(torch.maximum(x, lower), target(self.upper, x, "Bounds(upper)"))


class _Fixed(Constraint):
    """The equality part of bounds: the elements whose bounds are equal."""

    linear = True

    def __init__(self, bounds: Bounds, fixed: Tensor) -> None:
        super().__init__(bounds.tolerance)
        self.bounds, self.fixed = bounds, fixed

    def residual(self, x: Tensor) -> Tensor:
        y = target(self.bounds.lower, x, "Bounds(lower)")
        return (x - y)[:, self.fixed.to(x.device).expand(x.shape[1:])]
