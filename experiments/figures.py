"""Figures, from records alone."""

__all__ = ["FIGURES"]

from collections.abc import Callable, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .records import Record
from .tables import means


def minimizers(rows: Sequence[Record]) -> Figure:
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


FIGURES: dict[str, Callable[[Sequence[Record]], Figure]] = {"minimizers": minimizers}
