"""What a user should know of a problem before sampling."""

__all__ = ["level_remarks", "remarks"]

from collections.abc import Iterator

import torch
from torch import Tensor

from .checks.derivatives import roughness
from .constraints.base import Constraint
from .metrics import is_outlying
from .survey import Survey

MET = 0.5
"""The share of unconditional samples above which an equality asks for nothing if they meet it."""

UNITS = 1e-4
"""A typical residual smaller than this is in other units than one."""


def remarks(constraint: Constraint, survey: Survey) -> Iterator[str]:
    """Yields what a user should know before sampling: that the schedule's noise does not fit the
    data, that some of it is not denoised, that samples are not restored, that an equality asks for
    nothing, is in units far from one, or is not resolved, that a residual is flat or jumps where
    samples are, or that the constraint is far from the data."""
    yield from level_remarks(survey)
    if survey.unrestored:
        yield survey.unrestored
    for part in constraint.parts:
        if part.equalities is not None:
            yield from _remarks(part.equalities, survey.samples)
    yield from roughness(constraint, survey.samples)
    equalities = constraint.equalities
    outlying = equalities is not None and is_outlying(equalities.residual(survey.samples))
    if outlying and not survey.nearly_normal:  # normal data have no modes
        yield (
            "Hardly any unconditional sample comes near the constraint. Mode weights may "
            "therefore be wrong, even where samples are feasible and plausible. Compare with "
            "another method, or run feasibly.audit with a large `near`."
        )


def level_remarks(survey: Survey) -> Iterator[str]:
    """Yields what is wrong with the noise levels of the schedule, or of the network."""
    if survey.unmoved:
        yield survey.unmoved
    else:
        yield from (found.sentence for found in survey.misfits())


def _remarks(equalities: Constraint, x: Tensor) -> Iterator[str]:
    c, feasible = equalities.assess(x)
    size, met = c.double().median().sqrt().item(), feasible.double().mean().item()
    if met >= MET:
        yield (
            f"{met:.0%} of unconditional samples already satisfy {equalities!r}, so that it "
            f"constrains little. Their residual is typically {size:.3g}: divide the residual by "
            "that number, or lower the tolerance."
        )
    elif x.dtype == torch.float32 and equalities.tolerance < (error := _rounding(equalities, x)):
        yield (
            f"The tolerance of {equalities!r} is {equalities.tolerance:.3g}, but rounding alone "
            f"gives a violation of {error:.2g} in float32. Raise the tolerance, or sample with "
            "dtype=torch.float64."
        )
    elif size < UNITS:
        yield (
            f"The residual of {equalities!r} is typically {size:.3g} for unconditional samples, "
            "so small that rounding matters. Divide the residual by that number, and the "
            "tolerance by its square (an atol by the number itself)."
        )


def _rounding(equalities: Constraint, x: Tensor) -> float:
    """Returns the typical violation that rounding of the residual makes; 0 if it is unknown."""
    try:
        apart = equalities.residual(x.double()) - equalities.residual(x)
    except Exception:  # the residual takes no double precision
        return 0.0
    return equalities.violation_of(apart).median().item()
