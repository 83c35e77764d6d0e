"""`python -m feasibly demo weather`: days of weather that share an observation of noon."""

__all__ = ["demo_weather"]

import math
from pathlib import Path

import torch
from torch import Tensor

from .. import figures, progress
from ..api import plan
from ..metrics import area_weights, crps, skill, spread
from ..minimizers import LBFGS
from ..problems.weather import LATITUDE, Weather
from ..report import Report
from ..result import Result
from ..samplers import PostHoc
from .compare import POST_HOC, run_all, show, written
from .demo_parts import at_stations, costs, finish, finite, levels, recorded
from .words import Screen

HOURS, NOON = [0, 12, 23], 12
V = 2
UNITS = "northward wind v (m/s)"
ROWS = 8
"""The most observed points of the table."""


def demo_weather(out: Path, members: int, reference: int, seed: int) -> int:
    """Samples days of weather, given the wind speed of noon at a tenth of all points."""
    if members < 2:
        raise ValueError(f"An ensemble needs at least 2 members, got --members {members}.")
    console = Screen()
    problem = Weather("wind")
    with progress.shown(True) as meter, meter.part("a day that the prior has not seen"):
        day = problem.reference(reference)
    constraint = problem.constraint(day, reference)
    parts = problem.denoiser, constraint, problem.shape
    post_hoc = PostHoc(minimize=LBFGS(64, max_step=1.0))
    kernels = plan(*parts, method="ppr-tuned", monitor=False).kernels
    ours, estimates = recorded("weather", "PPR", kernels, members, seed, out)
    projected = {POST_HOC: plan(*parts, method=post_hoc, monitor=False).kernels}
    results = {"PPR": ours} | run_all("weather", projected, members, seed, out)
    ensembles = {label: problem.decode(x) for label, x in finite(results).items()}
    rows = [_row(label, result, ensembles.get(label), day) for label, result in results.items()]
    show(rows, f"wind speed at noon of day {reference}", console)

    report = Report("feasibly: weather, observed through a decoder")
    report.text(
        "The prior is a diffusion model of days of a toy shallow-water model, in the latents of "
        "an autoencoder. The constraint requires that the wind speed at noon equal that of a day "
        "the prior has not seen, at a tenth of all points, through the decoder. PPR projects "
        "through decoder and denoiser while it samples. Post-hoc projection projects an "
        "unconditional sample once, at the end. Skill is the error of the ensemble mean and "
        "spread that of the members around it, both for the northward wind v, averaged over the "
        "sphere by area and then over the 24 hours."
    )
    report.table(rows)
    mask = problem.points("wind", reference)
    marked, truth = {NOON: mask}, {"the day (truth)": day[HOURS, V]}
    drawn = {label: x[:, HOURS, V] for label, x in ensembles.items()}
    shown = truth | {f"{label}, member 0": v[0] for label, v in drawn.items()}
    shown |= {f"{label}, mean": v.mean(dim=0) for label, v in drawn.items()}
    report.figure(
        figures.maps(shown, HOURS, UNITS, marked),
        "The day, of which only the wind speed at the marked points of hour 12 is observed; a "
        "member of each ensemble; and the ensemble means. Members should look like days: compare "
        "them with the day at the top, which they resemble most at hour 12.",
    )
    report.figure(
        figures.maps(
            {f"{label}, spread": v.std(dim=0, correction=0) for label, v in drawn.items()},
            HOURS,
            f"standard deviation of {UNITS}",
        ),
        "Standard deviation of the members. It should be smallest at hour 12, the observed one.",
    )
    levels(
        report,
        {sigma: x[:1] for sigma, x in estimates.items()},
        lambda x: figures.maps(
            truth | {"clean estimate of member 0": problem.decode(x)[0, HOURS, V]},
            HOURS,
            UNITS,
            marked,
        ),
    )
    lat, lon = mask.nonzero()[:: max(1, int(mask.sum()) // ROWS)][:ROWS].T
    speed = {label: x[:, NOON, 1:].norm(dim=1)[:, lat, lon] for label, x in ensembles.items()}
    report.heading("Observed points")
    report.text(
        "Wind speed at noon (m/s) at some of the observed points: that of the day, and mean and "
        "range of the members, which should equal it."
    )
    report.table(
        at_stations(
            [
                f"{LATITUDE[i]:.0f}°, {360 * (j + 0.5) / mask.shape[1]:.0f}°"
                for i, j in zip(lat.tolist(), lon.tolist(), strict=True)
            ],
            day[NOON, 1:].norm(dim=0)[lat, lon],
            speed,
        )
    )
    area = area_weights(LATITUDE)
    curves: dict[str, Tensor] = {}
    for label, x in ensembles.items():
        if len(x) > 1:
            v = x[None, :, :, V]
            curves |= {
                f"{label}, skill": skill(v, day[None, :, V], area),
                f"{label}, spread": spread(v, area),
            }
    report.figure(
        figures.over_time(curves, problem.observed, "hour", UNITS),
        "Error of the ensemble mean and spread of the ensemble, hour by hour.",
    )
    finish(report, results)
    written(report, out, console)
    return 0


def _row(label: str, result: Result, x: Tensor | None, day: Tensor) -> dict[str, str]:
    scores: dict[str, str] = dict.fromkeys(("skill of v", "spread", "spread / skill", "CRPS"), "")
    if x is not None and len(x) > 1:  # else nothing but the share is defined
        v, truth, area = x[None, :, :, V], day[None, :, V], area_weights(LATITUDE)
        error, width = skill(v, truth, area).mean(), spread(v, area).mean()
        scores = {
            "skill of v": f"{error:.2f} m/s",
            "spread": f"{width:.2f} m/s",
            "spread / skill": f"{math.sqrt(1 + 1 / len(x)) * width / error:.2f}",
            "CRPS": f"{crps(v, truth, area).mean():.2f} m/s",
        }
    return {
        "": label,
        "feasible": f"{result.feasible.double().mean().item():.0%}",
        "residual / limit": f"{torch.nanmedian(result.ratio).item():.2g}",
        **scores,
        **costs(result),
    }
