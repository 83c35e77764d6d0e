"""PPR in options that suit the problem."""

__all__ = ["TunedPPR", "known_residuals", "last_of", "minimizer"]

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ..members import calling
from ..minimizers import GaussNewton, Minimizer, WarmLBFGS
from ..problem import Problem
from .base import CHOSEN
from .levels import rounded
from .ppr import PPR
from .truncated import TruncatedPPR

FEW = 8
"""Up to so many residual components cut out a surface, which is found late and at once. More say
something of the sample at higher noise already, and take more work to satisfy."""

SIGMA_MAX_FEW, SIGMA_MAX_MANY = 0.75, 10.0
"""The noise level at which projections begin, for data of unit variance."""

ORDINARY = 5.0
"""Data whose standard deviation is less than so many times larger or smaller than one count as of
unit variance."""

STEPS_FEW, STEPS_MANY = 32, 64
"""The number of diffusion steps."""

ITERATIONS_FEW, ITERATIONS_MANY = 2, 16
"""The iterations of a projection, by Gauss-Newton for few components, by L-BFGS for many."""

LAST = 10
"""How many times as many iterations the last projection may take, for many components. Only
samples that are not feasible yet take them."""


@dataclass(frozen=True, kw_only=True)
class TunedPPR(PPR):
    """PPR that chooses its options for the problem when it is bound.

    Its kernel is :class:`PPR` or, for inequalities alone, :class:`TruncatedPPR`. It projects once
    a step. Up to 8 residual components are projected late, by Gauss-Newton. More are projected
    from high noise down, by L-BFGS. The arguments are those of :class:`PPR`; those that are None
    are chosen.

    Example:
        >>> plan = feasibly.plan(denoiser, circle, (2,), method=feasibly.TunedPPR(steps=8))
        >>> type(plan.kernels[0].minimize).__name__  # for one residual component
        'GaussNewton'
    """

    attempts = 4
    chooses = True

    steps: int = CHOSEN
    repeats: int = 1
    minimize: Minimizer = CHOSEN
    sigma_max: float = CHOSEN

    def bind(self, problem: Problem, survey: Any = None) -> PPR:
        self.check(problem)
        constraint, number = problem.constraint, known_residuals(problem, survey)
        inside = constraint is not None and (
            constraint.equalities is None and constraint.noisy is None
        )
        late = number <= FEW and not inside
        sigma_max = SIGMA_MAX_FEW if late else SIGMA_MAX_MANY
        if survey is not None and not 1 / ORDINARY < survey.scale < ORDINARY:
            sigma_max = rounded(sigma_max * survey.scale)
        if sigma_max <= problem.ends[0]:  # of other units
            sigma_max = math.inf
        chosen = {
            "steps": STEPS_FEW if late else STEPS_MANY,
            "sigma_max": sigma_max,
            "minimize": minimizer(number),
            # a minimizer that is given is taken as it is
            "last": last_of(number) if self.minimize is CHOSEN else None,
        }
        own: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        own |= {name: value for name, value in chosen.items() if own[name] is CHOSEN}
        kind = TruncatedPPR if inside else PPR
        own["problem"] = problem
        return kind(**own)


def known_residuals(problem: Problem, survey: Any) -> int:
    """Returns the number of residual components, by samples of the survey if there is one."""
    if survey is None or problem.constraint is None:
        return problem.residuals
    with torch.no_grad(), calling([0], problem.device):
        return problem.constraint.residual(survey.samples[:1]).shape[1]


def minimizer(number: int) -> Minimizer:
    """Returns the minimizer of a projection, given the number of residual components."""
    return GaussNewton(ITERATIONS_FEW) if number <= FEW else WarmLBFGS(ITERATIONS_MANY)


def last_of(number: int) -> Minimizer | None:
    """Returns the minimizer of the last projection; None for that of the others."""
    search = minimizer(number)
    return None if number <= FEW else replace(search, steps=LAST * search.steps)
