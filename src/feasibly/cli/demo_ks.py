"""`python -m feasibly demo ks`: an ensemble of trajectories that share an exact observation."""

__all__ = ["demo_ks"]

from pathlib import Path

import torch

from .. import figures, progress
from ..api import plan
from ..metrics import rmse, skill, spread
from ..minimizers import LBFGS
from ..problems.ks import KS, residual
from ..report import Report
from ..result import Result
from ..samplers import PostHoc
from .compare import POST_HOC, run_all, show, written
from .demo_parts import UNITS, costs, finish, finite, levels, panels, recorded, shares
from .words import Screen


def demo_ks(out: Path, members: int, reference: int, seed: int) -> int:
    """Samples trajectories of a chaotic field, given the sine of three frames."""
    if members < 2:
        raise ValueError(f"An ensemble needs at least 2 samples, got --members {members}.")
    console = Screen()
    problem = KS("sine-3")
    with progress.shown(True) as meter, meter.part("reference"):
        y = problem.reference(reference)
    constraint = problem.constraint(y)
    parts = problem.denoiser, constraint, problem.shape
    post_hoc = PostHoc(minimize=LBFGS(64, max_step=1.0))
    kernels = plan(*parts, method="ppr-tuned", monitor=False).kernels
    ours, estimates = recorded("ks", "PPR", kernels, members, seed, out)
    # steps short enough to find the nearest of a sine's solutions
    projected = {POST_HOC: plan(*parts, method=post_hoc, monitor=False).kernels}
    results = {"PPR": ours} | run_all("ks", projected, members, seed, out)
    rows = [_row(problem, label, result, y) for label, result in results.items()]
    show(rows, f"sine of three frames of reference {reference}", console)

    failures = [
        f"{label}, sample {i}: feasible, but unlike the prior's samples ({why})"
        for label, result in results.items()
        for i, why in problem.failures(result.samples, result.feasible).items()
    ]
    for failure in failures:
        console.say(failure)

    report = Report("feasibly: trajectories of a chaotic field, observed exactly")
    report.text(
        "The prior is a diffusion model of trajectories of the Kuramoto-Sivashinsky equation. The "
        "constraint requires that the sine of the first, middle and last frame (dotted lines) "
        "equal that of a reference, up to a total violation of 4e-4. PPR projects through the "
        "denoiser while it samples. Post-hoc projection projects an unconditional sample once, at "
        "the end, which breaks the trajectory at the observed frames. On-manifold means like the "
        "prior's own samples in range, in changes from frame to frame and in the residual of the "
        "equation. RMSE is the distance of the samples to the reference, skill that of the "
        "ensemble mean, and spread that of the samples around their mean, in units of the data. "
        f"The residual of the reference is {residual(y[None]).item():.3f}."
    )
    report.table(rows)
    for failure in failures:
        report.text(failure)
    observed, ensembles = problem.observed, finite(results)
    report.figure(
        figures.trajectories(panels(y, ensembles), observed, label=UNITS),
        "The reference, whose frames on the dotted lines are observed; a sample of each method; "
        "and mean and standard deviation of the first method's samples. Space runs to the right, "
        "time upward. Samples should be alike near the dotted lines, and differ between them. "
        "Post-hoc projection often shows as stripes at the dotted lines.",
    )
    levels(
        report,
        estimates,
        lambda x: figures.trajectories(
            {"truth": y, "clean estimate, sample 0": x[0]}, observed, label=UNITS
        ),
    )
    curves = {
        f"{label}, {name}": score(u[None])
        for label, u in ensembles.items()
        if len(u) > 1
        for name, score in (("skill", lambda u: skill(u, y[None])), ("spread", spread))
    }
    report.figure(
        figures.over_time(curves, observed),
        "Error of the ensemble mean and spread of the ensemble, frame by frame: the two agree if "
        "the ensemble is calibrated.",
    )
    finish(report, results)
    written(report, out, console)
    return 0


def _row(problem: KS, label: str, result: Result, y: torch.Tensor) -> dict[str, str]:
    scores = problem.scores(result.samples, result.feasible, y)
    x = result.samples[result.finite][None]
    measured: dict[str, str] = dict.fromkeys(
        ("RMSE", "skill", "spread", "Max-Norm", "residual"), ""
    )
    if x.shape[1] > 1:  # else nothing but the shares is defined
        measured |= {
            "RMSE": f"{rmse(x, y[None]).mean():.3f}",
            "skill": f"{skill(x, y[None]).mean():.3f}",
            "spread": f"{spread(x).mean():.3f}",
            "Max-Norm": f"{scores['max_norm']:.2f}",
            "residual": f"{scores['residual']:.3f}",
        }
    return {
        "": label,
        **shares(scores),
        **measured,
        **costs(result),
    }
