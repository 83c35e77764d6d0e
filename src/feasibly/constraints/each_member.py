"""Constraints with a target for each member of an ensemble."""

__all__ = ["EachMember", "through"]

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import members
from ..arguments import typed
from ..errors import ConstraintError
from ..randomness import generator
from .base import Array, Constraint, Intervals, Mapped, constant, real
from .composite import Composite
from .inequality import Inequality

ERRORS = 2**32 - 6
"""Errors have the seeds of this member, which no run has."""


class EachMember(Constraint):
    r"""The constraint :math:`r(x_i) = y_i` with a target :math:`y_i` for each member :math:`i`.

    Of an observation :math:`A(x_i) = y_i` give the residual with the target zero, such as
    `EachMember(Equality(A, tolerance), y)`. A sample's target is found by its index, in whatever
    batch it is. Outside of a run, evaluate it inside of `with feasibly.members.calling(indices):`.
    A single index stands for all samples of the batch.

    Arguments:
        constraint: The constraint with the residual :math:`r`, an equality. Of an observation
            with noise, targets are in units of the errors.
        targets: The targets, with shape (N, \*). They are flattened to :math:`(N, m)`; complex
            ones count as two real ones each. NaN stands for a value that is missing: that member
            is not constrained by it.
        repeats: How many members in a row have the same target: member :math:`i` has the target
            of row :math:`\lfloor i / \text{repeats} \rfloor`.

    Raises:
        ValueError: If the constraint is no equality, or targets have no rows.
        ConstraintError: In use, if there is no target for a member, or targets do not fit.

    Example:
        >>> first = feasibly.Equality(lambda x: x[:, :1], atol=1e-3)
        >>> each = feasibly.EachMember(first, [[-1.0], [0.5], [1.0]])  # x_i[0] = y_i
        >>> method = feasibly.PPR(steps=8)
        >>> result = feasibly.sample(denoiser, each, 3, (2,), method=method, monitor=False)
        >>> result.samples[:, 0].round(decimals=2)
        tensor([-1.0000,  0.5000,  1.0000])
    """

    differs = True

    @typed
    def __init__(self, constraint: Constraint, targets: Array, repeats: int = 1) -> None:
        if (
            not isinstance(constraint, Constraint)
            or (constraint.equalities is None) == (constraint.noisy is None)
            or constraint.inequalities is not None
        ):
            raise ValueError(
                "EachMember takes a constraint that is an equality, or an observation whose "
                f"values all have noise, got {constraint!r}; join it with others in a Composite."
            )
        super().__init__(*constraint.given)
        targets = real(constant(targets, "EachMember(targets=...)", complex_too=True))
        if targets.isinf().any() or targets.isnan().all():
            raise ValueError("EachMember(targets=...) has infinite values, or all are missing.")
        if targets.ndim < 1 or not len(targets) or repeats < 1:
            raise ValueError(
                "EachMember needs a row of targets for each sample and repeats of at least 1, got "
                f"targets of shape {tuple(targets.shape)} and repeats={repeats}."
            )
        self.constraint, self.linear = constraint, constraint.linear
        self.targets, self.repeats = targets.reshape(len(targets), -1), repeats

    @property
    def equalities(self) -> Constraint | None:
        return None if self.constraint.equalities is None else self

    @property
    def noisy(self) -> Constraint | None:
        return None if self.constraint.noisy is None else self

    def violation(self, x: Tensor) -> Tensor:
        return self.constraint.violation(x) if self.noisy else super().violation(x)

    def residual(self, x: Tensor) -> Tensor:
        r = self.constraint.residual(x)
        y = self._targets(len(x)).to(r)
        if y.shape[1] != r.shape[1]:
            raise ConstraintError(
                f"{self!r}: a target has {y.shape[1]} values, but the residual of a sample has "
                f"{r.shape[1]} components; give as many."
            )
        # what is missing is met by any sample, and a gradient of zero changes none
        return torch.where(y.isnan(), 0.0, r - y.nan_to_num())

    def _targets(self, batch: int) -> Tensor:
        """Returns the targets of the members of the batch, with shape (B, m)."""
        ids = members.current()
        if ids is None:
            raise ConstraintError(
                f"{self!r}: it is not known which samples of an ensemble these {batch} samples "
                "are; evaluate it in a run, or inside `with feasibly.members.calling(indices):`."
            )
        if len(ids) not in (1, batch):
            raise ConstraintError(
                f"{self!r} was evaluated for {batch} samples in a batch of {len(ids)}; state with "
                "feasibly.members.among(rows) which ones they are."
            )
        most = self.repeats * len(self.targets)
        if int(ids.max()) >= most:
            raise ConstraintError(
                f"{self!r} has targets for samples 0 to {most - 1}, and none for sample "
                f"{int(ids.max())}; give a row for each sample."
            )
        rows = torch.div(ids, self.repeats, rounding_mode="floor").to(self.targets.device)
        return self.targets[rows.expand(batch)]

    def __repr__(self) -> str:
        each = f", {self.repeats} members each" if self.repeats > 1 else ""
        return f"EachMember({self.constraint!r}, {len(self.targets)} targets{each})"


@torch.no_grad()
def through(constraint: Constraint, truths: Tensor, repeats: int = 1, seed: int = 0) -> Constraint:
    r"""Returns the constraint stated through samples: :math:`r(x_i) = r(x^*_i)`.

    Each truth :math:`x^*` satisfies its own statement exactly. Inequalities stay as they are,
    since a truth does not say where they end. So truths should satisfy them. Observations with
    noise are of a truth and errors of their distribution.

    Arguments:
        constraint: The constraint.
        truths: The samples :math:`x^*`, with shape (N, \*), of the type that will be sampled.
        repeats: How many members in a row share a truth; see :class:`EachMember`.
        seed: The seed of errors.

    Example:
        >>> truths = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
        >>> stated = feasibly.constraints.through(circle, truths)  # a circle for each member
        >>> with feasibly.members.calling([0, 1]):
        ...     stated.is_feasible(torch.tensor([[2.0, 0.0], [2.0, 0.0]])).tolist()
        [True, False]
    """
    return _through(constraint, truths, repeats, (seed, ERRORS))


def _through(
    constraint: Constraint, truths: Tensor, repeats: int, seeds: tuple[int, ...]
) -> Constraint:
    """Returns a part stated through samples; its errors have these seeds, unlike all others'."""
    if isinstance(constraint, Composite):
        parts = [
            # from 1, since seeds that end in zeros are those without them
            _through(part, truths, repeats, (*seeds, k))
            for k, part in enumerate(constraint.constraints, start=1)
        ]
        return Composite(parts, constraint.weights)
    if isinstance(constraint, EachMember):  # whose own targets cancel
        return _through(constraint.constraint, truths, repeats, seeds)
    if (noisy := constraint.noisy) is not None:
        r = noisy.residual(truths)
        errors = torch.randn(r.shape, generator=generator(*seeds), dtype=torch.float64)
        observed = EachMember(noisy, r + errors.to(r), repeats)
        if constraint.exact is None:
            return observed
        return Composite([_through(constraint.exact, truths, repeats, seeds), observed])
    equalities = constraint.equalities
    if equalities is None:
        return constraint
    stated = EachMember(equalities, equalities.residual(truths), repeats)
    inequalities = constraint.inequalities
    if inequalities is None:
        return stated

    def beyond(x: Tensor) -> Tensor:
        g: Intervals = inequalities(x)
        gaps = [(g.upper, g.values - g.upper), (g.lower, g.lower - g.values)]
        # an infinite bound is met by any margin
        return torch.cat([torch.where(v.isfinite(), gap, -1.0) for v, gap in gaps], dim=1)

    bounds = [part for part in _leaves(constraint) if part.inequalities is not None]
    least = min(bounds, key=lambda part: part.tolerance)  # of several, the strictest limit
    if all(part.atol is not None for part in bounds):
        inside = Inequality(beyond, atol=least.atol)
    else:
        inside = Inequality(beyond, least.tolerance)
    return Composite([stated, inside], [1, 1] if inside.given == stated.given else None)


def _leaves(constraint: Constraint) -> Iterator[Constraint]:
    """Yields what a constraint is made of, also inside of units and decoders."""
    while isinstance(constraint, Mapped):
        constraint = constraint.constraint
    for part in constraint.parts:
        yield from [part] if part is constraint else _leaves(part)
