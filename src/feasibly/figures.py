"""Figures of samples and of runs. They return matplotlib figures, and write nothing."""

__all__ = [
    "coverage",
    "histogram",
    "maps",
    "marginals",
    "over_time",
    "plot",
    "points",
    "rank_histograms",
    "samples",
    "trace",
    "trajectories",
]

import contextlib
import io
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .arguments import typed, whole
from .constraints.base import Constraint
from .errors import ConstraintError, several
from .result import Result, Snapshot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"constrained": "tab:green", "unconditional": "tab:gray", "PPR": "tab:blue"}

SPREAD = "standard deviation"
"""The title of a panel that is not of the field itself."""

CHANNELS = 4
"""The most channels of a sequence, each of which is a panel of lines."""

LINES = 64
"""The most members that :func:`plot` draws as lines."""

WIDTH = 6.0
"""The width in inches of what is drawn for a page, whose text can be read on a phone."""

SLICES = 4
"""The most slices of a sample with more than two axes that :func:`plot` draws."""


def _figure(rows: int, columns: int, size: float) -> "tuple[Figure, list[list[Axes]]]":
    # no pyplot: it would pick a display backend and keep every figure alive
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"Figures need matplotlib, which cannot be imported ({error}); install it by `pip "
            "install matplotlib`."
        ) from error

    class Shown(Figure):
        def _repr_png_(self) -> bytes:  # notebooks know how to show pyplot's figures only
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    figure = Shown(figsize=(size * columns, size * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def _panels(count: int, most: int, size: float) -> "tuple[Figure, list[Axes]]":
    """Returns a figure with a number of panels, at most so many a row."""
    columns = min(most, count)
    figure, axes = _figure(math.ceil(count / columns), columns, size)
    panels = [ax for row in axes for ax in row]
    for ax in panels[count:]:
        ax.set_axis_off()
    return figure, panels[:count]


@typed
def plot(result: Result, constraint: Constraint | None = None, members: int = 4) -> "Figure":
    """Draws an overview of an ensemble, by the shape of a sample.

    Points in the plane are drawn as such, numbers as a histogram, and sequences, of up to four
    channels, as lines with their mean and the range from 5 % to 95 %. Fields are drawn as maps:
    the first few samples, the mean and the spread. With more axes, each row shows one slice along
    the first ones. Samples that failed are left out.

    Arguments:
        result: The ensemble.
        constraint: The constraint. Of points, its zero set is drawn where it is one curve.
        members: The number of members drawn as maps.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If no sample is finite, or `members` is no whole number from 1.

    Example:
        >>> method = feasibly.samplers.PostHoc(steps=8)
        >>> result = feasibly.sample(denoiser, circle, 8, (2,), method=method, monitor=False)
        >>> feasibly.plot(result, circle).savefig(folder / "overview.png")
    """
    members = whole("members", members, 1, of="plot")
    finite = result.finite
    if not finite.any():
        raise ValueError("plot(result) has nothing to draw: no sample is finite.")
    feasible = result.feasible[finite].cpu()
    names = [
        f"sample {i}" for i, kept in zip(result.members, finite.tolist(), strict=True) if kept
    ]
    title = several(len(result.members), "sample")
    if math.isfinite(result.tolerance):  # else there is no constraint, or all is seen with noise
        title = f"{int(result.feasible.sum())} of {title} feasible"
        names = [n if ok else f"{n}, infeasible" for n, ok in zip(names, feasible, strict=True)]
    figure = samples(result.samples[finite], constraint, names[:members], feasible)
    figure.suptitle(title, fontsize=10)
    return figure


def samples(
    x: Tensor,
    constraint: Constraint | None = None,
    names: Sequence[str] = (),
    feasible: Tensor | None = None,
) -> "Figure":
    r"""Draws samples by their shape, as :func:`plot` does.

    Arguments:
        x: The samples, which are finite, with shape (B, \*).
        constraint: The constraint, whose zero set is drawn among points; None for none.
        names: What to call the first of them, of which maps are drawn; 4 by their numbers if there
            are none.
        feasible: Which of them are feasible, with shape (B); None for all.
    """
    shape, like, x = tuple(x.shape[1:]), x, x.detach().double().cpu()
    if shape == (2,):
        feasible = torch.ones(len(x), dtype=torch.bool) if feasible is None else feasible
        return _plane(x, feasible, constraint, like)
    if math.prod(shape) == 1:
        figure, ((ax,),) = _figure(1, 1, size=4.5)
        ax.hist(x.flatten().numpy(), bins=40, color="tab:blue")
        ax.set(xlabel="value", ylabel="members")
        return figure
    if len(shape) == 1:
        return _lines(x[:, None])
    if len(shape) == 2 and min(shape) <= CHANNELS:
        return _lines(x if shape[0] <= CHANNELS else x.mT)
    return _maps_of_members(x, names or [f"sample {i}" for i in range(min(4, len(x)))])


def _plane(x: Tensor, feasible: Tensor, constraint: Constraint | None, like: Tensor) -> "Figure":
    figure, ((ax,),) = _figure(1, 1, size=4.5)
    reach = 1.1 * x.abs().max().clamp_min(1e-12).item()
    if constraint is not None:
        with contextlib.suppress(ConstraintError):  # it is another for each member
            _zero_set(ax, constraint, reach, like=like)
    for kind, colour, label in ((feasible, "tab:blue", ""), (~feasible, "tab:red", "infeasible")):
        if kind.any():
            ax.scatter(*x[kind].T.numpy(), s=6, linewidths=0, color=colour, label=label)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect=1)
    if not feasible.all():
        ax.legend(fontsize=8)
    return figure


def _lines(x: Tensor) -> "Figure":
    """Draws sequences of a few channels, with shape (B, C, L), a panel for each channel."""
    figure, (axes,) = _figure(1, x.shape[1], size=5)
    figure.set_size_inches(8 if x.shape[1] == 1 else 4 * x.shape[1], 4)
    place = range(x.shape[2])
    for k, ax in enumerate(axes):
        u = x[:, k]
        low, high = np.quantile(u.numpy(), [0.05, 0.95], axis=0)  # torch's takes 2^24 at most
        ax.fill_between(place, low, high, color="0.85", zorder=0, label="5 % to 95 %")
        for line in u[:LINES].numpy():
            ax.plot(place, line, color="tab:blue", linewidth=0.6, alpha=0.4)
        ax.plot(place, u.mean(dim=0).numpy(), color="black", linewidth=1.5, label="mean")
        ax.set(xlabel="position", ylabel="value" if x.shape[1] == 1 else f"channel {k}")
    axes[0].legend(fontsize=8)
    return figure


def _maps_of_members(x: Tensor, names: Sequence[str]) -> "Figure":
    """Draws members, the mean and the spread of slices, all but the spread on one scale."""
    leading = x.shape[1:-2]
    flat = x.flatten(1, -3) if leading else x[:, None]
    count = min(SLICES, flat.shape[1])
    slices = torch.linspace(0, flat.shape[1] - 1, count).round().long().tolist()
    columns, tall = len(names) + 2, min(1.5, x.shape[-2] / x.shape[-1])
    figure, axes = _figure(count, columns, size=2.4)
    figure.set_size_inches(2.4 * columns, count * (2.1 * tall + 0.3) + 0.5)
    for k, row in zip(slices, axes, strict=True):
        field = flat[:, k]
        spread = field.std(dim=0, correction=0)
        shown = (*field[: len(names)], field.mean(dim=0))
        largest = max(float(u.abs().max()) for u in shown) or 1.0
        for ax, u in zip(row, shown, strict=False):
            drawn = ax.imshow(
                u.numpy(), origin="lower", cmap="RdBu_r", vmin=-largest, vmax=largest
            )
        figure.colorbar(drawn, ax=row[:-1], shrink=0.8)
        figure.colorbar(row[-1].imshow(spread.numpy(), origin="lower"), ax=row[-1], shrink=0.8)
        for ax, name in zip(row, (*names, "mean", "spread"), strict=True):
            ax.set(xticks=[], yticks=[])
            if row is axes[0]:
                ax.set_title(name, fontsize=9)
        if leading:
            place = torch.unravel_index(torch.tensor(k), leading)
            row[0].set_ylabel(f"[{', '.join(str(int(i)) for i in place)}]", fontsize=9)
    return figure


def marginals(
    states: Mapping[str, Sequence[Tensor]], sigmas: Sequence[float], constraint: Constraint
) -> "Figure":
    r"""Draws planar states at several noise levels, like the paper's Figure 1.

    Arguments:
        states: For each row, its name and its states, each with shape :math:`(N, 2)`.
        sigmas: The noise level of each column.
        constraint: The constraint, whose zero set is drawn where it is one curve in the plane.
    """
    figure, axes = _figure(len(states), len(sigmas), size=2.2)
    for row, (name, columns) in zip(axes, states.items(), strict=True):
        for ax, sigma, x in zip(row, sigmas, columns, strict=True):
            _scatter(ax, x, constraint, COLOURS.get(name, "tab:red"), 1.9 + 2.5 * sigma)
            if row is axes[0]:
                ax.set_title(rf"$\sigma = {sigma:.2g}$", fontsize=10)
        row[0].set_ylabel(name)
    return figure


def points(samples: Mapping[str, Tensor], constraint: Constraint) -> "Figure":
    """Draws planar samples, each with shape (N, 2), a panel each, with the constraint."""
    figure, (axes,) = _figure(1, len(samples), size=WIDTH / max(2, len(samples)))
    for ax, (name, x) in zip(axes, samples.items(), strict=True):
        _scatter(ax, x, constraint, "tab:blue", 2.1)
        ax.set_title(name, fontsize=9)
    return figure


def _scatter(ax: "Axes", x: Tensor, constraint: Constraint, colour: str, reach: float) -> None:
    _zero_set(ax, constraint)
    ax.scatter(*x.T.cpu(), s=1.5, linewidths=0, color=colour)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect=1)


@torch.no_grad()
def _zero_set(
    ax: "Axes",
    constraint: Constraint,
    reach: float = 2.1,
    n: int = 300,
    like: Tensor | None = None,
) -> None:
    """Draws the curve where the constraint holds, near the data; it is evaluated in the type and
    the place of `like`."""
    line = torch.linspace(-reach, reach, n)
    grid = torch.cartesian_prod(line, line)
    grid = grid if like is None else grid.to(like)
    r = torch.cat([constraint.residual(part) for part in grid.split(n * n // 10)]).cpu()
    if r.shape[1] == 1 and r.min() <= 0 <= r.max():
        r = r.reshape(n, n).T
        ax.contour(line, line, r, levels=[0.0], colors="black", linewidths=0.5, alpha=0.7)


def trace(runs: Mapping[str, Sequence[Snapshot]], tolerance: float) -> "Figure":
    """Draws how large residuals of the clean estimates are in units of their limit, from the
    median to the largest, and the feasible share, against the noise level, for the first attempt
    of each run, over all of its chunks."""
    figure, ((left, right),) = _figure(1, 2, size=WIDTH / 2)
    for name, snapshots in runs.items():
        steps = by_level(snapshots)
        chunks, sigma = list(steps.values()), list(steps)
        if not any(math.isnan(s.median) for chunk in chunks for s in chunk):  # else no constraint
            median = [statistics.median(s.median for s in chunk) for chunk in chunks]
            worst = [max(s.worst for s in chunk) for chunk in chunks]
            low, high = (np.sqrt(np.divide(c, tolerance)) for c in (median, worst))
            (line,) = left.plot(sigma, low, ".-", label=name)
            left.fill_between(sigma, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        share = [
            100 * sum(s.feasible * s.members for s in chunk) / sum(s.members for s in chunk)
            for chunk in chunks
        ]
        right.plot(sigma, share, ".-", label=name)
    if math.isfinite(tolerance):
        left.axhline(1, color="tab:red", linewidth=0.8, label="limit")
    left.set(xscale="log", yscale="log", xlabel=r"noise level $\sigma$", ylabel="residual / limit")
    right.set(xscale="log", xlabel=r"noise level $\sigma$", ylabel="feasible (%)", ylim=(0, 102))
    for ax in (left, right):
        ax.invert_xaxis()
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=8)
    return figure


def by_level(snapshots: Sequence[Snapshot]) -> dict[float, list[Snapshot]]:
    """Returns the snapshots of a run's first attempt at each noise level, one a chunk."""
    steps: dict[float, list[Snapshot]] = {}
    for s in snapshots:
        if s.attempt == 0:
            steps.setdefault(s.sigma, []).append(s)
    return steps


def histogram(
    sizes: Mapping[str, Tensor], limit: float = 1.0, quantity: str = "violation"
) -> "Figure":
    """Draws how the samples' violations, or what else has a limit, are distributed, on a
    logarithmic axis."""
    figure, ((ax,),) = _figure(1, 1, size=WIDTH)
    figure.set_size_inches(WIDTH, WIDTH / 2)
    logs = {name: c[c.isfinite()].clamp_min(1e-16).log10().tolist() for name, c in sizes.items()}
    ax.hist(list(logs.values()), bins=40, histtype="step", label=list(logs))
    ax.axvline(math.log10(limit), color="tab:red", linewidth=0.8, label="limit")
    ax.set(xlabel=rf"$\log_{{10}}$ ({quantity})", ylabel="samples")
    ax.legend(fontsize=8)
    return figure


def trajectories(
    fields: Mapping[str, Tensor],
    observed: Sequence[int] = (),
    stations: Tensor | None = None,
    label: str = "",
) -> "Figure":
    """Draws trajectories of a field in one space dimension, or maps, each with shape (T, X), two
    a row, with one colour bar. :data:`SPREAD` has a scale of its own.

    Arguments:
        fields: What is drawn, by its title; the first sets the scale of all.
        observed: Frames to mark.
        stations: Stations to mark, by their two indices, with shape (N, 2).
        label: What is drawn, with its units.
    """
    figure, panels = _panels(len(fields), 2, size=WIDTH / 2)
    largest = next(iter(fields.values())).abs().max().item()
    for ax, (name, u) in zip(panels, fields.items(), strict=True):
        if name == SPREAD:
            own = ax.imshow(u.cpu().numpy(), origin="lower", vmin=0)
            figure.colorbar(own, ax=ax, shrink=0.8)
        else:
            drawn = ax.imshow(
                u.cpu().numpy(), origin="lower", cmap="RdBu_r", vmin=-largest, vmax=largest
            )
        for frame in observed:
            ax.axhline(frame, color="black", linewidth=0.8, linestyle=":")
        if stations is not None:
            ax.plot(stations[:, 1].cpu(), stations[:, 0].cpu(), "k.", markersize=4)
        ax.set(xticks=[], yticks=[])
        ax.set_title(name, fontsize=9)
    bar = figure.colorbar(drawn, ax=panels, location="bottom", aspect=40)
    bar.set_label(label, fontsize=9)
    return figure


def maps(
    fields: Mapping[str, Tensor],
    hours: Sequence[int],
    label: str,
    observed: Mapping[int, Tensor] | None = None,
) -> "Figure":
    """Draws fields on the sphere, longitude to the right and latitude upward.

    Arguments:
        fields: For each row, its title and its fields at some hours, with shape (hours, lat, lon).
            Rows go from south to north.
        hours: The hours, one a column.
        label: What is drawn, with its units.
        observed: For hours at which points are observed, these as a mask with shape (lat, lon);
            they are marked in the first row.
    """
    observed = observed or {}
    figure, axes = _figure(len(fields), len(hours), size=2.4)
    figure.set_size_inches(2.6 * len(hours), 1.45 * len(fields) + 0.5)
    largest = next(iter(fields.values())).abs().max().item()
    signed = any((x < 0).any() for x in fields.values())
    for i, (row, (name, x)) in enumerate(zip(axes, fields.items(), strict=True)):
        for ax, hour, field in zip(row, hours, x.cpu().numpy(), strict=True):
            drawn = ax.imshow(
                field,
                origin="lower",
                extent=(0, 360, -90, 90),
                cmap="RdBu_r" if signed else "viridis",
                vmin=-largest if signed else 0,
                vmax=largest,
            )
            ax.set(xticks=[], yticks=[])
            if i == 0:
                ax.set_title(f"hour {hour}", fontsize=9)
            if i == 0 and hour in observed:
                mask = observed[hour].cpu()
                lat, lon = ((mask.nonzero() + 0.5) / torch.tensor(mask.shape)).numpy().T
                ax.plot(360 * lon, 180 * lat - 90, "k.", markersize=1)
            if i == len(axes) - 1:
                ax.set(xticks=[0, 180, 360])
                ax.set_xlabel("longitude (°)", fontsize=8)
        row[0].set(yticks=[-60, 0, 60])
        row[0].set_ylabel(textwrap.fill(name, 18) + "\nlatitude (°)", fontsize=7)
    figure.colorbar(drawn, ax=[ax for row in axes for ax in row], label=label, aspect=40)
    return figure


def over_time(
    curves: Mapping[str, Tensor],
    observed: Sequence[int] = (),
    unit: str = "frame",
    label: str = "",
) -> "Figure":
    """Draws scores, each with shape (T), against the time of the system, in some unit, and marks
    observed frames; `label` is what the scores are, with their units."""
    figure, ((ax,),) = _figure(1, 1, size=5)
    for frame in observed:
        ax.axvline(frame, color="black", linewidth=0.8, linestyle=":")
    for name, values in curves.items():
        ax.plot(values.cpu().numpy(), label=name)
    ax.set(xlabel=unit, ylabel=label, ylim=(0, None))
    ax.legend(fontsize=8)
    return figure


def rank_histograms(ranks: Mapping[str, Tensor], members: int, most: int = 6) -> "Figure":
    """Draws how often a truth has each rank among its members, for the least even statistics.

    Arguments:
        ranks: For each statistic, the ranks from 0 to `members`, with shape (N).
        members: The number of members of a truth.
        most: The most statistics to draw.
    """
    counts = {
        name: torch.bincount(rank.long().cpu(), minlength=members + 1).double()
        for name, rank in ranks.items()
    }
    uneven = sorted(counts, key=lambda name: -float((counts[name] - counts[name].mean()).norm()))
    names = uneven[:most]
    figure, panels = _panels(len(names), 3, size=2.8)
    for ax, name in zip(panels, names, strict=True):
        count = counts[name]
        expected = float(count.mean())
        spread = math.sqrt(expected * (1 - 1 / len(count)))
        ax.bar(range(len(count)), count.tolist(), color="tab:blue")
        ax.axhspan(max(0.0, expected - 2 * spread), expected + 2 * spread, color="0.85", zorder=0)
        ax.axhline(expected, color="black", linewidth=0.8)
        ax.set_title(textwrap.fill(name, 30), fontsize=9)
        ax.set(xlabel="rank", ylabel="truths")
    return figure


def coverage(covered: Mapping[str, Sequence[float]]) -> "Figure":
    """Draws the share of truths in regions against the share that they should hold, which goes
    from 0 to 1 in even steps."""
    figure, ((ax,),) = _figure(1, 1, size=3.5)
    for name, shares in covered.items():
        expected = torch.linspace(0, 1, len(shares)).tolist()
        ax.plot(expected, list(shares), marker="o", markersize=3, label=name)
    ax.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    ax.set(xlabel="share that a region should hold", ylabel="share of truths in it", aspect=1)
    ax.legend(fontsize=8)
    return figure
