"""Constraints on functions that cannot be differentiated."""

__all__ = ["BlackBox"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..arguments import typed
from ..errors import ConstraintError
from .base import Array, Constraint, Inequalities, at_most_zero, constant, ordered, real


class BlackBox(Constraint):
    r"""The constraint :math:`f(x) = 0`, or :math:`f(x) \leq 0`, for a function without
    derivatives.

    Such a function is another program, or one with thresholds. Its derivatives are central
    differences. A gradient takes :math:`2 D` evaluations of :math:`f`, in one batch, for a sample
    of :math:`D` elements. For large samples, state a smooth surrogate as an :class:`Equality`,
    and use :math:`f` only to check the result.

    If :math:`f` is a staircase, `step` must be longer than its treads. The differences are then
    those of :math:`f` averaged over a step, and a sample may end up to a step off. An inequality
    needs no derivatives as long as :class:`PPR` resamples, which it does before it projects.

    Arguments:
        f: The function, which maps a batch :math:`(B, *)` to numbers of shape :math:`(B, m)`,
            each sample on its own. It gets a tensor without gradients, of any batch size. It may
            return a tensor, an array or a list.
        tolerance: The largest :math:`\|f\|^2` of a feasible sample, in squared units of
            :math:`f`; for an inequality, that of its positive part.
        step: The distance of the differences, in units of a sample. The default is the cube root
            of the precision, which is best for a smooth function of numbers of order one.
        inequality: Whether the constraint is :math:`f(x) \leq 0`.
        limit: The most elements of a sample.

    Raises:
        ConstraintError: In use, if a sample has more elements than `limit`, or `f` returns
            something else.
    """

    @typed
    def __init__(
        self,
        f: Callable[[Tensor], Array],
        tolerance: float,
        *,
        step: float | None = None,
        inequality: bool = False,
        limit: int = 1024,
    ) -> None:
        super().__init__(tolerance)
        if step is not None and not step > 0:
            raise ValueError(f"BlackBox(step=...) must be positive or None, got {step}.")
        self.f, self.step, self.inequality, self.limit = f, step, inequality, limit

    @property
    def equalities(self) -> Constraint | None:
        return None if self.inequality else self

    @property
    def inequalities(self) -> Inequalities | None:
        return (lambda x: at_most_zero(self._values(x))) if self.inequality else None

    def residual(self, x: Tensor) -> Tensor:
        r = self._values(x)
        return r.relu() if self.inequality else r

    def _values(self, x: Tensor) -> Tensor:
        size = x[0].numel()
        if size > self.limit:
            raise ConstraintError(
                f"BlackBox: a sample has {size} elements, so each gradient takes {2 * size} "
                f"evaluations of f. State a smooth surrogate, or raise limit={self.limit}."
            )
        step = self.step or torch.finfo(x.dtype).eps ** (1 / 3)
        return _Differences.apply(x, self._evaluate, step)

    def _evaluate(self, x: Tensor) -> Tensor:
        r = constant(self.f(x.detach()), "What BlackBox(f=...) returns", complex_too=True)
        if r.ndim != 2 or r.shape[0] != x.shape[0]:
            raise ConstraintError(
                f"BlackBox(f=...) must return numbers of shape (B, m), got {tuple(r.shape)} for "
                f"{x.shape[0]} samples."
            )
        if self.inequality:
            ordered(r, "BlackBox(f=...)")
        return real(r.detach()).reshape(len(x), -1).to(x)


class _Differences(Function):
    """A function whose derivatives are central differences."""

    @staticmethod
    def forward(x: Tensor, f: Callable[[Tensor], Tensor], step: float) -> Tensor:
        return f(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, ctx.f, ctx.step = inputs
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        n, d = x.shape[0], x[0].numel()
        moves = ctx.step * torch.eye(d, dtype=x.dtype, device=x.device)
        at = x.reshape(n, 1, d)
        both = torch.cat([at + moves, at - moves]).reshape(2 * n * d, *x.shape[1:])
        ahead, behind = ctx.f(both).reshape(2, n, d, -1)
        jacobian = (ahead - behind) / (2 * ctx.step)
        return (jacobian @ grad[..., None]).reshape(x.shape), None, None
