"""Equality constraints from a plain function."""

__all__ = ["Equality", "Scalar"]

from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import typed
from .base import Constraint, ordered, rows


class Equality(Constraint):
    r"""The constraint :math:`h(x) = 0`.

    Arguments:
        function: The residual :math:`h`, a differentiable function of a batch :math:`(B, *)`.
            Its value is flattened to :math:`(B, m)`; a complex one counts as two real ones.
        tolerance: The largest :math:`\|h\|^2` of a feasible sample.
    """

    @typed
    def __init__(self, function: Callable[[Tensor], Tensor], tolerance: float) -> None:
        super().__init__(tolerance)
        self.function = function

    def residual(self, x: Tensor) -> Tensor:
        return rows(self.function(x), x, "Equality(function=...)")


class Scalar(Constraint):
    r"""The constraint :math:`c(x) = 0` for a violation :math:`c(x) \geq 0`.

    Its residual is :math:`\sqrt{c}`. A Gauss-Newton step on it is Polyak's step
    :math:`x - 2 c \, \nabla c / \|\nabla c\|^2`. If you know a residual with a sign, use
    :class:`Equality`, since :math:`\sqrt{c}` has a kink at its solutions.

    Arguments:
        function: The violation :math:`c`, which maps a batch :math:`(B, *)` to :math:`(B)`. If
            it is below minus the tolerance, the residual of that sample is NaN.
        tolerance: The largest :math:`c` of a feasible sample.
    """

    @typed
    def __init__(self, function: Callable[[Tensor], Tensor], tolerance: float) -> None:
        super().__init__(tolerance)
        self.function = function

    def residual(self, x: Tensor) -> Tensor:
        c = ordered(self.function(x), "Scalar(function=...)").reshape(x.shape[0], -1)
        # Rounding may leave c a little below zero. The clamp also makes the gradient zero at an
        # exact solution, where it would be infinite.
        root = c.clamp_min(torch.finfo(c.dtype).tiny).sqrt()
        return root.masked_fill(c < -self.tolerance, torch.nan)
