r"""The base class of constraints, which state a feasible set :math:`\{ x : r(x) = 0 \}`."""

__all__ = [
    "Array",
    "Constraint",
    "Inequalities",
    "Intervals",
    "Limit",
    "Mapped",
    "at_most_zero",
    "check_axes",
    "constant",
    "finite",
    "log_volume",
    "ordered",
    "real",
    "rows",
    "target",
]

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .. import members
from ..arguments import typed
from ..derivatives import ordinary
from ..errors import IN_TORCH, ConstraintError

Array = Tensor | ArrayLike
"""Numbers as a user gives them: a number, a list, an array or a tensor."""

Limit = float | None
"""A tolerance or an atol, the other one of which is None."""


class Intervals(NamedTuple):
    r"""Values that must lie in intervals, each with shape :math:`(B, m)`.

    Attributes:
        values: The values of samples. They are signed: inside they show how far the bounds are.
        lower: The lower bounds; -inf for none.
        upper: The upper bounds; inf for none.
        variance: The variances of the values' own errors: 0, or 1 for noisy observations; None
            for no errors.
    """

    values: Tensor
    lower: Tensor
    upper: Tensor
    variance: Tensor | None = None

    @property
    def inside(self) -> Tensor:
        """Which values lie in their intervals, with shape (B, m)."""
        return (self.lower <= self.values) & (self.values <= self.upper)


Inequalities = Callable[[Tensor], Intervals]
"""A differentiable function of samples, with shape (B, *), that must lie in intervals."""

LARGEST = 2**22
"""The most elements of a matrix that is inverted for a projection: 32 MiB, and a few seconds."""


class Constraint(ABC):
    r"""A constraint on clean samples :math:`x`, with shape :math:`(B, *)`.

    A subclass defines :meth:`residual`, :math:`r(x) \in \mathbb{R}^m`, which is zero where the
    constraint holds. The residual of a sample must depend on that sample alone, and must be
    differentiable. What counts as feasible is stated in one of two ways:

    * `tolerance` bounds the sum of squares over all residual components. The violation is
      :math:`c(x) = \|r(x)\|^2`, and a sample is feasible if :math:`c(x) \leq` `tolerance`.
    * `atol` bounds each residual component. The violation is :math:`c(x) = \max_i r_i(x)^2`, and
      a sample is feasible if :math:`|r_i(x)| \leq` `atol` for every :math:`i`.

    Arguments:
        tolerance: The largest sum of squares of a feasible sample, in the squared units of the
            residual.
        atol: The largest absolute value of one residual component of a feasible sample, in the
            units of the residual. The attribute `tolerance` is then its square.

    Raises:
        ValueError: If both are given, or neither, or one is not positive.

    Example:
        >>> class Circle(feasibly.Constraint):
        ...     def residual(self, x):
        ...         return x.norm(dim=1, keepdim=True) - 1
        >>> Circle(atol=0.01).is_feasible(torch.tensor([[0.6, 0.8], [3.0, 4.0]])).tolist()
        [True, False]
        >>> Circle(atol=0.01).violation(torch.tensor([[3.0, 4.0]])).tolist()
        [16.0]
    """

    linear: bool = False
    """Whether the residual is linear in the sample, up to a constant: :math:`r(x) = A x - b`."""

    differs: bool = False
    """Whether samples have constraints of their own; see :class:`EachMember`."""

    @typed
    def __init__(self, tolerance: Limit = None, atol: Limit = None) -> None:
        name = type(self).__name__
        if tolerance is not None and atol is not None:
            raise ValueError(
                f"{name} takes either a tolerance, which bounds the sum of squared residual "
                f"components, or an atol, which bounds each component; got both: {tolerance} "
                f"and {atol}. Leave one out."
            )
        if tolerance is None and atol is None:
            raise ValueError(
                f"{name} needs a tolerance, the largest sum of squared residual components, or an "
                "atol, the largest absolute value of one component."
            )
        word, value = ("tolerance", tolerance) if atol is None else ("atol", atol)
        if value is None or not value > 0 or (word == "atol" and not value**2 > 0):
            raise ValueError(f"{name}({word}=...) must be positive, got {value}.")
        self.given: tuple[Limit, Limit] = (tolerance, atol)
        self.atol = None if atol is None else float(atol)
        self.tolerance = float(value) if atol is None else float(value) ** 2
        self._inverses: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        # a constraint may be made in inference mode, and is differentiated later
        super().__setattr__(name, ordinary(value) if isinstance(value, Tensor) else value)

    @abstractmethod
    def residual(self, x: Tensor) -> Tensor:
        r"""Returns :math:`r(x)`, with shape :math:`(B, m)`, for `x` with shape :math:`(B, *)`."""

    def violation(self, x: Tensor) -> Tensor:
        r"""Returns :math:`c(x)`, with shape :math:`(B)`.

        A subclass may define another violation. It must be at most :math:`\|r\|^2` and zero with
        it, since the minimizers stop at :math:`\|r\|^2 \leq` `tolerance`.
        """
        return self.violation_of(self.residual(x))

    def violation_of(self, r: Tensor) -> Tensor:
        r"""Returns the violation of residuals `r`, with shape :math:`(B, m)`, by which a minimizer
        may stop: their sum of squares or, given `atol`, their largest square."""
        squares = r.square()
        return squares.sum(dim=1) if self.atol is None else squares.amax(dim=1)

    def ratio(self, x: Tensor) -> Tensor:
        r"""Returns what a sample reached relative to what was asked, with shape :math:`(B)`.

        It is :math:`\sqrt{c(x) / \text{tolerance}}`, which with `atol` is
        :math:`\max_i |r_i(x)| / \text{atol}`. A sample is feasible if it is at most 1. Of several
        constraints it is the largest one.
        """
        parts = [part.ratio(x) for part in self.parts if part is not self]
        if parts:
            return torch.stack(parts).amax(dim=0)
        return (self.violation(x) / self.tolerance).sqrt()

    @torch.no_grad()
    def assess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns the violation and which samples are feasible, both with shape :math:`(B)`."""
        c = self.violation(x)
        return c, c <= self.tolerance

    def is_feasible(self, x: Tensor) -> Tensor:
        r"""Returns which samples are feasible, with shape :math:`(B)`."""
        return self.assess(x)[1]

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns the feasible point nearest to `x`, if there is a closed form: for a
        :attr:`linear` constraint it is :math:`x - A^+ r(x)`.

        Raises:
            NotImplementedError: If there is no closed form.
            ConstraintError: If the equations of a linear constraint contradict each other.
        """
        if self.noisy is not None:
            raise NotImplementedError(
                f"{self!r} has no projection: samples are not expected to meet a noisy "
                "measurement exactly."
            )
        if not self.linear:
            raise NotImplementedError(
                f"{type(self).__name__} has no closed-form projection; project with a minimizer."
            )
        key = x.shape[1:], x.device
        if key not in self._inverses:
            # A is that of every sample, whatever the samples' own targets are
            with members.among(torch.zeros(1, dtype=torch.long, device=x.device)):
                self._inverses[key] = self._invert(x[:1])
        z = x.double()
        move = self.residual(z) @ self._inverses[key].T
        return (z - move.reshape(x.shape)).to(x)

    def matrix(self, like: Tensor) -> tuple[Tensor, Tensor]:
        r"""Returns :math:`A` and :math:`r(0)` of an affine residual :math:`A x + r(0)`, in float64
        with shapes :math:`(m, D)` and :math:`(m)`, for samples `like`, with shape :math:`(B, *)`.

        Raises:
            NotImplementedError: If there are too many equations.
        """
        zero = torch.zeros_like(like[:1], dtype=torch.float64)
        r_0 = self.residual(zero)[0].double()
        m = len(r_0)
        if m * zero.numel() > LARGEST:
            raise NotImplementedError(
                f"{self!r} has too many equations for a closed-form projection ({m} for "
                f"{zero.numel()} elements); project with a minimizer."
            )
        with torch.enable_grad():
            # one copy of a sample for each row of A
            x = zero.expand(m, *zero.shape[1:]).clone().requires_grad_()
            (A,) = torch.autograd.grad(self.residual(x).diagonal().sum(), x)
        return A.flatten(start_dim=1), r_0

    def _invert(self, like: Tensor) -> Tensor:
        r"""Returns :math:`A^+`, with shape :math:`(D, m)`, for samples of the shape of `like`."""
        A, r_0 = self.matrix(like)
        inverse, zero = torch.linalg.pinv(A), torch.zeros_like(like[:1], dtype=torch.float64)
        r_0 = r_0[None]

        x_0 = -(r_0 @ inverse.T).reshape(zero.shape)
        missed = self.residual(x_0).norm() > 1e-9 * r_0.norm()  # and not by rounding
        if missed and not self.is_feasible(x_0).all():
            raise ConstraintError(self._contradiction(x_0))
        return inverse

    def _contradiction(self, x: Tensor) -> str:
        """Describes a linear constraint that not even the best sample `x` satisfies."""
        least = self.violation(x).item()
        return (
            f"{self!r}: no sample satisfies all of its equations; the smallest violation is "
            f"{least:.3g}."
        )

    @property
    def parts(self) -> "Sequence[Constraint]":
        """What it is made of: each part has a tolerance of its own."""
        return [self]

    @property
    def exact(self) -> "Constraint | None":
        """The part that must hold exactly; None if there is none. A subclass that has both
        inequalities and a noisy observation defines it."""
        return self if self.noisy is None else self.equalities

    @property
    def noisy(self) -> "Constraint | None":
        r"""The part that is observed with errors; None if there is none.

        Its residual is in units of the errors: :math:`r(x^*) \sim \mathcal{N}(0, I)` for the true
        :math:`x^*`, so that :math:`\|r(x)\|^2 \approx m` is expected of a sample.
        """
        return None

    @property
    def equalities(self) -> "Constraint | None":
        r"""The equality part of this constraint, onto which a sampler must project; None if it has
        none. An inequality has an interior, which a sampler can also reach by resampling."""
        return self

    @property
    def inequalities(self) -> Inequalities | None:
        r"""The inequality part of this constraint, with signs, which say inside how far the
        boundary is; None if it has none. By default it is :math:`|r(x)| \leq 0`."""
        if self.equalities is self or self.noisy is not None:
            return None
        return lambda x: at_most_zero(self.residual(x).abs())

    def intervals(self, x: Tensor) -> Intervals:
        r"""Returns all that is constrained of samples: residuals, which must be zero, then the
        values of inequalities, then residuals of noisy observations."""
        parts = []
        if (equalities := self.equalities) is not None:
            r = equalities.residual(x)
            zero = torch.zeros_like(r)
            parts.append((r, zero, zero, zero))
        if (inequalities := self.inequalities) is not None:
            g = inequalities(x)
            parts.append((*g[:3], torch.zeros_like(g.values)))
        if (noisy := self.noisy) is not None:
            r = noisy.residual(x)
            zero = torch.zeros_like(r)
            parts.append((r, zero, zero, torch.ones_like(r)))
        return Intervals(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))

    def in_units(self, mean: Array, std: Array) -> "Constraint":
        r"""Returns this constraint, which is in physical units :math:`u`, for a model of
        standardised data :math:`x = (u - \mu) / s`. The mean and the standard deviation broadcast
        to a sample."""
        return _InUnits(self, mean, std)

    @property
    def _asked(self) -> str:
        """What was asked of a feasible sample, for messages."""
        if self.atol is None:
            return f"tolerance={self.tolerance:g}"
        return f"atol={self.atol:g}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._asked})"


class Mapped(Constraint):
    """A constraint on a function of samples, :meth:`image`. What is feasible is as it says."""

    def __init__(self, constraint: Constraint) -> None:
        super().__init__(*constraint.given)
        self.constraint, self.differs = constraint, constraint.differs

    @abstractmethod
    def image(self, x: Tensor) -> Tensor:
        """Returns what the constraint is on, for samples `x`."""

    @abstractmethod
    def of(self, part: Constraint) -> Constraint:
        """Returns the same for a part of the constraint."""

    @property
    def exact(self) -> Constraint | None:
        return None if (part := self.constraint.exact) is None else self.of(part)

    @property
    def noisy(self) -> Constraint | None:
        return None if (part := self.constraint.noisy) is None else self.of(part)

    @property
    def equalities(self) -> Constraint | None:
        return None if (part := self.constraint.equalities) is None else self.of(part)

    @property
    def inequalities(self) -> Inequalities | None:
        inequalities = self.constraint.inequalities
        return None if inequalities is None else lambda x: inequalities(self.image(x))

    def residual(self, x: Tensor) -> Tensor:
        return self.constraint.residual(self.image(x))

    def violation(self, x: Tensor) -> Tensor:
        return self.constraint.violation(self.image(x))

    def violation_of(self, r: Tensor) -> Tensor:
        return self.constraint.violation_of(r)

    def ratio(self, x: Tensor) -> Tensor:
        return self.constraint.ratio(self.image(x))

    @torch.no_grad()
    def assess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.constraint.assess(self.image(x))


class _InUnits(Mapped):
    """A constraint in physical units, on standardised samples."""

    def __init__(self, constraint: Constraint, mean: Array, std: Array) -> None:
        super().__init__(constraint)
        self.linear = constraint.linear
        self.mean, self.std = finite(mean, "in_units(mean=...)"), finite(std, "in_units(std=...)")
        if not torch.all(self.std > 0):
            raise ValueError("in_units(std=...) must be positive everywhere.")

    def image(self, x: Tensor) -> Tensor:
        return x * self.std.to(x) + self.mean.to(x)

    def of(self, part: Constraint) -> Constraint:
        return part.in_units(self.mean, self.std)

    def projection(self, x: Tensor) -> Tensor:
        if self.std.numel() == 1:
            u = self.image(x)
            return x + (self.constraint.projection(u) - u) / self.std.to(x)
        if not self.linear:  # the nearest point depends on the units of each element
            raise NotImplementedError(
                f"{self!r} has no closed-form projection, because its elements have different "
                "units; project with a minimizer."
            )
        return super().projection(x)

    def __repr__(self) -> str:
        return f"{self.constraint!r} in physical units"


def at_most_zero(values: Tensor) -> Intervals:
    r"""Returns the intervals of :math:`g(x) \leq 0`, given the values, with shape (B, m)."""
    return Intervals(values, torch.full_like(values, -math.inf), torch.zeros_like(values))


def constant(value: Array, name: str, complex_too: bool = False) -> Tensor:
    """Returns the argument `name` of a constraint as a tensor. Numbers, lists and arrays become
    double precision. Complex ones are refused if they have no meaning."""
    try:
        if isinstance(value, Tensor):
            array = value
        else:
            # float() refuses None, of which numpy makes a NaN
            numbers = np.asarray(float(value) if value is None else value)
            if numbers.dtype.kind in "US":  # of which numpy makes numbers too
                raise TypeError(f"{value!r:.50} is no number")
            kind = np.complex128 if numbers.dtype.kind == "c" else np.float64
            array = torch.tensor(numbers.astype(kind))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be numbers: a tensor, an array or a list; got {type(value).__name__} "
            f"({error})."
        ) from error
    if array.is_complex() and not complex_too:
        raise ValueError(
            f"{name} is complex, but samples are real: pass real numbers, or observe complex ones "
            "with Linear, Observation or Equality."
        )
    return array


def finite(value: Array, name: str, complex_too: bool = False) -> Tensor:
    """Returns the argument `name` as :func:`constant` does, and refuses it if it is not finite."""
    value = constant(value, name, complex_too)
    bad = int((~value.isfinite()).sum())
    if bad:
        raise ValueError(
            f"{name} has values that are not finite ({bad} of {value.numel()}). Leave them out."
        )
    return value


def real(values: Tensor) -> Tensor:
    """Returns complex values, with shape (*), as two real ones each, with shape (*, 2); others as
    they are."""
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def checked(values: Tensor, name: str) -> Tensor:
    """Refuses values of the function `name` that are no tensor."""
    if not isinstance(values, Tensor):
        kind, fix = type(values), ""
        if isinstance(values, (list, tuple)):
            fix = " Join several by torch.stack(..., dim=1)."
        if kind.__module__ == "numpy":
            fix = f" {IN_TORCH}."
        raise ConstraintError(
            f"{name} must return a tensor with one row per sample, but it returned "
            f"{kind.__name__}.{fix}"
        )
    return values


def ordered(values: Tensor, name: str) -> Tensor:
    """Refuses complex values of the function `name`, which are neither small nor large."""
    if checked(values, name).is_complex():
        raise ConstraintError(
            f"{name} returned complex values, which have no order. Constrain their size (abs) or "
            "their parts (torch.view_as_real)."
        )
    return values


def rows(values: Tensor, x: Tensor, name: str) -> Tensor:
    """Returns the values of the function `name` for the samples `x`, with shape (B, m). Complex
    ones become two real ones each."""
    if checked(values, name).shape[:1] != x.shape[:1]:
        raise ConstraintError(
            f"{name} returned shape {tuple(values.shape)} for {x.shape[0]} samples. Its first "
            "axis must be the batch, so reduce over the other axes only."
        )
    return real(values).reshape(x.shape[0], -1)


def check_axes(x: Tensor, axes: int, name: str) -> None:
    """Refuses samples with fewer than `axes` axes, for a constraint called `name`."""
    if x.ndim - 1 < axes:
        raise ConstraintError(
            f"{name} needs samples with at least {axes} axes, got samples of shape "
            f"{tuple(x.shape[1:])}."
        )


def target(y: Tensor, values: Tensor, name: str) -> Tensor:
    """Returns `y` in the type of `values`, with shape (B, *), and refuses a batch axis of `y`."""
    if y.ndim > values.ndim - 1:
        raise ConstraintError(
            f"{name} has shape {tuple(y.shape)}, but a sample has shape "
            f"{tuple(values.shape[1:])}. Give it without a batch axis: it is the same for all "
            "samples."
        )
    return y.to(values)


@torch.enable_grad()
def log_volume(constraint: Constraint, x: Tensor) -> Tensor:
    r"""Returns :math:`\frac{1}{2} \log \det J J^\top` with :math:`J = \partial r / \partial x`,
    with shape :math:`(B)`.

    A density :math:`p` can be restricted to :math:`r(x) = 0` in two ways. The *tube* distribution
    is the limit of :math:`p` restricted to :math:`\|r\| \leq \epsilon`, which is Bayes' posterior
    for an observation whose noise vanishes. Its density on the surface is
    :math:`p / (\det J J^\top)^{1/2}`, and depends on how the residual is written. The *surface*
    distribution has the density :math:`p`, and depends on the zeros of :math:`r` only.

    Weight or resample tube samples by `log_volume(...).softmax(0)` to get the surface
    distribution, and surface samples by `(-log_volume(...)).softmax(0)` to get the tube
    distribution, at which :class:`PPR` and :class:`CalibratedPPR` aim.

    The result is -inf if the residuals depend on each other, and NaN for a sample that is not
    finite.

    References:
        | Geometric Measure Theory (Federer, 1969), Section 3.2
        | https://doi.org/10.1007/978-3-642-62010-2

    Arguments:
        constraint: The constraint, with :math:`m` residuals. It is differentiated :math:`m` times.
        x: The samples, with shape :math:`(B, *)`.

    Example:
        >>> total = feasibly.Linear([[3.0, 4.0]], [0.0], atol=1e-3)
        >>> feasibly.constraints.log_volume(total, torch.zeros(1, 2)).exp()
        tensor([5.])
    """
    x = x.detach().requires_grad_()
    r = constraint.residual(x)
    slopes = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in r.T]
    J = torch.stack([row.flatten(start_dim=1).double() for row in slopes], dim=1)
    if J.shape[1] > J.shape[2]:
        return torch.full_like(r[:, 0].detach(), -torch.inf)
    good = J.isfinite().flatten(start_dim=1).all(dim=1)
    volume = torch.linalg.svdvals(torch.where(good[:, None, None], J, 1.0)).log().sum(dim=1)
    return volume.where(good, torch.nan).to(x.dtype)
