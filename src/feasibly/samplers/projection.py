r"""Projections that do not evaluate the network: of clean estimates, or of states as they are."""

__all__ = ["closed_form", "project", "search"]

import math

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..minimizers import Minimizer
from ..minimizers.base import finite, per_sample


def project(
    constraint: Constraint,
    x: Tensor,
    minimize: Minimizer,
    threshold: float = 0.0,
    proximity: float = 0.0,
) -> Tensor:
    r"""Returns :math:`\arg\min_z \|r(z)\|^2 + p \|z - x\|^2`.

    Without a proximity this is the closed-form projection of the constraint, if it has one.
    Otherwise the minimizer searches from `x`. A minimizer with one iteration makes one step of its
    method. It is replaced only if the constraint is linear, where a Gauss-Newton step is the
    projection.

    Arguments:
        constraint: The constraint.
        x: The starting points, with shape :math:`(B, *)`.
        minimize: The minimizer; its steps are measured in :math:`\sqrt{D}`.
        threshold: The objective at or below which a sample stays where it is.
        proximity: The weight :math:`p`.
    """
    if not proximity and (constraint.linear or minimize.steps > 1):
        nearest = closed_form(constraint, x)
        if nearest is not None:
            done = constraint.residual(x).square().sum(dim=1) <= threshold
            return torch.where(per_sample(finite(nearest) & ~done, x), nearest, x)
    return search(constraint, x, minimize, threshold, proximity)


def search(
    constraint: Constraint,
    x: Tensor,
    minimize: Minimizer,
    threshold: float = 0.0,
    proximity: float = 0.0,
) -> Tensor:
    r"""Returns what the minimizer finds from `x`; the arguments are those of :func:`project`."""
    unit = math.sqrt(x[0].numel())
    return minimize(lambda z: (constraint.residual(z), z), x, threshold, unit, proximity).x


@torch.no_grad()
def closed_form(constraint: Constraint, x: Tensor) -> Tensor | None:
    """Returns the feasible points nearest to `x`; None if the constraint has no closed form."""
    try:
        return constraint.projection(x)
    except NotImplementedError:
        return None
