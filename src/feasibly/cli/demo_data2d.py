"""`python -m feasibly demo data2d`: points in the plane that lie on a curve, of two priors."""

__all__ = ["demo_data2d"]

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .. import figures, progress
from ..api import plan
from ..problems.data2d import DISTRIBUTIONS, Data2D
from ..randomness import MemberNoise
from ..report import Report
from ..result import Result
from ..run import trajectory
from ..samplers import Method
from .compare import POST_HOC, run_all, show, written
from .demo_parts import costs, finish, shares
from .words import Screen

MARGINALS = (
    "Points at four noise levels, which fall from left to right: true constrained samples with "
    "noise added (top), unconditional samples with noise added (middle), and the states of PPR "
    "(bottom). PPR goes from the middle row's noise to the top row's samples, on the black lines."
)
SIGMAS = (3.0, 0.5, 0.15, 0.03)


def demo_data2d(out: Path, members: int, constraint: int, seed: int) -> int:
    """Samples the shipped priors of Data2D under a random field, by three methods."""
    torch.set_num_threads(1)  # small kernels lose more to waiting than they gain from a second
    console = Screen()
    report = Report("feasibly: two trained priors under a hard constraint")
    report.text(
        "Each prior is a trained diffusion model. The constraint requires that samples lie on the "
        "zero set of a random field (black lines), up to a violation of 4e-6. PPR projects "
        "through the denoiser while it samples. Post-hoc projection projects an unconditional "
        "sample once, at the end. On-manifold means on the support of the data: feasible samples "
        "off the support are worth nothing, so look at both together. The k-NN rate compares an "
        "ensemble with the true constrained distribution: 0.5 is a perfect match. The weight "
        "error is the total variation between mode weights. Evaluations are network evaluations, "
        "forward / backward. The last row compares two sets of true samples."
    )
    for name in DISTRIBUTIONS:
        _one_problem(name, out, members, constraint, seed, report, console)
    written(report, out, console)
    return 0


def _one_problem(
    name: str, out: Path, members: int, k: int, seed: int, report: Report, console: Screen
) -> None:
    problem = Data2D(name)
    constraint = problem.constraint(k)
    parts = problem.denoiser, constraint, problem.shape
    methods: dict[str, Sequence[Method]] = {
        "default": plan(*parts, monitor=False).kernels,
        "PPR": plan(*parts, method="ppr-tuned", monitor=False).kernels,
        POST_HOC: plan(*parts, method="post-hoc", monitor=False).kernels,
    }
    results = run_all(name, methods, members, seed, out)

    with progress.shown(True) as meter, meter.part(f"{name}, ground truth"):
        # 7 % of the prior's samples are close enough to the constraint
        pool = problem.prior_samples(24 * members)
        truth = problem.ground_truth(constraint, pool)
    first, second = truth[:members], truth[members : 2 * members]
    rows = [_row(problem, label, r.samples, r.feasible, first, r) for label, r in results.items()]
    if len(second) >= members // 2:
        feasible = constraint.is_feasible(second)
        rows.append(_row(problem, "truth", second, feasible, first))
    show(rows, f"{name}, constraint {k}, {members} samples", console)

    levels, states = _marginals(methods["PPR"][0], pool[:members], first, seed)
    figure = figures.marginals(states, levels, constraint)
    figure.savefig(out / f"{name}_marginals.png", dpi=150)
    report.heading(name)
    report.table(rows)
    report.figure(figure, MARGINALS)
    finish(report, results)


def _row(
    problem: Data2D,
    label: str,
    x: Tensor,
    feasible: Tensor,
    truth: Tensor,
    result: Result | None = None,
) -> dict[str, str]:
    scores = problem.scores(x, feasible, truth)
    measured = {"k-NN": f"{scores['knn']:.3f}", "weight error": f"{scores['weight_error']:.3f}"}
    return {"": label, **shares(scores, 1), **measured, **costs(result)}


def _marginals(
    kernel: Method, unconditional: Tensor, truth: Tensor, seed: int
) -> tuple[list[float], dict[str, list[Tensor]]]:
    """The noise levels of the figure's columns, those of the kernel's that come closest to
    `SIGMAS` from below, and the states of its rows."""
    noise = MemberNoise(seed, range(len(unconditional)), unconditional.shape[1:])
    levels: list[float] = []
    states: list[Tensor] = []
    for _, s, step in trajectory(kernel, noise):
        level = kernel.noise_level(s)
        if len(levels) < len(SIGMAS) and level <= SIGMAS[len(levels)]:
            levels.append(level)
            states.append(step.x)
    generator = torch.Generator().manual_seed(seed)

    def diffuse(x: Tensor) -> list[Tensor]:
        z = torch.randn(x.shape, generator=generator)
        return [x.float() + sigma * z for sigma in levels]

    rows = {"constrained": diffuse(truth), "unconditional": diffuse(unconditional), "PPR": states}
    return levels, rows
