"""The settings of posterior samples, which follow from the survey."""

__all__ = ["PLAIN", "settings"]

import math
from collections.abc import Mapping
from typing import Any

from ..constraints.composite import without_inequalities
from ..minimizers import LBFGS
from ..problem import Problem
from .levels import rounded
from .tuned import known_residuals, last_of, minimizer

PLAIN: dict[str, Any] = {
    "steps": 32,
    "spacing": "time",
    "top": math.inf,
    "products": 2,
    "iterations": 8,
    "dimensions": (),
    "floor": 1e-2,
    "units": (),
    "normal": False,
    "sparse": 0.0,
    "longer": 2,
    "minimize": LBFGS(steps=48, memory=12),
}
"""Those of a problem of which nothing is known."""

STEPS, TOP = 36, 5.0
"""The number of steps over all noise levels, and the level to which the first step goes, in units
of the data's standard deviation along their widest direction. Above it states say little of the
data, and the other steps are left out."""

SPARSE = 0.1
"""The noise level below which steps are longer, in units of the data's scale. Under linear values
it is the level up to which the denoiser is nearly affine, if that is higher."""

SURFACE, LONGER_SURFACE = 3.0, 8
"""Data lie on a surface if they have fewer than so many dimensions up to that level. Under exact
values steps are then so many times as long there, and the square root takes one product: such a
posterior is as wide as the noise along the surface, and has no width across it. So the solver
takes no more products than there are dimensions."""

FLOOR_LINEAR = 1e-4
"""The least eigenvalue that the solver takes of the covariance of exact linear values, relative to
the largest, where data lie on no such surface."""

TOP_NORMAL, STRIDE_NORMAL, FLOOR_NORMAL = 0.3, 16.0, 1e-5
"""For exactly normal data, the level to which the first step goes, in units of the data's scale,
how many times lower the next one is at most, and the least eigenvalue."""

STRIDE_ROUGH, FLOOR_ROUGH = 3.0, 1e-6
"""The same where a residual has derivatives, as that of a differential equation has. Samples come
from the reverse diffusion then, as for normal data. The first step goes to :data:`TOP` times the
scale of the data as a whole: a channel that hardly varies would hide the others."""

ITERATIONS_FEW_STEPS, ITERATIONS_NOISE = 64, 32
"""The most iterations of the solver in few steps, and under noise in many."""


def settings(problem: Problem, survey: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of posterior samples for a problem.

    Arguments:
        problem: The problem.
        survey: Its :class:`Survey <feasibly.survey.Survey>`.
        own: The options that are given, by name; None for those that are to be chosen.
    """
    constraint = problem.constraint
    assert constraint is not None
    met = constraint if constraint.inequalities is None else without_inequalities(constraint)
    assert met is not None
    number = known_residuals(problem, survey)
    found = {"minimize": last_of(number) or minimizer(number), "units": survey.units}
    if own["spacing"] == "time":
        return found
    few = None
    if survey.is_normal(met):
        few, found["floor"] = (TOP_NORMAL * survey.scale, STRIDE_NORMAL), FLOOR_NORMAL
        found["normal"] = True
    elif survey.amplified_by(met):
        few, found["floor"] = (TOP * survey.whole, STRIDE_ROUGH), FLOOR_ROUGH
    if few is not None:
        top, stride = rounded(few[0]), few[1]
        steps = 1 + math.ceil(math.log(top / survey.ends[0], stride))
        found |= {"steps": steps, "top": top, "products": math.inf}
        return found | {"spacing": "noise", "iterations": ITERATIONS_FEW_STEPS}
    found |= _many_steps(survey, own["top"] or rounded(TOP * survey.widest))
    if met.noisy is not None:
        found["iterations"] = ITERATIONS_NOISE
    level = max(survey.affine if met.linear else 0.0, SPARSE * survey.scale)
    exact = met.linear and met.noisy is None
    surface = exact and survey.on_surface(level, SURFACE)
    if surface:
        found |= {"dimensions": survey.growing_dimensions, "products": 1}
    elif exact:
        found["floor"] = FLOOR_LINEAR
    if own["steps"] is None:
        found["sparse"] = rounded(level)
        if surface and own["sparse"] is None and own["products"] != 0:
            found["longer"] = LONGER_SURFACE
    return found


def _many_steps(survey: Any, top: float) -> dict[str, Any]:
    """Returns as many steps a decade as :data:`STEPS` over all levels, but none above `top`."""
    lowest, highest = survey.ends
    if not top > lowest:
        return {"spacing": "noise", "steps": STEPS}
    share = math.log(min(top, highest) / lowest) / math.log(highest / lowest)
    needed = math.ceil(STEPS * share)
    if top >= highest:
        return {"spacing": "noise", "steps": needed}
    return {"spacing": "noise", "steps": 1 + needed, "top": top}
