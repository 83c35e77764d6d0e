r"""Conditioning: a constraint as users write it, in a form that solvers handle well."""

__all__ = ["balanced"]

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..constraints import BlackBox
from ..constraints.base import Constraint, Inequalities
from ..constraints.decoded import is_decoded
from ..errors import ConstraintError
from ..randomness import generator

UNEVEN = 5.0
"""Residual components whose sizes differ by more than this factor are rescaled."""

DEPENDENT = 1e-6
"""Combinations of affine components that are shorter than this, relative to the longest, are
dropped if no sample within ten standard deviations can violate them: they are rounded multiples of
others."""

PROBES = 16
"""The number of random changes that show the size of a component, to some 20 %."""

FAR = (0.3, 1.0, 3.0, 30.0)
"""How far apart the points are between which a function is compared with an affine one, in units
of the samples' scale. A sensor that saturates is affine near the data alone."""

LINES = 64
"""The number of pairs of points at each distance: a kink may be in one element alone."""

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
"""The relative deviation from an affine function that counts as rounding."""


@torch.no_grad()
def balanced(constraint: Constraint, x: Tensor) -> Constraint:
    r"""Returns an equivalent constraint whose residual components are of similar size, so that
    :math:`J V J^\top` is well conditioned; the constraint itself, if it has this form already.

    Each component is divided by how much it changes if a sample changes by white noise. If there
    are more components than unknowns, the user's weights are kept, because the least violation
    depends on them. The rows of an affine residual become orthonormal, unless they are too many.
    What is feasible does not change, nor does the reported violation. Components with noise are in
    units of their errors already. A function that is affine is marked as linear, because most
    methods then take fewer steps.

    Arguments:
        constraint: The constraint.
        x: Clean estimates or samples, with shape (B, \*), which show the scale of samples.

    Raises:
        ConstraintError: If the equations of an affine residual contradict each other.
    """
    linear = constraint.linear or _is_affine(constraint, x)
    equalities = constraint.equalities
    change = None
    if equalities is not None:
        # of targets that differ, some values may be missing for the one that is seen here
        if not constraint.differs and (
            linear or (not _is_equal(constraint) and _is_affine(equalities, x))
        ):
            change = _orthonormal(equalities, x)
        change = change or _gains(equalities, x)
    if linear == constraint.linear and (change is None or change.trivial):
        return constraint
    return _Balanced(constraint, linear, None if change is None or change.trivial else change)


class _Change(NamedTuple):
    """A change of residual components, which lengthens residuals.

    Attributes:
        to: What they are multiplied by: a number each, with shape (m), or a matrix.
        back: What takes them back, likewise.
        A: The rows of an affine residual after it, with shape (k, D); None for others.
        b: Its value at zero after it, with shape (k).
        trivial: Whether it does nothing of use.
    """

    to: Tensor
    back: Tensor
    A: Tensor | None = None
    b: Tensor | None = None
    trivial: bool = False


def _times(factor: Tensor, r: Tensor) -> Tensor:
    factor = factor.to(r)
    return r * factor if factor.ndim == 1 else r @ factor.T


class _Balanced(Constraint):
    """A constraint whose equalities have other components."""

    def __init__(self, constraint: Constraint, linear: bool, change: _Change | None) -> None:
        # |r| grows, so that a minimizer that reaches the tolerance has reached the user's too
        super().__init__(*constraint.given)
        self.constraint, self.linear = constraint, linear
        self.differs = constraint.differs
        self.equal = _is_equal(constraint)
        self.change, self.own = change, change if self.equal else None

    def residual(self, x: Tensor) -> Tensor:
        own = self.own
        if own is None:
            return self.constraint.residual(x)
        if own.A is None or own.b is None:
            return _times(own.to, self.constraint.residual(x))
        # rounding of large coefficients is not carried over
        return x.flatten(start_dim=1) @ own.A.T.to(x) + own.b.to(x)

    def violation_of(self, r: Tensor) -> Tensor:
        return self.constraint.violation_of(r if self.own is None else _times(self.own.back, r))

    def violation(self, x: Tensor) -> Tensor:
        return self.constraint.violation(x)

    def assess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.constraint.assess(x)

    def projection(self, x: Tensor) -> Tensor:
        try:
            return self.constraint.projection(x)
        except NotImplementedError:
            return super().projection(x)  # of an affine function

    @property
    def parts(self) -> Sequence[Constraint]:
        return self.constraint.parts

    @property
    def exact(self) -> Constraint | None:
        return self if self.constraint.noisy is None else self._of(self.constraint.exact)

    @property
    def equalities(self) -> Constraint | None:
        return self if self.equal else self._of(self.constraint.equalities)

    @property
    def noisy(self) -> Constraint | None:
        return self._of(self.constraint.noisy)

    @property
    def inequalities(self) -> Inequalities | None:
        return self.constraint.inequalities

    def _of(self, part: Constraint | None) -> Constraint | None:
        if part is None:
            return None
        return _Balanced(part, part.linear or self.linear, self.change)

    def __repr__(self) -> str:
        return repr(self.constraint)


def _is_equal(constraint: Constraint) -> bool:
    """Whether a constraint is of exact equalities alone."""
    return constraint.noisy is None and constraint.inequalities is None


def _orthonormal(equalities: Constraint, x: Tensor) -> _Change | None:
    """Returns the change to rows that are orthogonal and of one length; None for too many."""
    try:
        A, r_0 = equalities.matrix(x)
    except (NotImplementedError, RuntimeError):  # or the function takes no double precision
        return None
    # on the CPU, so that combinations are the same on every device
    U, size, Q = torch.linalg.svd(A.cpu(), full_matrices=False)
    # what a direction can add to the violation, of as many as there are
    most = (10 * size * x.double().std().cpu()).square() * len(size)
    kept = (size > DEPENDENT * size[:1]) | (most > equalities.tolerance)
    kept &= size > 1e-12 * size[:1]
    if not kept.any():
        return None
    U, size, Q = U[:, kept], size[kept], Q[kept]
    turn = U if kept.all() else torch.eye(len(size)).to(U)  # of full rank no basis is singled out
    to, back = turn @ (size[0] / size[:, None] * U.T), U * size / size[0] @ turn.T
    r_0 = r_0.cpu()
    b = to @ r_0
    missed = equalities.violation_of((r_0 - back @ b)[None]).item()
    if missed > equalities.tolerance:
        raise ConstraintError(
            f"{equalities!r}: its equations contradict each other. The smallest violation of any "
            f"sample is {missed:.3g}; correct or drop the equations that do not fit the others."
        )
    even = bool(kept.all() and size[0] <= UNEVEN * size[-1])
    return _Change(to, back, size[0] * turn @ Q, b, even)


def _gains(equalities: Constraint, x: Tensor) -> _Change:
    """Returns the change by which components are of similar size, one factor each."""
    near = _near(x)
    r = torch.cat([equalities.residual(z) for z in near.split(1)])
    changes = r.double().diff(dim=0).square().mean(dim=0).sqrt()
    known = changes.isfinite() & (changes > 0)
    changes = torch.where(known, changes, changes[known].amax() if known.any() else 1.0)
    gains = changes.amax() / changes
    even = bool(gains.amax() <= UNEVEN)
    trivial = even or 0 < _unknowns(equalities, near) < int(known.sum())
    return _Change(gains, 1 / gains, trivial=trivial)


def _near(x: Tensor) -> Tensor:
    """Returns a sample with white noise of the samples' scale, several times."""
    # of each channel: white noise of the largest one's scale would tell nothing of a small one
    scale = x.std(dim=tuple(range(2, x.ndim)), keepdim=True).mean(dim=0) if x.ndim > 2 else x.std()
    return x[:1] + scale * torch.randn((PROBES, *x.shape[1:]), generator=generator(0)).to(x)


@torch.enable_grad()
def _unknowns(equalities: Constraint, near: Tensor) -> int:
    """Returns how many elements of a sample the residual depends on, as its gradients at some
    samples show; 0 if it has none."""
    if _is_opaque(equalities):
        return 0
    found = torch.zeros_like(near[0], dtype=torch.bool)
    for z in near[: 1 if is_decoded(equalities) else PROBES].clone().split(1):
        r = equalities.residual(z.requires_grad_())
        if not r.requires_grad:
            return 0
        weights = torch.randn(r.shape, generator=generator(0), dtype=torch.float64).to(r)
        told = (r * weights).sum()
        (g,) = torch.autograd.grad(told, z, allow_unused=True, materialize_grads=True)
        found |= g[0] != 0
    return int(found.sum())


def _is_opaque(constraint: Constraint) -> bool:
    return any(isinstance(part, BlackBox) for part in constraint.parts)


def _is_affine(constraint: Constraint, x: Tensor) -> bool:
    """Whether each component is an affine function, as far as the middles of random pairs of
    points show."""
    if constraint.inequalities is not None or _is_opaque(constraint):
        return False
    lines = 1 if is_decoded(constraint) else LINES  # a decoder takes one sample at a time
    for dtype, rounding in ROUNDING.items():
        noise = generator(0)
        try:
            for far in FAR:
                step = torch.randn((2 * lines, *x.shape[1:]), generator=noise, dtype=torch.float64)
                ends = x[:1].to(dtype) + far * x.std() * step.to(x.device, dtype)
                one, other = ends.chunk(2)
                a, b, middle = (constraint.residual(z) for z in (one, other, (one + other) / 2))
                size = torch.maximum(a.abs(), b.abs()).amax(dim=0)
                if not (((a + b) / 2 - middle).abs().amax(dim=0) <= rounding * size).all():
                    return False
        except Exception:  # a function need not take double precision
            continue
        return True
    return False
