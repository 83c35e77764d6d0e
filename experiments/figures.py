"""Figures, from records alone."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from feasibly import figures

from . import paper, tables
from .records import BASE, DEFAULT, PRIOR, TRUTH, Record, same_references, unpack
from .tables import means


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: it would pick a display backend
    return figure


def frontier(rows: Sequence[Record]) -> Figure:
    """Quality against cost: the share that is feasible and on-manifold and the k-NN rate against
    network evaluations."""
    table = means(rows)
    figure = _figure(11, 5)
    left, right = figure.subplots(1, 2)
    truth = next(row for row in table if "forward" not in row)
    samplers = [row for row in table if "forward" in row]
    panels = ((left, "joint", "feasible and on-manifold"), (right, "knn", "k-NN rate"))
    for ax, key, name in panels:
        for i, row in enumerate(samplers):
            evaluations = row["member_forward"] + row["member_backward"]
            marker = "*" if row["default"] else "osD^vPX"[i % 7]
            size = 180 if row["default"] else 40
            style = {"s": size, "marker": marker, "color": f"C{i % 10}", "label": row["label"]}
            ax.scatter(evaluations, row[key], **style)
        ax.axhline(truth[key], color="black", linewidth=0.8, linestyle=":")
        ax.set(xscale="log", xlabel="network evaluations per member")
        ax.set_ylabel(name)
        ax.minorticks_off()  # their labels overlap
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(ScalarFormatter())
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=7)
    return figure


def work(rows: Sequence[Record]) -> Figure:
    """The distance of each method's ensembles from the exact distribution against the work of a
    member, one panel a problem. A star is the default with no option set, a diamond `fast`. ECI is
    dashed: it is PCFM where constraints are linear."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    labels = [row["label"] for row in rows if not row["label"].startswith(DEFAULT)]
    figure = _figure(11, 3.1 * math.ceil(len(cases) / 3))
    axes = figure.subplots(math.ceil(len(cases) / 3), 3, squeeze=False).flatten()
    for ax, case in zip(axes, cases, strict=True):
        for i, label in enumerate((DEFAULT, *dict.fromkeys(labels))):
            group = [row for row in rows if (row["case"], row["label"]) == (case, label)]
            group = sorted((r for r in group if r["budget"]), key=lambda r: r["budget"])
            line = [[row[key] for row in group] for key in ("work", "ratio")]
            style = {"color": f"C{i}", "marker": "o", "markersize": 3, "label": label}
            ax.plot(*line, "--" if label == "ECI" else "-", **style)
        for row in (row for row in rows if row["case"] == case and row["budget"] is None):
            marker, name = ("*", "no option") if row["label"] == DEFAULT else ("D", "fast")
            style = {"s": 130 if marker == "*" else 40, "marker": marker, "zorder": 3}
            ax.scatter(row["work"], row["ratio"], color="black", label=name, **style)
        ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
        ax.set(xscale="log", yscale="log", title=case)
        _in_numbers(ax.yaxis)
    axes[0].set(ylabel="distance")
    for ax in axes[-3:]:
        ax.set(xlabel="work of a member")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", fontsize=8)
    return figure


def _in_numbers(axis: Axis) -> None:
    """Labels a logarithmic axis by numbers, and not by powers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def convergence(rows: Sequence[Record], numbers: Sequence[int]) -> Figure:
    """The distance from the exact distribution, and the error of modes' weights, against the
    evaluations of a sample: each problem with every number of particles, means over seeds, and in
    black the medians over problems. A star is the library's own choice, in the median."""
    figure = _figure(9, 3.6)
    names = list(dict.fromkeys(row["posterior"] for row in rows))
    for ax, key in zip(figure.subplots(1, 2), ("ratio", "weight_error"), strict=True):
        lines = []
        for name in names:
            group = [row for row in rows if row["posterior"] == name and key in row]
            each = [[row for row in group if row["particles"] == n] for n in (*numbers, None)]
            if not all(each):
                continue
            line = [
                [np.mean([row[k] for row in some]) for some in each] for k in ("evaluations", key)
            ]
            ax.plot(*(part[:-1] for part in line), color="C0", alpha=0.35, linewidth=1)
            lines.append(line)
        middle = np.median(lines, axis=0)
        ax.plot(*(part[:-1] for part in middle), "o-", color="black")
        ax.plot(*(part[-1] for part in middle), "*", color="black", markersize=12)
        ax.set(xscale="log", yscale="log", xlabel="evaluations of a sample")
        _in_numbers(ax.xaxis)
        _in_numbers(ax.yaxis)
    figure.axes[0].axhline(1, color="black", linewidth=0.8, linestyle=":")
    figure.axes[0].set(ylabel="distance")
    figure.axes[1].set(ylabel="error of a mode's weight")
    return figure


def strips(rows: Sequence[Record]) -> Figure:
    """The paper's panels for Data2D: violation and k-NN rate of each label, one point a setting.
    Labels are in the order of the share that is feasible and on-manifold, with the truth last.

    Violations are medians and the 90 % quantiles; values below 1e-12
    and above 10, members that are not finite included, are drawn there.
    """
    table = sorted(means(rows), key=lambda row: (row["label"] == TRUTH, -row["joint"]))
    labels = [row["label"] for row in table]
    figure = _figure(11, 1.5 + 0.28 * len(labels))
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
    left.axvline(paper.TOLERANCE["data2d"], color="red", linewidth=1)
    right.axvline(0.5, color="red", linewidth=1, linestyle=":")
    left.set(xscale="log", xlabel="violation: median (dot) and 90 % quantile (bar)")
    right.set(xlabel="k-NN cross-edge rate, and mean", xlim=(0, 0.55))
    left.set_yticks(range(len(labels)), labels)
    left.invert_yaxis()
    return figure


def _strip(ax: Axes, values: Sequence[float], y: int, colour: str, marker: str) -> None:
    jitter = [y + 0.25 * (i % 5 - 2) / 2 for i in range(len(values))]
    ax.scatter(values, jitter, s=14, marker=marker, color=colour, alpha=0.6)


def distances(rows: Sequence[Record], panels: Mapping[str, str], labels: Sequence[str]) -> Figure:
    """How far from each exact posterior an ensemble is: the sliced Wasserstein distance of each
    method, one point a problem, in multiples of that between two samples of the truth.
    """
    kinds = dict(tables.parts(rows))
    lines, columns = -(-len(panels) // 3), 3
    figure = _figure(11, 0.8 + lines * (0.6 + 0.22 * len(labels)))
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for ax in axes.flatten()[len(panels) :]:
        ax.set_axis_off()
    for ax, (name, title) in zip(axes.flatten(), panels.items(), strict=False):
        floor = {row["number"]: row["sliced"] for row in kinds[name] if row["label"] == TRUTH}
        for y, label in enumerate(labels):
            group = [row for row in kinds[name] if row["label"] == label and "sliced" in row]
            values = [row["sliced"] / floor[row["number"]] for row in group]
            _strip(ax, values, y, f"C{y % 10}", "o")
        ax.axvline(1, color="black", linewidth=0.6)
        ax.set(xscale="log", title=title)
        ax.minorticks_off()
        ax.set_xticks(ticks := [1, 2, 5, 10, 20, 50], ticks)
        ax.set_xlim(0.6, 70)
        ax.set_yticks(range(len(labels)), labels, fontsize=9)
    axes[0][0].invert_yaxis()
    figure.supxlabel("sliced Wasserstein distance / that of the truth to itself")
    return figure


def defaults(rows: Sequence[Record]) -> Figure:
    """How far from the truth each label is, over its problems from the best to the worst. Open
    circles are problems of which the run said something."""
    figure = _figure(9, 5)
    ax = figure.subplots()
    for i, label in enumerate(dict.fromkeys(row["label"] for row in rows)):
        group = [row for row in rows if row["label"] == label and "ratio" in row]
        if label == TRUTH or not group:
            continue
        group.sort(key=lambda row: row["ratio"])
        share = [(k + 0.5) / len(group) for k in range(len(group))]
        colour = "black" if group[0]["default"] else f"C{i}"
        name = f"{label} ({len(group)} problems)"
        over = 4 if group[0]["default"] else 3
        ratios = [row["ratio"] for row in group]
        ax.plot(share, ratios, color=colour, linewidth=1.2, label=name, zorder=over)
        for u, row in zip(share, group, strict=True):
            fill = "white" if row["said"] else colour
            ax.plot(u, row["ratio"], "o", c=colour, mfc=fill, markersize=4, zorder=over)
    for level, shade in ((1.0, "-"), (1.5, "--"), (3.0, ":")):
        ax.axhline(level, color="grey", linewidth=0.8, linestyle=shade, zorder=0)
    ax.set(yscale="log", xlabel="share of the problems (open: the run warned)", xlim=(0, 1))
    ax.set_ylabel("sliced Wasserstein distance / that of the truth to itself")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.minorticks_off()
    ax.legend(fontsize=8)
    return figure


def over_time(rows: Sequence[Record]) -> Figure:
    """The ensemble scores over the time of the system, a row for each kind of observation, on the
    references that all of its methods were run on. A label that had other references is left
    out."""
    rows = _alike(rows)
    labels = _labels(rows)
    kinds = list(dict.fromkeys(row["observation"] for row in rows))
    panels = {"RMSE": "mse", "skill": "mean_se", "spread": "variance", "CRPS": "crps"}
    figure = _figure(13, 3 * len(kinds) + 0.6)
    axes = figure.subplots(len(kinds), len(panels), squeeze=False, sharex=True)
    for kind, row in zip(kinds, axes, strict=True):
        references = _common(rows, kind)
        for ax, (title, key) in zip(row, panels.items(), strict=True):
            for i, label in enumerate(labels):
                mean = _mean(rows, kind, label, key, references)
                if mean:
                    curve = mean if key == "crps" else [value**0.5 for value in mean]
                    ax.plot(curve, **_line(i), label=label, linewidth=1.2)
            ax.set(title=f"{title}, {kind}", xlabel="frame")
            ax.set_ylim(bottom=0)
    _legend(figure)
    return figure


LEADING = (
    DEFAULT,
    BASE,
    "PPR, T = 512, 2 iterations",
    "MMPS",
    "DPS",
    "HDC",
    "post-hoc projection",
    PRIOR,
)
"""The labels that figures of the weather show, and no more, so that lines can be told apart."""

MAPPED = (DEFAULT, BASE, "post-hoc projection", PRIOR)
"""Those of which there are maps."""


def by_hour(rows: Sequence[Record]) -> Figure:
    """The CRPS of the northward wind and its spread over its skill, by hour, a column for each
    kind of observation."""
    rows = [row for row in tables.split(rows) if row["observation"].endswith("/v")]
    kinds = list(dict.fromkeys(row["observation"] for row in rows))
    figure = _figure(3 * len(kinds) + 0.5, 5.5)
    above, below = figure.subplots(2, len(kinds), squeeze=False, sharex=True)
    for kind, upper, lower in zip(kinds, above, below, strict=True):
        references = _common(rows, kind)
        for i, label in enumerate(LEADING):
            found = [r for r in rows if r["label"] == label and r["observation"] == kind]
            if not found:
                continue
            style = {"color": f"C{i}", "label": label, "linewidth": 1.2}
            if label == PRIOR:
                style |= {"color": "grey", "linestyle": "--"}
            upper.plot(_mean(rows, kind, label, "crps", references), **style)
            variance = _mean(rows, kind, label, "variance", references)
            skill = _mean(rows, kind, label, "mean_se", references)
            correction = 1 + 1 / found[0]["members"]
            ratio = [(correction * v / s) ** 0.5 for v, s in zip(variance, skill, strict=True)]
            lower.plot(ratio, **style)
        lower.axhline(1, color="black", linewidth=0.6)
        upper.set(title=kind.rpartition("/")[0], ylabel="CRPS of v (m/s)")
        upper.set_ylim(bottom=0, top=_top(upper))
        lower.set(xlabel="hour", ylabel="spread / skill of v", ylim=(0, 2))
    _legend(figure)
    return figure


def _alike(rows: Sequence[Record]) -> list[Record]:
    """The records of the labels that have the references of the first label."""
    groups = {row["label"]: [r for r in rows if r["label"] == row["label"]] for row in rows}
    first = next(iter(groups.values()))
    return [row for row in rows if same_references(groups[row["label"]], first)]


def _labels(rows: Sequence[Record]) -> list[str]:
    """The labels in the order of their first appearance, the default before all."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    return sorted(labels, key=lambda label: label != DEFAULT)


def _top(ax: Axes) -> float | None:
    """Where an axis ends: a third above the prior's score without an observation, if it is shown,
    so that one member off the data does not hide the rest; None for matplotlib's choice."""
    lines = ax.get_lines()
    prior = [np.max(line.get_ydata()) for line in lines if line.get_label() == PRIOR]
    return 4 / 3 * max(prior) if prior else None


def _legend(figure: Figure) -> None:
    """One legend for all panels, below them: not every panel has all lines."""
    lines = {str(line.get_label()): line for ax in figure.axes for line in ax.get_lines()}
    names = [name for name in lines if not name.startswith("_")]
    handles = [lines[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)


def _line(i: int) -> dict[str, str]:
    """How the line of the i-th label looks."""
    return {"linestyle": "-" if i < 10 else "--", "color": f"C{i % 10}"}


def _mean(
    rows: Sequence[Record], kind: str, label: str, key: str, references: set[int]
) -> list[float]:
    """The mean of a label's lists `key` over the references, place by place; empty if it has
    none."""
    group = [
        r[key]
        for r in rows
        if r["label"] == label and r["observation"] == kind and key in r
        if r["reference"] in references
    ]
    return [sum(values) / len(values) for values in zip(*group, strict=True)]


def _common(rows: Sequence[Record], kind: str) -> set[int]:
    """The references of a kind of observation that every label has scores for."""
    found: dict[str, set[int]] = {}
    for row in rows:
        if row["observation"] == kind and "mse" in row:
            found.setdefault(row["label"], set()).add(row["reference"])
    return set.intersection(*found.values()) if found else set()


def gallery(rows: Sequence[Record]) -> Figure:
    """One member of each method beside its reference, space to the right and time upward, of the
    first kind of observation. A label that had another reference is left out."""
    rows = [row for row in _alike(rows) if "picture" in row]
    rows = [row for row in rows if row["observation"] == rows[0]["observation"]]
    pictures = {row["label"]: row["picture_member"] for row in rows}
    panels = {"reference": rows[0]["picture"]}
    panels |= {label: pictures[label] for label in _labels(rows)}
    columns = 4
    lines = math.ceil(len(panels) / columns)
    figure = _figure(1.9 * columns, 2.2 * lines)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for ax in axes:
        ax.set_axis_off()
    for ax, (label, text) in zip(axes, panels.items(), strict=False):
        u = unpack(text, (-1,)).astype(float)
        u = u.reshape(math.isqrt(u.size), -1)
        ax.imshow(u, origin="lower", cmap="RdBu_r", vmin=-2.7, vmax=2.7)
        ax.set_title(textwrap.fill(label, 24), fontsize=8)
    return figure


def maps(rows: Sequence[Record]) -> Figure:
    """One member of each method below its reference, of which all fields at noon are observed: the
    wind v, hours as columns."""
    rows = [row for row in rows if "picture" in row and row["observation"] == "state"]
    pictures = {row["label"]: row["picture_member"] for row in rows}
    shown = {"reference": rows[0]["picture"]}
    shown |= {label: pictures[label] for label in MAPPED if label in pictures}
    shape, some = (len(tables.SHOWN), 32, 64), slice(None, None, 2)
    fields = {name: torch.tensor(unpack(text, shape)[some]) for name, text in shown.items()}
    return figures.maps(fields, tables.SHOWN[some], "northward wind v (m/s)")


def ranks(rows: Sequence[Record]) -> Figure:
    """Rank histograms of each observation and variable, on the references that all methods were
    run on: the density of the reference's rank among the members, 1 for a calibrated ensemble."""
    rows = [row for row in tables.split(rows) if "ranks" in row]
    labels = _labels(rows)
    kinds = list(dict.fromkeys(row["observation"] for row in rows))
    columns = len(tables.UNITS)
    figure = _figure(13, 2.8 * len(kinds) / columns + 0.8)
    axes = figure.subplots(len(kinds) // columns, columns, squeeze=False, sharex=True)
    for kind, ax in zip(kinds, axes.flatten(), strict=True):
        references = _common(rows, kind)
        for i, label in enumerate(labels):
            share = _mean(rows, kind, label, "ranks", references)
            if share:
                places = [(rank + 0.5) / len(share) for rank in range(len(share))]
                density = [value * len(share) for value in share]
                ax.plot(places, density, **_line(i), label=label)
        ax.axhline(1, color="black", linewidth=0.6)
        ax.set(title=kind, xlabel="rank of the reference / members", ylabel="density")
        ax.set_ylim(bottom=0)
    _legend(figure)
    return figure


def losses(log: Sequence[Record]) -> Figure:
    """A training's loss against its steps: in bands of noise, the lowest first, or as a whole."""
    figure = _figure(7, 4.5)
    ax = figure.subplots()
    steps, bands = (
        [row["step"] for row in log],
        list(zip(*(row["loss"] for row in log), strict=True)),
    )
    for i, band in enumerate(bands):
        share = i / max(1, len(bands) - 1)
        ax.plot(steps, band, color=(share, 0.3, 1 - share), label=f"band {i + 1}")
    ax.set(xscale="log", yscale="log", xlabel="step", ylabel="loss")
    if len(bands) > 1:
        ax.legend(fontsize=6, ncols=2, title="noise, lowest first")
    return figure


def bound(rows: Sequence[Record]) -> Figure:
    """The distance to the constrained marginal and its bound against the number of repeats."""
    sigmas = list(dict.fromkeys(row["sigma"] for row in rows))
    figure = _figure(3.2 * len(sigmas), 3.6)
    for ax, sigma in zip(figure.subplots(1, len(sigmas), squeeze=False)[0], sigmas, strict=True):
        group = [row for row in rows if row["sigma"] == sigma]
        column = {key: [row[key] for row in group] for key in group[0]}
        M, (L, *_) = column["repeats"], column["lipschitz"]
        ax.plot(M, column["bound"], "C3-", label="bound")
        ax.plot(M, column["mixing"], "C3:", label="its mixing term")
        ax.plot(M, column["bias"], "C3--", label="its bias term")
        ax.plot(M, column["exact"], "C0-", label="exact")
        ax.errorbar(M, column["measured"], column["error"], fmt="C0o", ms=4, label="measured")
        ax.set(xlabel="M", yscale="log", title=f"$\\sigma$ = {sigma:g}, L = {L:.2f}")
        ax.set_ylim(bottom=5e-3)  # the mixing term vanishes
        ax.set(ylabel="$W_2$ to the constrained marginal" if sigma == sigmas[0] else "")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    return figure


def lipschitz(rows: Sequence[Record]) -> Figure:
    """The largest Lipschitz constant over priors, constraints and members against the noise
    level, and the largest of the quantiles over members."""
    figure = _figure(8, 4.5)
    ax = figure.subplots()
    styles = {"max": "-", "q99": "--", "q90": "-.", "q50": ":"}
    for i, projection in enumerate(dict.fromkeys(row["projection"] for row in rows)):
        group = [row for row in rows if row["projection"] == projection]
        sigmas = sorted({row["sigma"] for row in group})
        for key, style in styles.items():
            worst = [max(row[key] for row in group if row["sigma"] == s) for s in sigmas]
            label = f"{projection}, {'max' if key == 'max' else f'{key[1:]} % quantile'}"
            ax.plot(sigmas, worst, style, color=f"C{i}", label=label)
    edge = sorted({(row["sigma"], 1 / row["alpha"]) for row in rows})
    ax.plot(*zip(*edge, strict=True), color="black", linewidth=0.8, label="$\\alpha_t L_t = 1$")
    ax.set(xscale="log", yscale="log", xlabel="$\\sigma_t$", ylabel="$L_t$, largest of all runs")
    figure.legend(loc="outside right upper", fontsize=7)
    return figure
