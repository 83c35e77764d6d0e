"""The errors of observations: their standard deviations or covariance."""

__all__ = ["Noise", "Observed"]

import math
from abc import abstractmethod

import torch
from torch import Tensor

from ..arguments import typed
from ..errors import several
from .base import Array, Constraint, Limit, finite, real

ZERO = 16
"""An eigenvalue of the correlations of errors counts as zero below so many rounding errors. Those
of m^2 rounded numbers are of size sqrt(m), those of finding eigenvalues of the largest one's."""

SYMMETRIC = 1e-5
"""How far a covariance may differ from its transpose, in units of the standard deviations."""

NEGATIVE = 1e-6
"""How far below zero an eigenvalue may be, relative to the largest, besides rounding."""


class Noise:
    r"""Normal errors of :math:`m` observed values, with mean zero and covariance :math:`R`.

    Values are combined such that the errors of some combinations are independent with variance
    one, and others have none: these must hold exactly. A complex value is two real ones, its real
    and its imaginary part; :math:`R` is of all parts, in that order.

    Arguments:
        noise: The standard deviation of all errors, or of each in the shape of the values, or
            :math:`R` with shape :math:`(m, m)`.
        values: The observed values.
        name: The constraint that this is for, for its messages.

    Attributes:
        exact: The combinations without an error, with shape :math:`(k, m)`.
        whitened: The others, in units of their errors, with shape :math:`(m - k, m)`; a diagonal
            is kept as its places and weights, each with shape :math:`(m - k)`.

    Raises:
        ValueError: If a standard deviation is negative, a covariance is none, or shapes differ.
    """

    @typed
    def __init__(self, noise: Array, values: Tensor, name: str) -> None:
        given, m = finite(noise, f"{name}(noise=...)", complex_too=True), values.numel()
        if isinstance(noise, bool) or given.dtype == torch.bool or given.is_complex():
            raise ValueError(
                f"{name}(noise=...) takes standard deviations or a covariance, which are real "
                f"numbers, got {noise!r}."
            )
        if not m:
            raise ValueError(f"{name}(y=...) has no values, and noise is of some. Leave it out.")
        precision = torch.finfo(given.dtype).eps if given.is_floating_point() else 0.0
        rounding = ZERO * precision * math.sqrt(m)
        given = given.double()
        shape, deviations = tuple(values.shape), not given.ndim or given.shape == values.shape
        if values.is_complex():
            values, m = real(values), 2 * m
            given = given[..., None] if deviations else given
        self.covariance = given.shape == (m, m) and not deviations
        if self.covariance:
            self._from_covariance(given, rounding, name)
            return
        if not deviations:
            raise ValueError(
                f"{name}(noise=...) has shape {tuple(given.shape)}, but the values have shape "
                f"{shape}. Give one standard deviation, or one for each value, or the covariance "
                f"with shape {(m, m)}."
            )
        std = given.expand(values.shape).reshape(-1)
        if (std < 0).any():
            raise ValueError(
                f"{name}(noise=...) must not be negative: it is a standard deviation, in the "
                f"units of y. Got {std.min().item():.3g}."
            )
        (self.places,) = torch.nonzero(std > 0, as_tuple=True)
        (self.held,) = torch.nonzero(std == 0, as_tuple=True)
        self.weights = 1 / std[self.places]

    def _from_covariance(self, R: Tensor, rounding: float, name: str) -> None:
        size = R.diagonal().clamp_min(0).sqrt()
        unit = torch.where(size > 0, size, 1.0)
        uneven = ((R - R.T) / unit / unit[:, None]).abs().max() > SYMMETRIC
        if uneven or (R.diagonal() < 0).any():
            raise ValueError(
                f"{name}(noise=...) with shape {tuple(R.shape)} is a covariance, which must be "
                "symmetric with no negative variance. Or give standard deviations, as y has shape."
            )
        values, vectors = torch.linalg.eigh((R + R.T) / 2 / unit / unit[:, None])
        top = values[-1].clamp_min(0)
        zero = rounding + ZERO * torch.finfo(R.dtype).eps * top
        if values[0] < -zero - NEGATIVE * top:
            raise ValueError(
                f"{name}(noise=...) is no covariance: in some direction its variance is negative "
                f"(eigenvalue {values[0].item():.3g} of the correlations)."
            )
        held = values <= zero
        rows = (vectors / unit[:, None]).T
        # what must hold exactly stays in the units of the values, on average
        scale = unit[size > 0].mean() if (size > 0).any() else 1.0
        self.held = rows[held] * scale
        self.places = rows[~held] / values[~held].sqrt()[:, None]

    @property
    def count(self) -> int:
        """The number of combinations that have errors."""
        return len(self.places)

    @property
    def exact(self) -> int:
        """The number of those that have none."""
        return len(self.held)

    def parts(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """Splits misfits, with shape (B, m), into those that must vanish, and those that have
        errors, in units of them."""
        if self.covariance:
            return r @ self.held.T.to(r), r @ self.places.T.to(r)
        return r[:, self.held.to(r.device)], r[:, self.places.to(r.device)] * self.weights.to(r)


class Observed(Constraint):
    r"""A constraint on a misfit :math:`A(x) - y`, which may have errors of known covariance.

    Without `noise` the misfit must vanish. With it, :math:`y = A(x) + e` with
    :math:`e \sim \mathcal{N}(0, R)`, and the residual is the misfit in units of the errors. What
    must vanish has a tolerance or an atol; there is none if all values have errors.
    """

    @typed
    def __init__(
        self, y: Tensor, tolerance: Limit, noise: Array | None, atol: Limit = None
    ) -> None:
        name, stated = type(self).__name__, tolerance is not None or atol is not None
        self.noise = None if noise is None else Noise(noise, y, name)
        if self.noise is None and not stated:
            raise ValueError(f"{name} needs a tolerance, an atol or noise.")
        if self.noise is not None and self.noise.exact and not stated:
            total = self.noise.exact + self.noise.count
            raise ValueError(
                f"{name}(noise=...): {self.noise.exact} of {total} combinations of values have no "
                "noise. They hold exactly, and need a tolerance or an atol."
            )
        if self.noise is not None and not self.noise.exact and stated:
            given = "a tolerance" if atol is None else "an atol"
            raise ValueError(
                f"{name} has {given}, but all values have noise. Leave out one of the two."
            )
        super().__init__(tolerance if stated else math.inf, atol)

    @abstractmethod
    def misfit(self, x: Tensor) -> Tensor:
        """Returns A(x) - y, with shape (B, m)."""

    def residual(self, x: Tensor) -> Tensor:
        r = self.misfit(x)
        return r if self.noise is None else torch.cat(self.noise.parts(r), dim=1)

    def violation(self, x: Tensor) -> Tensor:
        r = self.misfit(x)
        return self.violation_of(r if self.noise is None else self.noise.parts(r)[0])

    @property
    def equalities(self) -> Constraint | None:
        if self.noise is None or not self.noise.count:
            return self
        return _Part(self, noisy=False) if self.noise.exact else None

    @property
    def noisy(self) -> Constraint | None:
        return _Part(self, noisy=True) if self.noise is not None and self.noise.count else None

    def __repr__(self) -> str:
        if self.noise is None or not self.noise.count:
            return super().__repr__()
        held = f", {self._asked}" if self.noise.exact else ""
        return f"{type(self).__name__}({several(self.noise.count, 'value')} with noise{held})"


class _Part(Constraint):
    """The values of an observation that have errors, or those that have none."""

    def __init__(self, whole: Observed, noisy: bool) -> None:
        super().__init__(*((math.inf,) if noisy else whole.given))
        self.whole, self.with_errors, self.linear = whole, noisy, whole.linear

    def residual(self, x: Tensor) -> Tensor:
        assert self.whole.noise is not None
        return self.whole.noise.parts(self.whole.misfit(x))[self.with_errors]

    def violation(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x.flatten(1)[:, 0]) if self.with_errors else super().violation(x)

    @property
    def equalities(self) -> Constraint | None:
        return None if self.with_errors else self

    @property
    def noisy(self) -> Constraint | None:
        return self if self.with_errors else None

    def __repr__(self) -> str:
        return repr(self.whole)
