"""`python -m feasibly demo`: three problems, sampled by the library and projected at the end."""

__all__ = ["demo_three"]

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import figures, progress
from ..api import plan
from ..constraints import Composite, Constraint, Integral, Mask
from ..minimizers import LBFGS
from ..oracles import Gaussian
from ..policy import Plan
from ..problem import Problem
from ..problems.data2d import Data2D
from ..problems.ks import KS
from ..report import Report
from ..run import run
from ..samplers import Ancestral, Method, PostHoc
from ..schedules import VP
from . import page
from .compare import listed, run_all, written
from .demo_parts import UNITS, at_stations, finite, levels, panels, recorded
from .words import Screen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FREE, OURS, POST_HOC = "no constraint", "feasibly", "projected at the end"
TRAJECTORIES = 2
SIDE, STATIONS = 16, 12  # of the maps
LENGTH, ROUGH = 0.35, 0.03  # over which they vary, and of what does not vary together


@dataclass(frozen=True)
class Shown:
    """A problem to show: its denoiser, constraint and shape; the library's samplers and the
    baseline; what looking like data means, which samples do, a plot of ensembles, the plot's
    caption, one of clean estimates, and rows of a table about ensembles."""

    name: str
    about: str
    parts: tuple[Any, Constraint, tuple[int, ...]]
    plan: Plan
    post_hoc: Method
    looks: str
    like_data: Callable[[Tensor], Tensor]
    plot: "Callable[[Mapping[str, Tensor]], Figure]"
    caption: str
    estimates: "Callable[[Tensor], Figure]"
    members: int
    table: Callable[[Mapping[str, Tensor]], list[dict[str, str]]] = lambda ensembles: []


def demo_three(out: Path, members: int, constraint: int, seed: int) -> int:
    """Samples points on a curve, maps that agree with stations, and a chaotic field that is
    observed."""
    if not 0 <= constraint <= 11:
        raise ValueError(f"--constraint must be 0 to 11, got {constraint}.")
    torch.set_num_threads(1)  # small kernels lose more to waiting than they gain from a second
    console = Screen()
    report = Report("feasibly: three models under a hard constraint")
    report.text(
        "Each problem is sampled by feasibly, without the constraint, and without it but with a "
        "projection onto the constraint at the end. Projected samples are feasible, but no longer "
        "look like data."
    )
    rows: list[dict[str, str]] = []
    for make in (curve, maps, field):
        with progress.shown(True) as meter, meter.part(make.__doc__ or ""):
            shown = make(members, constraint)
        rows += _one(shown, seed, out, report)
    listed(rows, "three models under a hard constraint", console)
    written(report, out, console)
    return 0


def _one(shown: Shown, seed: int, out: Path, report: Report) -> list[dict[str, str]]:
    denoiser, constraint, shape = shown.parts
    problem = Problem(denoiser, constraint, shape)
    projected = {POST_HOC: [shown.post_hoc.bind(problem)]}
    results = run_all(shown.name, projected, shown.members, seed, out)
    results[OURS], estimates = recorded(
        shown.name, OURS, shown.plan.kernels, shown.members, seed, out
    )
    prior = Ancestral(steps=32).bind(problem.but(constraint=None))
    free = run([prior], min(shown.members, 512), seed=seed).samples
    rows = []
    for label, result in results.items():
        like = shown.like_data(result.samples)
        rows.append(
            {
                "model": "" if rows else shown.name,
                "sampled by": label,
                "feasible": f"{result.feasible.double().mean():.1%}",
                "like data": f"{like.double().mean():.1%}",
                "evaluations": f"{result.evaluations.member_forward / shown.members:.0f} + "
                f"{result.evaluations.member_backward / shown.members:.0f}",
                "seconds": f"{result.seconds:.0f}",
            }
        )
    ensembles = finite({OURS: results[OURS], POST_HOC: results[POST_HOC]}) | {FREE: free}
    figure = shown.plot(ensembles)
    figure.savefig(out / f"{shown.name.replace(' ', '-')}.png", dpi=150)
    report.heading(shown.name)
    report.text(f"{shown.about} A sample is like data if it is {shown.looks}.")
    report.table([{k: v for k, v in row.items() if k != "model"} for row in rows])
    report.figure(figure, shown.caption)
    levels(report, estimates, shown.estimates)
    if table := shown.table(ensembles):
        report.text("Observed values at the stations, and mean and range of the samples' values.")
        report.table(table)
    page.ends(report, results)
    return rows


def curve(members: int, k: int) -> Shown:
    """Points on a curve"""
    problem = Data2D("checkerboard")
    constraint = problem.constraint(k)
    parts = problem.denoiser, constraint, problem.shape
    return Shown(
        "points on a curve",
        "A trained model of points on a checkerboard. The samples must lie on the black lines.",
        parts,
        plan(*parts, monitor=False),
        PostHoc(),
        "on a black square of the board",
        problem.distribution.in_support,
        lambda x: figures.points(x, constraint),
        "Samples (blue) and the points where the constraint holds (black lines). Samples by "
        "feasibly lie on the lines, and where the samples without the constraint are dense. "
        "Projected samples lie on the lines too, but some are in gaps between the squares.",
        lambda x: figures.points({"clean estimates": x}, constraint),
        members,
    )


def maps(members: int, k: int) -> Shown:
    """Maps that agree with stations"""
    generator = torch.Generator().manual_seed(k)
    line = torch.linspace(0, 1, SIDE, dtype=torch.float64)
    places = torch.cartesian_prod(line, line)
    apart = torch.cdist(places, places) / LENGTH
    cov = (1 + math.sqrt(5) * apart + 5 / 3 * apart.square()) * torch.exp(-math.sqrt(5) * apart)
    cov += ROUGH**2 * torch.eye(SIDE**2)
    inverse, root = torch.linalg.inv(cov), torch.linalg.cholesky(cov)
    truth = root @ torch.randn(SIDE**2, generator=generator, dtype=torch.float64)
    mask = torch.zeros(SIDE**2, dtype=torch.bool)
    mask[torch.randperm(SIDE**2, generator=generator)[:STATIONS]] = True
    truth, mask = truth.reshape(SIDE, SIDE), mask.reshape(SIDE, SIDE)
    average = Integral((-2, -1), truth.mean(), 1e-8)
    constraint = Composite([Mask(mask, truth, 1e-6), average])
    denoiser = Gaussian(torch.zeros(SIDE**2), cov, VP())

    def like_data(x: Tensor) -> Tensor:
        flat = x.double().flatten(start_dim=1)
        roughness = (flat @ inverse * flat).sum(dim=1)  # chi-square, of 256 degrees of freedom
        return roughness < SIDE**2 + 4 * math.sqrt(2 * SIDE**2)

    def draw(panels: Mapping[str, Tensor]) -> "Figure":
        return figures.trajectories(
            panels, stations=mask.nonzero(), label="value in standard deviations of the model"
        )

    parts = denoiser, constraint, (SIDE, SIDE)
    return Shown(
        "maps and stations",
        f"A model of smooth maps. The samples must agree with {STATIONS} stations (dots) and have "
        "a given mean.",
        parts,
        plan(*parts, monitor=False),
        PostHoc(),
        "as smooth as the model's maps, by a chi-square test at four standard deviations",
        like_data,
        lambda x: draw(panels(truth, x)),
        "The truth, which is observed at the stations (dots), a sample of each method, and mean "
        "and standard deviation of the samples by feasibly. Samples by feasibly agree with the "
        "truth at the stations, and their standard deviation grows away from them. The projected "
        "map has spots at the stations.",
        lambda x: draw({"truth": truth, "clean estimate, sample 0": x[0]}),
        members,
        lambda x: at_stations(
            [f"row {i}, column {j}" for i, j in mask.nonzero().tolist()],
            truth[mask],
            {name: u[:, mask] for name, u in x.items()},
        ),
    )


def field(members: int, k: int) -> Shown:
    """A chaotic field, observed"""
    problem = KS("sine-3")
    truth = problem.reference(k)
    constraint = problem.constraint(truth)
    parts = problem.denoiser, constraint, problem.shape

    def draw(panels: Mapping[str, Tensor]) -> "Figure":
        return figures.trajectories(panels, problem.observed, label=UNITS)

    return Shown(
        "a chaotic field",
        "A trained model of trajectories of the Kuramoto-Sivashinsky equation; time runs upward. "
        "The sine of three frames is observed: look at the dotted lines. feasibly samples by PPR "
        "here, in one attempt, to save time.",
        parts,
        plan(*parts, method="ppr-tuned", attempts=1, monitor=False),
        # steps short enough to find the nearest of a sine's solutions
        PostHoc(minimize=LBFGS(64, max_step=1.0)),
        "like the data in range, in changes from frame to frame and in the equation",
        problem.in_support,
        lambda x: draw(panels(truth, x)),
        "The truth, whose frames on the dotted lines are observed, a sample of each method, and "
        "mean and standard deviation of the samples by feasibly. These should be near the truth "
        "at the dotted lines, and pass them smoothly. The projected field often breaks there.",
        lambda x: draw({"truth": truth, "clean estimate, sample 0": x[0]}),
        TRAJECTORIES,
    )
