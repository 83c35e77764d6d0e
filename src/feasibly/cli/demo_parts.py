"""What the demos share: runs that are recorded, cells of tables, panels, and ends of reports."""

__all__ = [
    "UNITS",
    "at_stations",
    "costs",
    "finish",
    "finite",
    "levels",
    "panels",
    "recorded",
    "shares",
]

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..figures import SPREAD
from ..report import Report
from ..result import Result
from ..run import State
from ..samplers import Method
from . import page
from .compare import run_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = 8
"""The most noise levels of a slider."""

UNITS = "field in units of its root mean square"
"""What the samples of Kuramoto-Sivashinsky are."""


def recorded(
    name: str, label: str, kernels: Sequence[Method], members: int, seed: int, out: Path
) -> tuple[Result, dict[float, Tensor]]:
    """Samples and saves by one method, as `run_all` does; returns also the clean estimates of the
    first attempt by their noise level, with shape (B, *)."""
    estimates: dict[float, Tensor] = {}

    def observe(state: State) -> None:
        if state.attempt == 0:
            estimates[kernels[0].noise_level(state.t)] = state.x_0.cpu().clone()

    results = run_all(name, {label: kernels}, members, seed, out, observe)
    return results[label], estimates


def levels(
    report: Report, estimates: Mapping[float, Tensor], draw: "Callable[[Tensor], Figure]"
) -> None:
    """Adds a slider over some of the noise levels of a run, from the first to the last."""
    sigmas = list(estimates)
    some = torch.linspace(0, len(sigmas) - 1, min(LEVELS, len(sigmas))).round().long().tolist()
    report.slider(
        {f"noise level {sigmas[k]:.2g}": draw(estimates[sigmas[k]]) for k in some},
        "What the sampler expects the clean samples to be, at noise levels from the first to the "
        "last. Move the slider: at much noise estimates are smooth averages, at little noise they "
        "are samples that meet the constraint.",
    )


def finite(results: Mapping[str, Result]) -> dict[str, Tensor]:
    """Returns the finite samples of each result that has any, with shape (B, *)."""
    return {label: r.samples[r.finite] for label, r in results.items() if r.finite.any()}


def panels(truth: Tensor, samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns panels: the truth; a sample of the first ensemble, its mean and its standard
    deviation; a sample of each other ensemble. Ensembles have the shape (B, *)."""
    found = {"truth": truth}
    for k, (name, x) in enumerate(samples.items()):
        found[f"{name}, sample 0"] = x[0]
        if k == 0:
            found[f"{name}, mean of {len(x)}"] = x.mean(dim=0)
            found[SPREAD] = x.std(dim=0, correction=0)
    return found


def at_stations(
    places: Sequence[str], observed: Tensor, values: Mapping[str, Tensor]
) -> list[dict[str, str]]:
    """Returns a row for each station: what was observed there, and the means and ranges of the
    values of ensembles, with shape (B, stations)."""
    rows = []
    for k, place in enumerate(places):
        row = {"station": place, "observed": f"{observed[k]:.2f}"}
        for name, x in values.items():
            v = x[:, k]
            row[name] = f"{v.mean():.2f} ({v.min():.2f} to {v.max():.2f})"
        rows.append(row)
    return rows


def shares(scores: Mapping[str, float], digits: int = 0) -> dict[str, str]:
    """Returns the shares of feasible and of on-manifold samples, as cells of a table."""
    names = {"feasible": "feasible", "on_manifold": "on-manifold"}
    names["joint"] = "feasible and on-manifold"
    return {name: f"{scores[key]:.{digits}%}" for key, name in names.items()}


def costs(result: Result | None) -> dict[str, str]:
    """Returns what a result cost, as cells of a table; empty ones for none."""
    if result is None:
        return {"evaluations": "", "seconds": ""}
    spent = result.evaluations
    return {
        "evaluations": f"{spent.forward} / {spent.backward}",
        "seconds": f"{result.seconds:.1f}",
    }


def finish(report: Report, results: Mapping[str, Result]) -> None:
    """Adds to a report how residuals go down and where they end, and a summary of each result."""
    page.convergence(report, results)
    for result in results.values():
        report.code(result.summary())
