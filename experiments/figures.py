"""Figures, from records alone."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from feasibly import figures

from . import paper, tables
from .records import BASE, DEFAULT, PRIOR, TRUTH, Record, grouped, same_references, unpack
from .tables import means
from .tasks import sbi, sst
from .tasks.arm import ABREAST, OBSTACLES, RADIUS, SHAPE, skeleton
from .tasks.molecule import BONDS, ELEMENTS, PSI, dihedral


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: it would pick a display backend
    return figure


def _in_numbers(*axes: Axis) -> None:
    """Labels logarithmic axes by numbers, and not by powers."""
    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, place: Any = "outside lower center", columns: int = 4) -> None:
    """One legend for all panels: not every panel has all lines."""
    lines: dict[str, Any] = {}
    for ax in figure.axes:
        lines |= {str(name): handle for handle, name in zip(*ax.get_legend_handles_labels())}  # noqa: B905
    style: dict[str, Any] = {"ncols": columns, "fontsize": 8}
    handles: list[Any] = list(lines.values())
    figure.legend(handles, list(lines), loc=place, **style)


def frontier(rows: Sequence[Record]) -> Figure:
    """Quality against cost: the share that is feasible and on-manifold and the k-NN rate against
    network evaluations."""
    table = means(rows)
    figure = _figure(11, 5)
    truth = next(row for row in table if "forward" not in row)
    samplers = [row for row in table if "forward" in row]
    panels = (("joint", "feasible and on-manifold"), ("knn", "k-NN rate"))
    for ax, (key, name) in zip(figure.subplots(1, 2), panels, strict=True):
        for i, row in enumerate(samplers):
            evaluations = row["member_forward"] + row["member_backward"]
            marker, size = ("*", 180) if row["default"] else ("osD^vPX"[i % 7], 40)
            style = {"s": size, "marker": marker, "color": f"C{i % 10}", "label": row["label"]}
            ax.scatter(evaluations, row[key], **style)
        ax.axhline(truth[key], color="black", linewidth=0.8, linestyle=":")
        ax.set(xscale="log", xlabel="network evaluations per member", ylabel=name)
        _in_numbers(ax.xaxis)
    _legend(figure, "outside right center", 1)
    return figure


def work(rows: Sequence[Record]) -> Figure:
    """The distance of each method's ensembles from the exact distribution against the work of a
    member, one panel a problem. A star is the default with no option set. ECI is
    dashed: it is PCFM where constraints are linear."""
    cases = grouped(rows, "case")
    labels = [row["label"] for row in rows if not row["label"].startswith(DEFAULT)]
    lines = math.ceil(len(cases) / 3)
    figure = _figure(11, 3.1 * lines)
    axes = figure.subplots(lines, 3, squeeze=False).flatten()
    for ax, ((case,), here) in zip(axes, cases.items(), strict=True):
        for i, label in enumerate((DEFAULT, *dict.fromkeys(labels))):
            group = [row for row in here if row["label"] == label and row["budget"]]
            group.sort(key=lambda row: row["budget"])
            line = [[row[key] for row in group] for key in ("work", "ratio")]
            style = {"color": f"C{i}", "marker": "o", "markersize": 3, "label": label}
            ax.plot(*line, "--" if label == "ECI" else "-", **style)
        for row in (row for row in here if row["budget"] is None):
            style = {"s": 130, "marker": "*", "zorder": 3, "label": "no option"}
            ax.scatter(row["work"], row["ratio"], color="black", **style)
        ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
        ax.set(xscale="log", yscale="log", title=case)
        _in_numbers(ax.yaxis)
    axes[0].set(ylabel="distance")
    for ax in axes[-3:]:
        ax.set(xlabel="work of a member")
    _legend(figure, "outside right center", 1)
    return figure


def convergence(rows: Sequence[Record], numbers: Sequence[int]) -> Figure:
    """The distance from the exact distribution, and the error of modes' weights, against the
    evaluations of a sample: each problem with every number of particles, means over seeds, and in
    black the medians over problems. A star is the library's own choice, in the median."""
    figure = _figure(9, 3.6)
    panels = {"ratio": "distance", "weight_error": "error of a mode's weight"}
    for ax, (key, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        lines = []
        for group in grouped([row for row in rows if key in row], "posterior").values():
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
        ax.set(xscale="log", yscale="log", xlabel="evaluations of a sample", ylabel=title)
        _in_numbers(ax.xaxis, ax.yaxis)
    figure.axes[0].axhline(1, color="black", linewidth=0.8, linestyle=":")
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

    Arguments:
        rows: The records.
        panels: For each posterior that is drawn, its title.
        labels: The methods that are drawn, from the top.
    """
    kinds = dict(tables.parts(rows))
    lines = math.ceil(len(panels) / 3)
    figure = _figure(11, 0.8 + lines * (0.6 + 0.22 * len(labels)))
    axes = figure.subplots(lines, 3, sharey=True, squeeze=False)
    for ax, (name, title) in zip(axes.flatten(), panels.items(), strict=True):
        floor = {row["number"]: row["sliced"] for row in kinds[name] if row["label"] == TRUTH}
        for y, label in enumerate(labels):
            group = [row for row in kinds[name] if row["label"] == label and "sliced" in row]
            values = [row["sliced"] / floor[row["number"]] for row in group]
            _strip(ax, values, y, f"C{y % 10}", "o")
        ax.axvline(1, color="black", linewidth=0.6)
        ax.set(xscale="log", title=title, xlim=(0.6, 70))
        _in_numbers(ax.xaxis)
        ax.set_yticks(range(len(labels)), labels, fontsize=9)
    axes[0][0].invert_yaxis()
    figure.supxlabel("sliced Wasserstein distance / that of two exact sample sets")
    return figure


def defaults(rows: Sequence[Record]) -> Figure:
    """How far from the truth each label is, over its problems from the best to the worst. Open
    circles are problems of which the run said something."""
    figure = _figure(9, 5)
    ax = figure.subplots()
    for i, ((label,), group) in enumerate(grouped(rows, "label").items()):
        group = sorted((r for r in group if "ratio" in r), key=lambda row: row["ratio"])
        if label == TRUTH or not group:
            continue
        colour, over = ("black", 4) if group[0]["default"] else (f"C{i}", 3)
        share = [(k + 0.5) / len(group) for k in range(len(group))]
        name = f"{label} ({len(group)} problems)"
        ratios = [row["ratio"] for row in group]
        ax.plot(share, ratios, color=colour, linewidth=1.2, label=name, zorder=over)
        for u, row in zip(share, group, strict=True):
            fill = "white" if row["said"] else colour
            ax.plot(u, row["ratio"], "o", c=colour, mfc=fill, markersize=4, zorder=over)
    for level, shade in ((1.0, "-"), (1.5, "--"), (3.0, ":")):
        ax.axhline(level, color="grey", linewidth=0.8, linestyle=shade, zorder=0)
    ax.set(yscale="log", xlabel="share of the problems (open: the run warned)", xlim=(0, 1))
    ax.set_ylabel("sliced Wasserstein distance / that of two exact sample sets")
    _in_numbers(ax.yaxis)
    ax.legend(fontsize=8)
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


def over_time(rows: Sequence[Record]) -> Figure:
    """The ensemble scores over the time of the system, a row for each kind of observation, on the
    references that all of its methods were run on. A label that had other references is left
    out."""
    rows = _alike(rows)
    kinds = grouped(rows, "observation")
    panels = {"RMSE": "mse", "skill": "mean_se", "spread": "variance", "CRPS": "crps"}
    figure = _figure(13, 3 * len(kinds) + 0.6)
    axes = figure.subplots(len(kinds), len(panels), squeeze=False, sharex=True)
    for ((kind,), here), line in zip(kinds.items(), axes, strict=True):
        for ax, (title, key) in zip(line, panels.items(), strict=True):
            for i, label in enumerate(_labels(rows)):
                mean = _mean(here, label, key)
                if len(mean):
                    curve = mean if key == "crps" else np.sqrt(mean)
                    ax.plot(curve, **_line(i), label=label, linewidth=1.2)
            ax.set(title=f"{title}, {kind}", xlabel="frame")
            ax.set_ylim(bottom=0)
    _legend(figure)
    return figure


def by_hour(rows: Sequence[Record]) -> Figure:
    """The CRPS of the northward wind and its spread over its skill, by hour, a row for each kind
    of observation. A left panel ends a third above the prior's own score, so that one
    member off the data does not hide the rest."""
    rows = [row for row in tables.split(rows) if row["observation"].endswith("/v")]
    kinds = grouped(rows, "observation")
    figure = _figure(8, 1.9 * len(kinds) + 0.8)
    axes = figure.subplots(len(kinds), 2, squeeze=False, sharex=True)
    for ((kind,), here), (left, right) in zip(kinds.items(), axes, strict=True):
        top = None
        for i, label in enumerate(LEADING):
            crps, variance, skill = (
                _mean(here, label, k) for k in ("crps", "variance", "mean_se")
            )
            if not len(crps):
                continue
            style = {"color": f"C{i}", "label": label, "linewidth": 1.2}
            if label == PRIOR:
                style |= {"color": "grey", "linestyle": "--"}
                top = 4 / 3 * crps.max()
            left.plot(crps, **style)
            (members,) = {row["members"] for row in here if row["label"] == label}
            right.plot(np.sqrt((1 + 1 / members) * variance / skill), **style)
        right.axhline(1, color="black", linewidth=0.6)
        left.set(title=kind.rpartition("/")[0], ylabel="CRPS of v (m/s)", ylim=(0, top))
        right.set(ylabel="spread / skill of v", ylim=(0, 2))
    for ax in axes[-1]:
        ax.set_xlabel("hour")
    _legend(figure)
    return figure


def ranks(rows: Sequence[Record]) -> Figure:
    """Rank histograms of each observation and variable, on the references that all methods were
    run on: the density of the reference's rank among the members, 1 for a calibrated ensemble."""
    rows = [row for row in tables.split(rows) if "ranks" in row]
    kinds, columns = grouped(rows, "observation"), len(tables.UNITS)
    figure = _figure(13, 2.8 * len(kinds) / columns + 0.8)
    axes = figure.subplots(len(kinds) // columns, columns, squeeze=False, sharex=True)
    for ((kind,), here), ax in zip(kinds.items(), axes.flatten(), strict=True):
        for i, label in enumerate(_labels(rows)):
            share = _mean(here, label, "ranks")
            if n := len(share):
                ax.plot((np.arange(n) + 0.5) / n, share * n, **_line(i), label=label)
        ax.axhline(1, color="black", linewidth=0.6)
        ax.set(title=kind, xlabel="rank of the reference / members", ylabel="density")
        ax.set_ylim(bottom=0)
    _legend(figure)
    return figure


def _alike(rows: Sequence[Record]) -> list[Record]:
    """The records of the labels that have the references of the first label."""
    groups = grouped(rows, "label")
    first = next(iter(groups.values()))
    return [row for row in rows if same_references(groups[row["label"],], first)]


def _labels(rows: Sequence[Record]) -> list[str]:
    """The labels in the order of their first appearance, the default before all."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    return sorted(labels, key=lambda label: label != DEFAULT)


def _line(i: int) -> dict[str, Any]:
    """How the line of the i-th label looks."""
    return {"linestyle": "-" if i < 10 else "--", "color": f"C{i % 10}"}


def _mean(rows: Sequence[Record], label: str, key: str) -> np.ndarray:
    """The mean of a label's lists `key`, place by place, over the references that every label of
    one kind of observation has scores for; empty if it has none."""
    scored = grouped([row for row in rows if "mse" in row], "label")
    if (label,) not in scored:
        return np.array([])
    known = [{row["reference"] for row in group} for group in scored.values()]
    shared = set.intersection(*known)
    return np.mean([r[key] for r in scored[label,] if r["reference"] in shared], axis=0)


def gallery(rows: Sequence[Record]) -> Figure:
    """One member of each method beside its reference, space to the right and time upward, of the
    first kind of observation. A label that had another reference is left out."""
    rows = [row for row in _alike(rows) if "picture" in row]
    rows = [row for row in rows if row["observation"] == rows[0]["observation"]]
    pictures = {row["label"]: row["picture_member"] for row in rows}
    panels = {"reference": rows[0]["picture"]}
    panels |= {label: pictures[label] for label in _labels(rows)}
    lines = math.ceil(len(panels) / 4)
    figure = _figure(1.9 * 4, 2.2 * lines)
    axes = figure.subplots(lines, 4, squeeze=False).flatten()
    for ax in axes:
        ax.set_axis_off()
    for ax, (label, text) in zip(axes, panels.items(), strict=False):
        _trajectory(ax, text)
        ax.set_title(textwrap.fill(label, 24), fontsize=8)
    return figure


def _trajectory(ax: Axes, text: str) -> int:
    """Draws a packed field, space to the right and time upward; returns its number of times."""
    u = unpack(text, (-1,)).astype(float)
    u = u.reshape(math.isqrt(u.size), -1)
    ax.imshow(u, origin="lower", cmap="RdBu_r", vmin=-2.7, vmax=2.7)
    return len(u)


def hero(rows: Sequence[Record]) -> Figure:
    """The truth, a sample that was projected at the end, and one of the default: space to the
    right, time upward, and the observed rows dotted."""
    rows = [row for row in rows if row["observation"] == "sine-3" and "picture" in row]
    pictures = {row["label"]: row["picture_member"] for row in rows}
    panels = {
        "truth": rows[0]["picture"],
        "projected at the end": pictures["post-hoc projection"],
        "feasibly": pictures[DEFAULT],
    }
    figure = _figure(7.6, 2.8)
    for ax, (label, text) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        last = _trajectory(ax, text) - 1
        for row in (0, last / 2, last):
            ax.axhline(row, color="k", ls=":", lw=0.8)
        ax.set_title(label, fontsize=10)
        ax.set_axis_off()
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


def losses(log: Sequence[Record]) -> Figure:
    """A training's loss against its steps: in bands of noise, the lowest first, or as a whole."""
    figure = _figure(7, 4.5)
    ax = figure.subplots()
    bands = list(zip(*(row["loss"] for row in log), strict=True))
    for i, band in enumerate(bands):
        share = i / max(1, len(bands) - 1)
        colour = (share, 0.3, 1 - share)
        ax.plot([row["step"] for row in log], band, color=colour, label=f"band {i + 1}")
    ax.set(xscale="log", yscale="log", xlabel="step", ylabel="loss")
    if len(bands) > 1:
        ax.legend(fontsize=6, ncols=2, title="noise, lowest first")
    return figure


def bound(rows: Sequence[Record]) -> Figure:
    """The distance to the constrained marginal and its bound against the number of repeats."""
    levels = grouped(rows, "sigma")
    figure = _figure(3.2 * len(levels), 3.6)
    axes = figure.subplots(1, len(levels), squeeze=False)[0]
    styles = {"bound": "C3-", "mixing": "C3:", "bias": "C3--", "exact": "C0-"}
    for ax, ((sigma,), group) in zip(axes, levels.items(), strict=True):
        column = {key: [row[key] for row in group] for key in group[0]}
        M, (L, *_) = column["repeats"], column["lipschitz"]
        for key, style in styles.items():
            name = f"its {key} term" if key in ("mixing", "bias") else key
            ax.plot(M, column[key], style, label=name)
        ax.errorbar(M, column["measured"], column["error"], fmt="C0o", ms=4, label="measured")
        ax.set(xlabel="M", yscale="log", title=f"$\\sigma$ = {sigma:g}, L = {L:.2f}")
        ax.set_ylim(bottom=5e-3)  # the mixing term vanishes
    axes[0].set(ylabel="$W_2$ to the constrained marginal")
    _legend(figure, columns=5)
    return figure


def lipschitz(rows: Sequence[Record]) -> Figure:
    """The largest Lipschitz constant over priors, constraints and members against the noise
    level, and the largest of the quantiles over members."""
    figure = _figure(8, 4.5)
    ax = figure.subplots()
    styles = {"max": "-", "q99": "--", "q90": "-.", "q50": ":"}
    for i, ((projection,), group) in enumerate(grouped(rows, "projection").items()):
        levels = sorted(grouped(group, "sigma").items())
        for key, style in styles.items():
            worst = [max(row[key] for row in here) for _, here in levels]
            label = f"{projection}, {'max' if key == 'max' else f'{key[1:]} % quantile'}"
            ax.plot([sigma for (sigma,), _ in levels], worst, style, color=f"C{i}", label=label)
    edge = sorted({(row["sigma"], 1 / row["alpha"]) for row in rows})
    ax.plot(*zip(*edge, strict=True), color="black", linewidth=0.8, label="$\\alpha_t L_t = 1$")
    ax.set(xscale="log", yscale="log", xlabel="$\\sigma_t$", ylabel="$L_t$, largest of all runs")
    figure.legend(loc="outside right upper", fontsize=7)
    return figure


LOOK = {"C": ("#555555", 0.04), "N": ("#3b6fd4", 0.038), "O": ("#d43b3b", 0.036)}
"""Of each element the colour and the radius, in nm."""


def molecule(rows: Sequence[Record]) -> Figure:
    """Above the histograms of psi, the frames' own in grey; below samples of the default whose
    bonds and phi are fixed."""
    rows = [row for row in rows if "psi" in row]
    cases = [case for (case,) in grouped(rows, "case") if "76" not in case]
    colours = {DEFAULT: "black", BASE: "C0", "post-hoc projection": "C1", PRIOR: "C2"}
    figure = _figure(11, 5.8)
    grid = figure.add_gridspec(2, 12, height_ratios=(1.25, 1))
    for i, case in enumerate(cases):
        ax = figure.add_subplot(grid[0, 4 * i : 4 * i + 4])
        known = {row["label"]: row["psi"] for row in rows if row["case"] == case}
        edges = np.linspace(-180, 180, len(known[TRUTH]) + 1)
        shares = {label: np.array(psi) / sum(psi) for label, psi in known.items()}
        ax.stairs(shares[TRUTH], edges, fill=True, color="0.82", label="frames")
        for label in (one for one in colours if one in shares):
            style: dict[str, Any] = {
                "color": colours[label],
                "linewidth": 1.8 if label == DEFAULT else 1.0,
            }
            ax.stairs(shares[label], edges, label=label, zorder=3, **style)
        ax.set(title=f"fixed: {case}", xlabel="psi (degrees)", xticks=range(-180, 181, 90))
    figure.axes[0].set(ylabel="share in 10 degrees")
    (row,) = (r for r in rows if r["label"] == DEFAULT and r["case"] == cases[-1])
    x = np.array(row["atoms"]).reshape(-1, 10, 3)
    psi = np.degrees(dihedral(torch.from_numpy(x), PSI).numpy())
    for i, wanted in enumerate((-30, 60, 120, 170)):
        k = np.abs((psi - wanted + 180) % 360 - 180).argmin()
        ax = figure.add_subplot(grid[1, 3 * i : 3 * i + 3])
        _sticks(ax, x[k])
        ax.set_title(f"a sample, psi = {psi[k]:.0f}", fontsize=10)
    _legend(figure, columns=5)
    return figure


def _sticks(ax: Axes, x: np.ndarray) -> None:
    """Draws a molecule as balls and sticks, seen from +z after two turns. A stick begins at the
    surface of its ball, so that depth alone orders what is drawn."""
    turn, tilt = np.radians((25, 55))
    about_z = [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    about_x = [[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]]
    x = x @ np.transpose(np.array(about_x) @ about_z)
    for pair in BONDS:
        middle = x[list(pair)].mean(axis=0)
        for k in pair:
            colour, radius = LOOK[ELEMENTS[k]]
            along = middle - x[k]
            start = x[k] + 0.9 * radius * along / np.linalg.norm(along)
            depth = 10 + (start[2] + middle[2]) / 2
            line = np.stack([start, middle])[:, :2].T
            ax.plot(*line, color=colour, linewidth=7, solid_capstyle="butt", zorder=depth)
    for place, element in zip(x, ELEMENTS, strict=True):
        colour, radius = LOOK[element]
        style: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.8}
        ax.add_patch(Circle(tuple(place[:2]), radius, zorder=10 + place[2], **style))
        light = tuple(place[:2] + radius * np.array([-0.35, 0.35]))
        shine: dict[str, Any] = {"color": "white", "alpha": 0.5, "linewidth": 0}
        ax.add_patch(Circle(light, 0.25 * radius, zorder=10 + place[2] + 1e-4, **shine))
    ax.set(aspect="equal", xlim=(-0.44, 0.38), ylim=(-0.2, 0.3))
    ax.axis("off")


def downscaled(rows: Sequence[Record]) -> Figure:
    """A window of sea-surface temperature, from the means over its blocks."""
    (text,) = (row["picture"] for row in rows if "picture" in row)
    truth, *samples, mean, spread = unpack(text, (5, *sst.SHAPE)).astype(float)
    coarse = sst.spread(sst.blocks(torch.from_numpy(truth)[None]))[0].numpy()
    panels = {
        "coarse means, given": coarse,
        "truth, held out": truth,
        "sample 1": samples[0],
        "sample 2": samples[1],
        "mean of 32 samples": mean,
        "spread: standard deviation": spread,
    }
    field = next(row["field"] for row in rows if "picture" in row)
    west, (dy, dx) = sst.PLACES[field % len(sst.PLACES)] * sst.STEP[1], sst.STEP
    north, east = sst.SOUTH + sst.SHAPE[0] * dy, west + sst.SHAPE[1] * dx
    extent = [(v - 360 if west > 180 else v) for v in (west - dx / 2, east - dx / 2)]
    extent += [sst.SOUTH - dy / 2, north - dy / 2]
    largest = np.abs(truth).max()
    figure = _figure(9, 5)
    axes = figure.subplots(3, 2, sharex=True, sharey=True)
    colours: dict[str, Any] = {}
    for ax, (title, x) in zip(axes.flat, panels.items(), strict=True):
        style = {"cmap": "RdYlBu_r", "vmin": -largest, "vmax": largest}
        if x is spread:
            style = {"cmap": "viridis"}
        drawn = ax.imshow(x, origin="lower", extent=extent, **style)
        colours["spread (K)" if x is spread else "anomaly (K)"] = drawn
        ax.set_title(title, fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("longitude (°E)")
    for ax in axes[:, 0]:
        ax.set_ylabel("latitude (°N)")
    for (label, drawn), some in zip(colours.items(), (axes[:2], axes[2:]), strict=True):
        figure.colorbar(drawn, ax=list(some.flat), label=label, aspect=20)
    return figure


def posteriors(records: Sequence[Record]) -> Figure:
    """Two parameters of the first observation of each task: the reference of sbibm, which must be
    installed, next to samples of the default."""
    shown = [row for row in records if "theta" in row]
    lines = math.ceil(len(shown) / 4)
    figure = _figure(9, 4.4 * lines)
    parts = figure.subfigures(lines, 1, squeeze=False)[:, 0]
    pairs = [part.subplots(2, 4) for part in parts]
    for column, row in zip(np.concatenate(pairs, axis=1).T, shown, strict=False):
        task = sbi.TASKS[row["task"]]
        first = 2 if row["task"] == "slcp" else 0  # of which there are four modes
        mine = unpack(row["theta"], (-1, task.parameters))
        reference = task.reference(row["observation"])[: len(mine)].numpy()
        for ax, theta, color in zip(column, (reference, mine), ("C7", "C0"), strict=True):
            ax.plot(*theta[:, first : first + 2].T, ".", ms=2, color=color, alpha=0.6)
            low, high = np.quantile(reference, [0.001, 0.999], axis=0)[:, first : first + 2]
            room = 0.15 * (high - low)
            ax.set_xlim(low[0] - room[0], high[0] + room[0])
            ax.set_ylim(low[1] - room[1], high[1] + room[1])
            ax.set_xticks([])
            ax.set_yticks([])
        column[0].set_title(row["task"].replace("_", " "), fontsize=9)
    for pair in pairs:
        pair[0, 0].set_ylabel("reference")
        pair[1, 0].set_ylabel("default")
    return figure


def arms(rows: Sequence[Record]) -> Figure:
    """Left: an arm along one path of the default on each side of the first obstacle, in space.
    Right: the ways of the hands from above, of each method."""
    known = {row["label"]: row for row in rows if row["task"] == "goal" and "picture" in row}
    paths = {k: torch.tensor(unpack(row["picture"], (-1, *SHAPE))) for k, row in known.items()}
    joints = {label: skeleton(q.double()).numpy() for label, q in paths.items()}
    ours, x = joints[DEFAULT], OBSTACLES[0, 0].item()
    figure = _figure(11, 5)
    parts: Any = figure.subfigures(1, 2, width_ratios=(1, 1.1))
    space: Any = parts[0].add_subplot(projection="3d")
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 25), np.linspace(0, np.pi, 13))
    ball = RADIUS * np.stack([np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v)])
    for center in OBSTACLES.numpy():
        space.plot_surface(*(ball + center[:, None, None]), color="tab:red", alpha=0.4)
    outside = ours[:, ABREAST, -1, 0] > x
    for which, color in ((outside, "tab:blue"), (~outside, "tab:orange")):
        for path in ours[which][:1]:
            for i in range(0, len(path), 3):
                bones = np.concatenate([np.zeros((1, 3)), path[i]])
                style = {"alpha": 0.2 + 0.7 * i / len(path), "linewidth": 2, "markersize": 3}
                space.plot(*bones.T, "o-", color=color, **style)
            space.plot(*path[:, -1].T, color=color, linewidth=3)
    space.plot(*ours[0, -1, -1], "k*", markersize=12, zorder=9)
    space.view_init(elev=30, azim=-20)
    space.set(xlim=(-0.05, 0.7), ylim=(-0.6, 0.6), zlim=(0, 0.6))
    space.set(xticks=[], yticks=[], zticks=[])
    space.set_box_aspect((0.75, 1.2, 0.6), zoom=1.35)
    panels = parts[1].subplots(-(-len(joints) // 2), 2).flatten()
    for ax in panels[len(joints) :]:
        ax.remove()
    for ax, (label, found) in zip(panels, joints.items(), strict=False):
        for path in found[:, :, -1]:
            color = "tab:blue" if path[ABREAST, 0] > x else "tab:orange"
            ax.plot(path[:, 1], path[:, 0], color=color, linewidth=0.7, alpha=0.8)
        for center in OBSTACLES.tolist():
            ax.add_patch(Circle((center[1], center[0]), RADIUS, color="tab:red", alpha=0.4))
        ax.plot(*ours[0, -1, -1, [1, 0]], "k*", markersize=9)
        name = f"{label}: {known[label]['both']:.0%} feasible"
        name = "data" if label == TRUTH else name
        ax.set_title(name, fontsize=9)
        ax.set(aspect=1, xlim=(-0.65, 0.65), ylim=(0.08, 0.72), xticks=[], yticks=[])
    return figure
