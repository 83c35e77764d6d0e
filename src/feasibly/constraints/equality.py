r"""Equality constraints from a plain function."""

__all__ = ["Equality", "Scalar"]

from collections.abc import Callable

import torch
from torch import Tensor

from .base import Constraint, rows


class Equality(Constraint):
    r"""The constraint :math:`h(x) = 0`.

    Arguments:
        function: The residual :math:`h`, a differentiable function of a batch :math:`(B, *)`.
            Its value is flattened to :math:`(B, m)`.
        tolerance: The largest :math:`\|h\|^2` of a feasible sample.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], tolerance: float) -> None:
        super().__init__(tolerance)
        self.function = function

    def residual(self, x: Tensor) -> Tensor:
        return rows(self.function(x), x, "Equality(function=...)")


class Scalar(Constraint):
    r"""A constraint known only as a violation :math:`c(x) \geq 0`.

    Its residual is :math:`\sqrt{c}`, for which a Gauss-Newton step is Polyak's step
    :math:`x - 2 c \, \nabla c / \|\nabla c\|^2`. Where a residual with a sign is known,
    :class:`Equality` is better: :math:`\sqrt{c}` has a kink at its solutions.

    Arguments:
        function: The violation :math:`c`, which maps a batch :math:`(B, *)` to :math:`(B)`. A
            sample for which it is below minus the tolerance counts as not finite.
        tolerance: The largest :math:`c` of a feasible sample.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], tolerance: float) -> None:
        super().__init__(tolerance)
        self.function = function

    def residual(self, x: Tensor) -> Tensor:
        c = self.function(x).reshape(x.shape[0], -1)
        # rounding may leave c a little below zero; the clamp also makes the gradient at an exact
        # solution zero instead of infinite
        root = c.clamp_min(torch.finfo(c.dtype).tiny).sqrt()
        return root.masked_fill(c < -self.tolerance, torch.nan)
