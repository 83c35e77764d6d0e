r"""The noise levels of sequential Monte Carlo, which follow from the survey."""

__all__ = ["DRAWN_GIVEN", "Levels", "ladder", "rounded", "scale_of", "spaced"]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..problem import Problem
from .base import bisected

WIDER = 2.0
"""Particles are weighted from so many times the noise level at which estimates know a component,
and part from each other at so many times that level."""

DRAWN, DRAWN_GIVEN = 0.05, 0.1
"""Samples are drawn at the last step above this noise level, in units of the data's scale, or
later: until the next level is at most so much of the scale of the particles' estimates, which is
smaller where a constraint leaves little. Below it, weights vary little."""


class Levels(NamedTuple):
    r"""The noise levels :math:`\sigma / \alpha` of particles.

    Attributes:
        begun: From here on there are several particles in a trajectory. Above, the constraint
            says nothing.
        weighted: From here on they are weighted and moved.
        drawn: Here samples are drawn from them, or below where their estimates differ by less.
        spread: The standard deviation of the data.
    """

    begun: float = math.inf
    weighted: float = math.inf
    drawn: float = DRAWN
    spread: float = 1.0


def ladder(problem: Problem, survey: Any = None) -> Levels:
    """Returns the noise levels for a problem, given its
    :class:`Survey <feasibly.survey.Survey>`; those of data of unit variance without one.

    With inequalities samples are drawn before the last step, since one inside stays as it is.
    """
    constraint = problem.constraint
    drawn = DRAWN if constraint is None or constraint.inequalities is None else 0.0
    if survey is None:
        return Levels(drawn=drawn)
    far = max(1.0, survey.distance(constraint))
    weighted = rounded(max(WIDER * survey.informed * far, survey.scale))
    return Levels(
        begun=rounded(WIDER * weighted),
        weighted=weighted,
        drawn=rounded(drawn * survey.scale),
        spread=rounded(max(survey.scale, survey.spread)),
    )


def scale_of(x: Tensor) -> float:
    r"""Returns the scale of samples, with shape (N, \*): the root mean square distance per element
    of the median sample from the elements' medians. Samples that are NaN are left out; if all are,
    it is NaN."""
    apart = (x - x.nanmedian(dim=0).values).flatten(start_dim=1)
    norms = torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64)
    return norms.nanmedian().item() / math.sqrt(apart.shape[1])


def rounded(value: float) -> float:
    """Returns a number with two digits, so that machines that round differently agree on it."""
    return float(f"{value:.2g}")


def spaced(steps: int, highest: Tensor, lowest: Tensor, spread: float) -> Tensor:
    """Returns logarithms of noise levels with shape (T + 1), half uniform and half near the data's
    spread; see :class:`SMC <feasibly.samplers.SMC>`."""
    centre = math.log(spread)
    first, last = ((end - centre).atan() for end in (highest, lowest))

    def behind(level: Tensor) -> Tensor:
        """The share of the steps at higher noise, which is negative so that it increases."""
        even = (level - highest) / (lowest - highest)
        near = ((level - centre).atan() - first) / (last - first)
        return -(even + near) / 2

    share = torch.linspace(0, 1, steps + 1, dtype=highest.dtype).to(highest)
    return bisected(behind, -share, lowest.expand_as(share), highest.expand_as(share))
