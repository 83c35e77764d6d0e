"""What the demos of one problem share: costs in a table, and the end of a report."""

__all__ = ["costs", "finish", "shares"]

from collections.abc import Mapping

from .. import figures
from ..report import Report
from ..result import Result


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


def finish(report: Report, results: Mapping[str, Result], tolerance: float) -> None:
    """Adds the trace of each result and its summary to a report."""
    report.figure(
        figures.trace({label: result.trace for label, result in results.items()}, tolerance),
        "Violation of the clean estimates, and the share of feasible ones, over the steps. A "
        "projection after the last step is not shown.",
    )
    for result in results.values():
        report.code(result.summary())
