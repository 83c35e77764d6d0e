r"""Conditioning: a constraint as users write it, in a form that solvers handle well."""

__all__ = ["balanced"]

from collections.abc import Sequence

import torch
from torch import Tensor

from ..randomness import generator
from .base import Constraint, Inequalities

UNEVEN = 5.0
"""Residual components whose sizes differ by more than this factor are rescaled."""

PROBES = 16
"""The number of random changes that show the size of a component, to some 20 %."""

FAR = (0.3, 1.0, 30.0)
"""How far apart the points are between which a function is compared with an affine one, in units
of the samples' scale. A sensor that saturates is affine near the data alone."""

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
"""The relative deviation from an affine function that counts as rounding."""


@torch.no_grad()
def balanced(constraint: Constraint, x: Tensor) -> Constraint:
    r"""Returns an equivalent constraint whose residual components are of similar size.

    The equations of a discretised differential equation have coefficients of :math:`1 / h^2`,
    where an observed value has the coefficient one. Then :math:`J V J^\top` is badly conditioned,
    and solvers meet the large components only. So each component is divided by how much it changes
    if a sample changes by white noise. What is feasible does not change, nor does the violation
    that is reported. Components with noise are in units of their errors already.

    A function that is affine is marked as linear, because most methods then take fewer steps.

    Arguments:
        constraint: The constraint.
        x: Clean estimates or samples, with shape (B, \*), which show the scale of samples.

    Returns:
        The constraint itself, if it has this form already.
    """
    linear = constraint.linear or _is_affine(constraint, x)
    gain = None if constraint.equalities is None else _gain(constraint.equalities, x)
    if linear == constraint.linear and gain is None:
        return constraint
    return _Balanced(constraint, linear, gain)


class _Balanced(Constraint):
    """A constraint with each component of its equalities multiplied by a gain of at least one."""

    def __init__(self, constraint: Constraint, linear: bool, gain: Tensor | None) -> None:
        # |r| grows, so that a minimizer that reaches the tolerance has reached the user's too
        super().__init__(constraint.tolerance)
        self.constraint, self.linear, self.gain = constraint, linear, gain
        self.differs = constraint.differs
        self.equal = constraint.noisy is None and constraint.inequalities is None

    def residual(self, x: Tensor) -> Tensor:
        r = self.constraint.residual(x)
        return r if self.gain is None or not self.equal else r * self.gain.to(r)

    def violation(self, x: Tensor) -> Tensor:
        return self.constraint.violation(x)

    def assess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.constraint.assess(x)

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
        return None if part is None else _Balanced(part, self.linear, self.gain)

    def __repr__(self) -> str:
        return repr(self.constraint)


def _gain(equalities: Constraint, x: Tensor) -> Tensor | None:
    """Returns what each component is multiplied by; None if all are of similar size already."""
    changes = _sizes(equalities, x)
    known = changes.isfinite() & (changes > 0)
    if not known.any() or changes[known].max() <= UNEVEN * changes[known].min():
        return None
    return torch.where(known, changes[known].max() / changes, 1.0)


def _sizes(equalities: Constraint, x: Tensor) -> Tensor:
    """Returns how much each component changes with white noise of the samples' scale."""
    noise = x.std() * torch.randn((PROBES, *x.shape[1:]), generator=generator(0)).to(x)
    r = equalities.residual(x[:1])
    changes = [equalities.residual(x[:1] + n) - r for n in noise.split(1)]
    return torch.cat(changes).double().square().mean(dim=0).sqrt()


def _is_affine(constraint: Constraint, x: Tensor) -> bool:
    """Whether the residual is an affine function, as far as the middle of random points shows."""
    if constraint.inequalities is not None:
        return False
    for dtype, rounding in ROUNDING.items():
        noise = generator(0)
        try:
            for far in FAR:
                step = torch.randn((2, *x.shape[1:]), generator=noise, dtype=torch.float64)
                ends = x[:1].to(dtype) + far * x.std() * step.to(x.device, dtype)
                one, other = (constraint.residual(end) for end in ends.split(1))
                middle = constraint.residual(ends.mean(dim=0, keepdim=True))
                size = torch.maximum(one.abs(), other.abs()).amax(dim=1)
                if not ((one + other) / 2 - middle).abs().amax(dim=1) <= rounding * size:
                    return False
        except Exception:  # a function need not take double precision
            continue
        return True
    return False
