r"""Observations: :math:`A(x) = y`."""

__all__ = ["Linear", "Observation"]

from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import typed
from ..errors import ConstraintError
from .base import Array, Limit, checked, finite, real, rows
from .noise import Observed


class Observation(Observed):
    r"""The constraint :math:`A(x) = y` for a differentiable operator :math:`A`, such as a mask,
    an average, a sensor model or a decoder.

    With `noise`, the observation has errors: :math:`y = A(x) + e`,
    :math:`e \sim \mathcal{N}(0, R)`. Samples are then of the posterior, given :math:`y`.

    Arguments:
        A: The operator, which maps a batch :math:`(B, *)` to :math:`(B, *_y)`.
        y: The observed value, with shape :math:`(*_y)`, the same for all samples. Complex values
            are observed in both parts, as two real ones each.
        tolerance: The largest :math:`\|A(x) - y\|^2`, a sum and not a mean, of a feasible sample.
            With `noise` it is of the values without an error, and None if there are none.
        atol: Instead, the largest :math:`|A(x)_i - y_i|` of one value; see :class:`Constraint`.
        noise: The standard deviation of the errors, one number or one for each value, in the
            units of :math:`y`; or their covariance :math:`R`, with shape :math:`(m, m)`, which may
            be singular. For complex values it is the standard deviation of the real part and of
            the imaginary one, each. None for an exact observation.

    Raises:
        ValueError: If the noise is negative or no covariance, or the tolerance does not fit it.

    Example:
        >>> mean = feasibly.Observation(lambda x: x.mean(dim=1), 1.0, atol=1e-3)
        >>> mean.is_feasible(torch.tensor([[0.0, 2.0], [0.0, 1.0]])).tolist()
        [True, False]
        >>> noisy = feasibly.Observation(lambda x: x[:, :1], [1.0], noise=0.5)
        >>> noisy.residual(torch.tensor([[2.0, 0.0]])).tolist()  # in standard deviations
        [[2.0]]
    """

    @typed
    def __init__(
        self,
        A: Callable[[Tensor], Tensor],
        y: Array,
        tolerance: Limit = None,
        *,
        atol: Limit = None,
        noise: Array | None = None,
    ) -> None:
        self.A, self.y = A, finite(y, "Observation(y=...)", complex_too=True)
        super().__init__(self.y, tolerance, noise, atol)

    def misfit(self, x: Tensor) -> Tensor:
        A_x = checked(self.A(x), "Observation(A=...)")
        if A_x.shape[1:] != self.y.shape:
            raise ConstraintError(
                f"Observation: A(x) has shape {tuple(A_x.shape[1:])} for one sample, but y has "
                f"{tuple(self.y.shape)}. Give y in the shape of A(x), without a batch axis."
            )
        if A_x.is_complex() != self.y.is_complex():
            which = "y is real" if A_x.is_complex() else "y is complex"
            raise ConstraintError(
                f"Observation: {which} and A(x) is not. Give both as complex values, or observe a "
                "real part or a size (abs) alone."
            )
        return rows(A_x - self.y.to(A_x), x, "Observation(A=...)")


class Linear(Observed):
    r"""The constraint :math:`A x = y` with a matrix :math:`A`.

    Arguments:
        A: The matrix, with shape :math:`(m, D)`, where :math:`D` is the number of elements of a
            sample. It may be complex, as that of a Fourier transform.
        y: The observed value, with shape :math:`(m)`.
        tolerance: The largest :math:`\|A x - y\|^2` of a feasible sample; see
            :class:`Observation`.
        atol: Instead, the largest :math:`|A_i x - y_i|`.
        noise: The errors of :math:`y`; see :class:`Observation`.

    Raises:
        ValueError: If no sample is feasible, or the noise does not fit.

    Example:
        >>> total = feasibly.Linear([[1.0, 1.0]], [3.0], atol=1e-3)
        >>> total.residual(torch.tensor([[1.0, 2.0], [1.0, 1.0]])).tolist()
        [[0.0], [-1.0]]
        >>> total.projection(torch.tensor([[0.0, 1.0]])).tolist()
        [[1.0, 2.0]]
    """

    linear = True

    @typed
    def __init__(
        self,
        A: Array,
        y: Array,
        tolerance: Limit = None,
        *,
        atol: Limit = None,
        noise: Array | None = None,
    ) -> None:
        A, y = (finite(v, f"Linear({k}=...)", complex_too=True) for k, v in (("A", A), ("y", y)))
        if A.ndim != 2 or y.shape != A.shape[:1]:
            raise ValueError(
                f"Linear needs A of shape (m, D) and y of shape (m), got {tuple(A.shape)} and "
                f"{tuple(y.shape)}."
            )
        if A.is_complex() or y.is_complex():
            A, y = A.to(torch.complex128), y.to(torch.complex128)
        super().__init__(y, tolerance, noise, atol)
        # of complex rows both parts hold, one after the other
        self.A, self.y = real(A.T).movedim(0, -1).flatten(end_dim=-2), real(y).flatten()
        A, y = self.A, self.y
        self.A_inverse = torch.linalg.pinv(A.double())
        exact, values = A.double(), y.double()
        if self.noise is not None:
            exact, values = self.noise.parts(exact.T)[0].T, self.noise.parts(values[None])[0][0]
        # the nearest values that some x has
        miss = (exact @ (torch.linalg.pinv(exact) @ values) - values).square()
        if len(miss) and (miss.sum() if self.atol is None else miss.max()) > self.tolerance:
            raise ValueError(
                f"Linear: no x satisfies A x = y. The smallest |A x - y|^2 is {miss.sum():.3g}, "
                f"but the limit is {self._asked}. Drop or correct the rows that contradict each "
                "other."
            )

    def misfit(self, x: Tensor) -> Tensor:
        return x.flatten(start_dim=1) @ self.A.T.to(x) - self.y.to(x)

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns :math:`x - A^+ (A x - y)`."""
        if self.noise is not None:
            return super().projection(x)  # which refuses
        return x - (self.residual(x) @ self.A_inverse.T.to(x)).reshape(x.shape)
