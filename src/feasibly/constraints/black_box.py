r"""Constraints from functions that cannot be differentiated."""

__all__ = ["BlackBox"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .base import Constraint


class BlackBox(Constraint):
    r"""The constraint :math:`f(x) = 0`, or :math:`f(x) \leq 0`, for a function without
    derivatives: another program's, or one with thresholds.

    Its derivatives are central differences, :math:`2 D` evaluations of :math:`f` a gradient for a
    sample of :math:`D` elements, in one batch; so it is for small samples. For larger ones write
    a smooth surrogate, as an :class:`Equality`, and keep :math:`f` for the final verdict.

    Where :math:`f` is a staircase, `step` must be longer than its treads: the differences are
    those of :math:`f` averaged over a step, and a sample may end a step away from where the
    average says that it should. An inequality is drawn again before it is projected on
    (:class:`PPR`), which asks for no derivatives, however rough :math:`f` is.

    Arguments:
        f: The function, which maps a batch :math:`(B, *)` to :math:`(B, m)`, each sample by
            itself. It is called without gradients, on batches of any size.
        tolerance: The largest :math:`\|f\|^2` (of its positive part, for an inequality) of a
            feasible sample, in squared units of :math:`f`.
        step: The distance of the differences, in units of a sample. None for the cube root of
            the precision, the best for a smooth function of numbers of order one.
        inequality: Whether the constraint is :math:`f(x) \leq 0`.
        limit: The most elements of a sample; more are refused.
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor],
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

    def residual(self, x: Tensor) -> Tensor:
        size = x[0].numel()
        if size > self.limit:
            raise ValueError(
                f"BlackBox: a sample has {size} elements, and each gradient would take {2 * size} "
                f"evaluations; state a smooth surrogate, or raise limit={self.limit}."
            )
        step = self.step or torch.finfo(x.dtype).eps ** (1 / 3)
        r = _Differences.apply(x, self._evaluate, step)
        return r.relu() if self.inequality else r

    def _evaluate(self, x: Tensor) -> Tensor:
        r = self.f(x.detach())
        if not isinstance(r, Tensor) or r.ndim != 2 or r.shape[0] != x.shape[0]:
            got = tuple(r.shape) if isinstance(r, Tensor) else type(r).__name__
            raise ValueError(
                f"BlackBox(f=...) must return a tensor of shape (B, m), got {got} for "
                f"{x.shape[0]} samples."
            )
        return r.detach().to(x)


class _Differences(Function):
    """A function whose derivatives, in both modes, are central differences."""

    @staticmethod
    def forward(x: Tensor, f: Callable[[Tensor], Tensor], step: float) -> Tensor:
        return f(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, ctx.f, ctx.step = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

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

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        tangent = tangents[0]
        (x,) = ctx.saved_tensors
        # moves as long as those of the gradient, whatever the tangent's length
        size = tangent.flatten(start_dim=1).norm(dim=1)
        safe = torch.where(size > 0, size, 1.0)
        shape = (-1, *(1,) * (x.ndim - 1))
        move = ctx.step * tangent / safe.reshape(shape)
        slope = (ctx.f(x + move) - ctx.f(x - move)) / (2 * ctx.step)
        return slope * size[:, None]
