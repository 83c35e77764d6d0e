"""`python -m feasibly demo`: three problems, sampled by the library and projected at the end."""

__all__ = ["demo_three"]

import math
from collections.abc import Callable
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
from .compare import listed, run_all, written
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
    baseline; what looking like data means, which samples do, and a plot of panels."""

    name: str
    about: str
    parts: tuple[Any, Constraint, tuple[int, ...]]
    plan: Plan
    post_hoc: Method
    looks: str
    like_data: Callable[[Tensor], Tensor]
    plot: "Callable[[dict[str, Tensor]], Figure]"
    members: int


def demo_three(out: Path, members: int, constraint: int, seed: int) -> int:
    """Samples points on a curve, maps that agree with stations, and a chaotic field that is
    observed."""
    if not 0 <= constraint <= 11:
        raise ValueError(f"--constraint must be 0 to 11, got {constraint}.")
    torch.set_num_threads(1)  # small kernels lose more to waiting than they gain from a second
    console = Screen()
    report = Report("feasibly: three models under a hard constraint")
    report.text(
        "Each figure shows samples without the constraint, samples projected onto the constraint "
        "at the end, and samples by feasibly. Projected samples are feasible, but no longer look "
        "like data."
    )
    rows: list[dict[str, str]] = []
    for make in (curve, maps, field):
        with progress.shown(True) as meter, meter.part(make.__doc__ or ""):
            shown = make(members, constraint)
        found, figure = _one(shown, seed, out)
        rows += found
        figure.savefig(out / f"{shown.name.replace(' ', '-')}.png", dpi=150)
        report.heading(shown.name)
        report.text(shown.about)
        report.table(found)
        report.figure(
            figure,
            f"Like data: {shown.looks}. The median violation is shown, in units of the tolerance; "
            "at most 1 is feasible.",
        )
    listed(rows, "three models under a hard constraint", console)
    written(report, out, console)
    return 0


def _one(shown: Shown, seed: int, out: Path) -> "tuple[list[dict[str, str]], Figure]":
    denoiser, constraint, shape = shown.parts
    tolerance = constraint.tolerance
    problem = Problem(denoiser, constraint, shape)
    methods = {POST_HOC: [shown.post_hoc.bind(problem)], OURS: shown.plan.kernels}
    results = run_all(shown.name, methods, shown.members, seed, out)
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
    samples = {FREE: free} | {label: result.samples for label, result in results.items()}
    drawn = {}
    for label, x in samples.items():
        times = constraint.violation(x).median().item() / tolerance
        drawn[f"{label}\nviolation / tolerance {times:.1g}"] = x
    return rows, shown.plot(drawn)


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
        lambda x: figures.trajectories(
            {name: u[0] for name, u in x.items()}, stations=mask.nonzero()
        ),
        members,
    )


def field(members: int, k: int) -> Shown:
    """A chaotic field, observed"""
    problem = KS("sine-3")
    constraint = problem.constraint(problem.reference(k))
    parts = problem.denoiser, constraint, problem.shape

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
        lambda x: figures.trajectories({name: u[0] for name, u in x.items()}, problem.observed),
        TRAJECTORIES,
    )
