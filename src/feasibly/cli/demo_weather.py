"""`python -m feasibly demo weather`: days of weather that share an observation of noon."""

__all__ = ["demo_weather"]

import math
from collections.abc import Sequence
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
from ..samplers import Method, PostHoc
from .compare import POST_HOC, run_all, show, written
from .demo_parts import costs, finish
from .words import Screen

HOURS = [0, 6, 12, 18, 23]
V = 2


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
    methods: dict[str, Sequence[Method]] = {
        "PPR": plan(*parts, method="ppr-tuned", monitor=False).kernels,
        POST_HOC: plan(*parts, method=post_hoc, monitor=False).kernels,
    }
    results = run_all("weather", methods, members, seed, out)
    ensembles = {
        label: problem.decode(result.samples[result.finite]) for label, result in results.items()
    }
    rows = [_row(label, result, ensembles[label], day) for label, result in results.items()]
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
    shown = {"the day": day[HOURS, V]}
    for label, x in ensembles.items():
        shown |= {f"{label}, member {i}": member[HOURS, V] for i, member in enumerate(x[:3])}
    report.figure(
        figures.maps(
            shown, HOURS, "northward wind v (m/s)", {12: problem.points("wind", reference)}
        ),
        "The day, of which only the wind speed at the marked points of hour 12 is observed, and "
        "the first three members of each ensemble.",
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
        figures.over_time(curves, problem.observed, "hour", "northward wind v (m/s)"),
        "Error of the ensemble mean and spread of the ensemble, hour by hour.",
    )
    finish(report, results, constraint.tolerance)
    written(report, out, console)
    return 0


def _row(label: str, result: Result, x: Tensor, day: Tensor) -> dict[str, str]:
    scores: dict[str, str] = dict.fromkeys(("skill of v", "spread", "spread / skill", "CRPS"), "")
    if len(x) > 1:  # else nothing but the share is defined
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
        "violation": f"{torch.nanmedian(result.violation).item():.2g}",
        **scores,
        **costs(result),
    }
