"""Constraints that are stated by a function of samples."""

__all__ = ["BlackBox", "Equality", "GaussianRandomField", "LevelSet", "Scalar"]

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..arguments import typed
from ..errors import ConstraintError
from .base import (
    Array,
    Constraint,
    Inequalities,
    Limit,
    at_most_zero,
    constant,
    ordered,
    real,
    rows,
)


class Equality(Constraint):
    r"""The constraint :math:`h(x) = 0`.

    Arguments:
        function: The residual :math:`h`, a differentiable function of a batch :math:`(B, *)`.
            Its value is flattened to :math:`(B, m)`; a complex one counts as two real ones.
        tolerance: The largest :math:`\|h\|^2` of a feasible sample.
        atol: Instead, the largest :math:`|h_i|`; see :class:`Constraint`.

    Example:
        >>> product = feasibly.Equality(lambda x: x[:, 0] * x[:, 1] - 1, atol=1e-3)
        >>> product.residual(torch.tensor([[2.0, 0.5], [2.0, 2.0]])).tolist()
        [[0.0], [3.0]]
        >>> product.is_feasible(torch.tensor([[2.0, 0.5], [2.0, 2.0]])).tolist()
        [True, False]
    """

    @typed
    def __init__(
        self, function: Callable[[Tensor], Tensor], tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(tolerance, atol)
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
        atol: Instead, the largest :math:`\sqrt{c}`.

    Example:
        >>> squared = feasibly.Scalar(lambda x: (x.norm(dim=1) - 1) ** 2, tolerance=1e-6)
        >>> squared.is_feasible(torch.tensor([[1.0, 0.0], [2.0, 0.0]])).tolist()
        [True, False]
    """

    @typed
    def __init__(
        self, function: Callable[[Tensor], Tensor], tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(tolerance, atol)
        self.function = function

    def residual(self, x: Tensor) -> Tensor:
        c = ordered(self.function(x), "Scalar(function=...)").reshape(x.shape[0], -1)
        # Rounding may leave c a little below zero. The clamp also makes the gradient zero at an
        # exact solution, where it would be infinite.
        root = c.clamp_min(torch.finfo(c.dtype).tiny).sqrt()
        return root.masked_fill(c < -self.tolerance, torch.nan)


class LevelSet(Constraint):
    r"""The constraint :math:`f(x) = 0` with the paper's violation
    :math:`c(x) = 1 - e^{- f(x)^2}` or, given `atol`, :math:`c(x) = f(x)^2`.

    Arguments:
        f: A differentiable scalar field, which maps :math:`(B, *)` to :math:`(B)`.
        tolerance: The largest :math:`c` of a feasible sample. The default is the paper's, 4e-6.
        atol: Instead, the largest :math:`|f|`.

    Example:
        >>> curve = feasibly.LevelSet(lambda x: x[:, 1] - x[:, 0] ** 2)
        >>> curve.tolerance, curve.is_feasible(torch.tensor([[2.0, 4.0], [2.0, 3.0]])).tolist()
        (4e-06, [True, False])
    """

    @typed
    def __init__(
        self, f: Callable[[Tensor], Tensor], tolerance: Limit = None, *, atol: Limit = None
    ) -> None:
        super().__init__(4e-6 if tolerance is None and atol is None else tolerance, atol)
        self.f = f

    def residual(self, x: Tensor) -> Tensor:
        return ordered(self.f(x), "LevelSet(f=...)")[:, None]

    def violation(self, x: Tensor) -> Tensor:
        return super().violation(x) if self.atol else -torch.expm1(-self.f(x).square())


class GaussianRandomField:
    r"""A sample of a Gaussian random field on :math:`\mathbb{R}^2` with an RBF kernel.

    It is made of random Fourier features (paper, Appendix B.1):

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

    Example:
        >>> f = feasibly.constraints.GaussianRandomField(seed=0)
        >>> f(torch.zeros(4, 2)).shape
        torch.Size([4])
        >>> feasibly.LevelSet(f).residual(torch.zeros(4, 2)).shape
        torch.Size([4, 1])
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


class BlackBox(Constraint):
    r"""The constraint :math:`f(x) = 0`, or :math:`f(x) \leq 0`, for a function without
    derivatives, such as another program, or one with thresholds.

    Its derivatives are central differences. A gradient takes :math:`2 D` evaluations of
    :math:`f`, in one batch, for a sample of :math:`D` elements. For large samples, state a smooth
    surrogate as an :class:`Equality`. If :math:`f` is a staircase, `step` must be longer than its
    treads, and a sample may end up to a step off. An inequality needs no derivatives as long as
    :class:`PPR` resamples, which it does before it projects.

    Arguments:
        f: The function, which maps a batch :math:`(B, *)` to numbers of shape :math:`(B, m)`,
            each sample on its own. It gets a tensor without gradients, of any batch size. It may
            return a tensor, an array or a list.
        tolerance: The largest :math:`\|f\|^2` of a feasible sample, in squared units of
            :math:`f`; for an inequality, that of its positive part.
        atol: Instead, the largest :math:`|f_i|`; for an inequality, the largest :math:`f_i`.
        step: The distance of the differences, in units of a sample. The default is the cube root
            of the precision, which is best for a smooth function of numbers of order one.
        inequality: Whether the constraint is :math:`f(x) \leq 0`.
        limit: The most elements of a sample.

    Raises:
        ConstraintError: In use, if a sample has more elements than `limit`, or `f` returns
            something else.

    Example:
        >>> total = feasibly.constraints.BlackBox(lambda x: x.sum(1).numpy()[:, None], atol=0.1)
        >>> total.is_feasible(torch.tensor([[1.0, -1.0], [1.0, 1.0]])).tolist()
        [True, False]
    """

    @typed
    def __init__(
        self,
        f: Callable[[Tensor], Array],
        tolerance: Limit = None,
        *,
        atol: Limit = None,
        step: float | None = None,
        inequality: bool = False,
        limit: int = 1024,
    ) -> None:
        super().__init__(tolerance, atol)
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
