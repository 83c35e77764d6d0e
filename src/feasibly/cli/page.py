"""What the pages about a run and about a store have in common."""

__all__ = ["convergence", "ends", "fits", "illustrate", "pictures", "stations"]

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import figures
from ..constraints import Constraint
from ..members import calling
from ..report import Report
from ..result import Result
from ..weather import Stations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = (
    "Samples, drawn according to their shape: points, lines with their mean and range, or maps of "
    "the first few, of the mean and of the spread, with the first row at the bottom."
)

CONVERGENCE = (
    "Residuals of the clean estimates in units of their limit (left: a line for the median, and a "
    "band up to the largest), and the share of feasible estimates (right), at each noise level. "
    "Noise falls from left to right. Look for a line that ends below the limit. A projection "
    "after the last step is not shown."
)
UNRECORDED = (
    "There is no figure of the convergence, because fewer than two noise levels were recorded. "
    "One is recorded after each step: use more steps, or a method that takes several, such as ppr."
)
ENDS = (
    "Residuals of the samples in units of their limit: left of the red line samples are feasible."
)

WORST = 40
"""The most rows of the table of stations."""


def illustrate(page: Report, draw: Callable[[], "Figure"], caption: str) -> None:
    """Adds a figure to a page, if matplotlib is installed."""
    with contextlib.suppress(ImportError):
        page.figure(draw(), caption)


def pictures(page: Report, samples: Tensor, constraint: Constraint | None = None) -> None:
    """Adds a picture of a few samples, with shape (B, *), those that are finite, and of the zero
    set of a constraint in the plane."""
    good = samples[samples.flatten(start_dim=1).isfinite().all(dim=1)]
    if len(good) and good.ndim > 1:
        illustrate(page, lambda: figures.samples(good, constraint), CAPTION)


def convergence(page: Report, results: Mapping[str, Result]) -> None:
    """Adds how the residuals of runs under one constraint go down, and where they end."""
    runs = {name: r.trace for name, r in results.items() if len(figures.by_level(r.trace)) > 1}
    tolerance = next(iter(results.values())).tolerance
    if runs:
        illustrate(page, lambda: figures.trace(runs, tolerance), CONVERGENCE)
    else:
        page.text(UNRECORDED)
    ends(page, results)


def ends(page: Report, results: Mapping[str, Result]) -> None:
    """Adds how large the residuals of the samples of runs under one constraint are."""
    ratios = {name: result.ratio for name, result in results.items()}
    illustrate(page, lambda: figures.histogram(ratios, quantity="residual / limit"), ENDS)


def fits(page: Report, found: Mapping[str, Tensor]) -> None:
    """Adds how samples fit each observation with errors, by chi-square a value of each sample."""
    rows = []
    for name, fit in found.items():
        known = fit[fit.isfinite()]
        if known.numel():
            three = {"mean": known.mean(), "smallest": known.min(), "largest": known.max()}
            rows.append({"observation": name, **{k: f"{v.item():.3g}" for k, v in three.items()}})
    if rows:
        page.heading("Noisy observations")
        page.text("Chi-square per observed value of each sample: about one where the sample fits.")
        page.table(rows)


@torch.no_grad()
def stations(
    page: Report, constraint: Constraint | None, samples: Tensor, members: Sequence[int]
) -> None:
    """Adds how samples fit each station and variable, for parts that
    :class:`feasibly.weather.Stations` made, and samples, with shape (B, *), of known indices."""
    finite = samples.flatten(start_dim=1).isfinite().all(dim=1).tolist()
    good = [i for i, fine in enumerate(finite) if fine]
    for part in [] if constraint is None else constraint.parts:
        made, noisy = _made_by(part), part.noisy
        if made is None or noisy is None or not good:
            continue
        misfits = []
        for i in good:  # one by one, since they may be decoded
            with calling([members[i]], samples.device):
                misfits.append(noisy.residual(samples[i : i + 1]))
        found = made.by_station(torch.cat(misfits))
        worst = sorted(found, key=lambda row: -row["chi_square"])[:WORST]
        page.heading("Stations")
        page.text(
            f"The {len(worst)} of {len(found)} combinations of station and variable that fit "
            "worst. Errors, and misfits of the ensemble mean, are root mean squares in the units "
            "of the fields."
        )
        page.table([_words(row) for row in worst])


def _made_by(part: Any) -> Stations | None:
    """Returns the stations that a part observes; None if it is another constraint."""
    while hasattr(part, "constraint"):  # that of decoded samples, or in other units
        part = part.constraint
    operator = getattr(part, "A", None)
    found = getattr(operator, "__self__", operator)
    return found if isinstance(found, Stations) else None


def _words(row: Mapping[str, Any]) -> dict[str, str]:
    """A row of numbers in words."""
    return {
        "station": f"{row['lat']:g}, {row['lon']:g}",
        "variable": row["variable"],
        "values": str(row["values"]),
        "error": f"{row['error']:.3g}",
        "misfit": f"{row['misfit']:.3g}",
        "chi-square per value": f"{row['chi_square']:.3g}",
    }
