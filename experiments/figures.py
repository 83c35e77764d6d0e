"""Figures, from records alone."""

__all__ = ["FIGURES", "frontier", "strips"]

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .records import Record
from .tables import means

TOLERANCE = 4e-6
"""What Data2D counts as feasible (paper, Section 5)."""


def frontier(rows: Sequence[Record]) -> Figure:
    """Quality against cost: the joint share and the k-NN rate against network calls."""
    table = means(rows)
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    truth = next(row for row in table if "forward" not in row)
    samplers = [row for row in table if "forward" in row]
    for ax, key, name in ((left, "joint", "in C and S"), (right, "knn", "k-NN rate")):
        for i, row in enumerate(samplers):
            calls = row["member_forward"] + row["member_backward"]
            marker = "*" if row["default"] else "osD^vPX"[i % 7]
            size = 180 if row["default"] else 40
            colour = f"C{i % 10}"
            ax.scatter(calls, row[key], s=size, marker=marker, color=colour, label=row["label"])
        ax.axhline(truth[key], color="black", linewidth=0.8, linestyle=":")
        ax.set(xscale="log", xlabel="network calls a member (forward + backward)", ylabel=name)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=7)
    return figure


def strips(rows: Sequence[Record]) -> Figure:
    """The paper's panels for Data2D: violation and k-NN rate of each label, one point a setting.

    Violations are medians and the 90 % quantiles; values below 1e-12
    and above 10, members that are not finite included, are drawn there.
    """
    labels = list(dict.fromkeys(row["label"] for row in rows))
    figure = Figure(figsize=(11, 1.5 + 0.28 * len(labels)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for y, label in enumerate(labels):
        group = [row for row in rows if row["label"] == label]
        colour = "black" if "forward" not in group[0] else f"C{y % 10}"
        for key, marker in (("violation_median", "o"), ("violation_90", "|")):
            values = [min(max(row[key], 1e-12), 10.0) for row in group if key in row]
            _strip(left, values, y, colour, marker)
        knn = [row["knn"] for row in group]
        _strip(right, knn, y, colour, "o")
        right.plot([sum(knn) / len(knn)] * 2, [y - 0.35, y + 0.35], color=colour, linewidth=2)
    left.axvline(TOLERANCE, color="red", linewidth=1)
    right.axvline(0.5, color="red", linewidth=1, linestyle=":")
    left.set(xscale="log", xlabel="violation: median (dot) and 90 % quantile (bar)")
    right.set(xlabel="k-NN cross-edge rate, and mean", xlim=(0, 0.55))
    left.set_yticks(range(len(labels)), labels)
    left.invert_yaxis()
    return figure


def _strip(ax: Axes, values: Sequence[float], y: int, colour: str, marker: str) -> None:
    jitter = [y + 0.25 * (i % 5 - 2) / 2 for i in range(len(values))]
    ax.scatter(values, jitter, s=14, marker=marker, color=colour, alpha=0.6)


FIGURES: dict[str, Callable[[Sequence[Record]], Figure]] = {
    "minimizers": frontier,
    "baselines": strips,
    "ablation": strips,
    "projection-steps": strips,
    "optimizers": strips,
    "dps-pc": strips,
    "linear": strips,
}
