r"""Projections without the network: of clean estimates, or of states as they are."""

__all__ = ["has_closed_form", "project"]

import math

from torch import Tensor

from ..constraints.base import Constraint
from ..minimizers import Minimizer


def project(
    constraint: Constraint,
    x: Tensor,
    minimize: Minimizer,
    threshold: float = 0.0,
    proximity: float = 0.0,
) -> Tensor:
    r"""Searches :math:`\arg\min_z \|r(z)\|^2 + p \|z - x\|^2` from `x`.

    Arguments:
        constraint: The constraint.
        x: The starting points, with shape :math:`(B, *)`.
        minimize: The minimizer; its steps are measured in :math:`\sqrt{D}`.
        threshold: The objective at which a sample stops.
        proximity: The weight :math:`p`.
    """
    unit = math.sqrt(x[0].numel())
    return minimize(lambda z: (constraint.residual(z), z), x, threshold, unit, proximity).x


def has_closed_form(constraint: Constraint, x: Tensor) -> bool:
    """Whether the constraint knows its nearest feasible point, tried on samples `x`."""
    try:
        constraint.projection(x)
    except NotImplementedError:
        return False
    return True
