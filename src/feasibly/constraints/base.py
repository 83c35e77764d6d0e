r"""Constraints: :math:`\mathcal{C} = \{ x : c(x) = 0 \}`, stated by a residual."""

__all__ = ["Constraint", "constant", "finite", "rows", "target"]

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..errors import ConstraintError


class Constraint(ABC):
    r"""A constraint on clean samples :math:`x`, with shape :math:`(B, *)`.

    An author writes :meth:`residual`, :math:`r(x) \in \mathbb{R}^m` with :math:`r = 0` where the
    constraint holds, and gives a tolerance. The violation is :math:`c(x) = \|r(x)\|^2`, a sum
    over the :math:`m` residuals, and a sample is feasible if :math:`c(x) \leq` `tolerance`.

    The residual of a sample must depend on that sample alone, and be differentiable.

    Arguments:
        tolerance: The largest violation of a feasible sample, in the squared units of the
            residual.
    """

    def __init__(self, tolerance: float) -> None:
        if not tolerance > 0:
            raise ValueError(
                f"{type(self).__name__}(tolerance=...) must be positive, got {tolerance}; it is "
                "the largest squared residual norm that counts as feasible."
            )
        self.tolerance = float(tolerance)

    @abstractmethod
    def residual(self, x: Tensor) -> Tensor:
        r"""Returns :math:`r(x)`, with shape :math:`(B, m)`, for `x` with shape :math:`(B, *)`."""

    def violation(self, x: Tensor) -> Tensor:
        r"""Returns :math:`c(x) = \|r(x)\|^2`, with shape :math:`(B)`.

        A constraint may define another violation, as long as it is at most :math:`\|r\|^2` and
        zero with it: the minimizers stop at :math:`\|r\|^2 \leq` `tolerance`.
        """
        return self.residual(x).square().sum(dim=1)

    @torch.no_grad()
    def assess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the violation and which samples are feasible, both with shape :math:`(B)`."""
        c = self.violation(x)
        return c, c <= self.tolerance

    def is_feasible(self, x: Tensor) -> Tensor:
        r"""Tells which samples satisfy the constraint, with shape :math:`(B)`."""
        return self.assess(x)[1]

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns the point of :math:`\mathcal{C}` nearest to `x`, where it has a closed form.

        Raises:
            NotImplementedError: If this constraint has none.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no closed-form projection; project with a minimizer."
        )

    @property
    def equalities(self) -> "Constraint | None":
        r"""The equality part of this constraint; None if it has none.

        Random samples never satisfy an equality, so a sampler must project onto it. An inequality
        has an interior, which a sampler can also reach by resampling.
        """
        return self

    def in_units(self, mean: Tensor | float, std: Tensor | float) -> "Constraint":
        r"""Returns this constraint, stated in physical units, for a model of standardised data.

        Arguments:
            mean: The mean :math:`\mu` of the data in physical units, which broadcasts to a
                sample.
            std: The standard deviation :math:`s`. The model's samples are
                :math:`x = (u - \mu) / s`; this constraint sees :math:`u`.
        """
        return _InUnits(self, mean, std)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tolerance={self.tolerance:g})"


def constant(value: Tensor | float) -> Tensor:
    """Returns `value` as a tensor, in double precision if it is a number."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def finite(value: Tensor | float, name: str) -> Tensor:
    """Returns `value` as a tensor, if it is finite: what is given as `name` must be."""
    value = constant(value)
    bad = int((~value.isfinite()).sum())
    if bad:
        raise ValueError(
            f"{name} has {bad} values of {value.numel()} that are not finite; leave out what is "
            "missing, such as by a mask."
        )
    return value


def rows(values: Tensor, x: Tensor, name: str) -> Tensor:
    """Returns the values that a function named `name` has for samples, with shape (B, m)."""
    if values.shape[:1] != x.shape[:1]:
        raise ConstraintError(
            f"{name} returned shape {tuple(values.shape)} for {x.shape[0]} samples; its first "
            "axis must be theirs, so reduce over the sample's axes only."
        )
    return values.reshape(x.shape[0], -1)


def target(y: Tensor, values: Tensor, name: str) -> Tensor:
    """Returns `y` in the type of `values`, with shape (B, *), if it is of one sample."""
    if y.ndim > values.ndim - 1:
        raise ConstraintError(
            f"{name} has shape {tuple(y.shape)} where a sample has {tuple(values.shape[1:])}; "
            "give it without a batch axis: it is the same for all samples."
        )
    return y.to(values)


class _InUnits(Constraint):
    """A constraint behind an affine change of units."""

    def __init__(self, constraint: Constraint, mean: Tensor | float, std: Tensor | float) -> None:
        super().__init__(constraint.tolerance)
        if not torch.all(torch.as_tensor(std) > 0):
            raise ValueError("in_units(std=...) must be positive everywhere.")
        self.constraint, self.mean, self.std = constraint, mean, std

    def _physical(self, x: Tensor) -> Tensor:
        std = torch.as_tensor(self.std, dtype=x.dtype, device=x.device)
        return x * std + torch.as_tensor(self.mean, dtype=x.dtype, device=x.device)

    @property
    def equalities(self) -> Constraint | None:
        equalities = self.constraint.equalities
        return None if equalities is None else equalities.in_units(self.mean, self.std)

    def residual(self, x: Tensor) -> Tensor:
        return self.constraint.residual(self._physical(x))

    def violation(self, x: Tensor) -> Tensor:
        return self.constraint.violation(self._physical(x))

    @torch.no_grad()
    def assess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.constraint.assess(self._physical(x))

    def projection(self, x: Tensor) -> Tensor:
        if torch.as_tensor(self.std).numel() > 1:  # the nearest point depends on the metric
            raise NotImplementedError(
                f"{self!r} has no closed-form projection, since its elements have units of their "
                "own; project with a minimizer."
            )
        return x + (self.constraint.projection(self._physical(x)) - self._physical(x)) / self.std

    def __repr__(self) -> str:
        return f"{self.constraint!r} in physical units"
