import io
import math
import sys

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure

import feasibly
from feasibly import Equality, figures
from feasibly.constraints import EachMember
from feasibly.network import Evaluations
from feasibly.result import Result, Snapshot

SIGMAS = (2.0, 0.5, 0.03)


def states(rows=("constrained", "PPR"), n=5):
    generator = torch.Generator().manual_seed(0)
    return {row: [torch.randn(n, 2, generator=generator) for _ in SIGMAS] for row in rows}


def line():
    """A set that changes when the axes are swapped."""
    return Equality(lambda x: x[:, :1] - 2 * x[:, 1:] + 0.3, tolerance=1e-6)


def snapshots(attempts=(0,), steps=4, **changes):
    values = {"members": 8, "steps": steps, "forward": 1, "backward": 1, "failed": 0, "seconds": 1}
    varying = {
        "median": lambda a, k: 10.0**-k,
        "worst": lambda a, k: 10.0 ** (1 - k),
        "feasible": lambda a, k: k / steps,
        "sigma": lambda a, k: 10.0 ** (1 - k) * (1 + a),
    } | changes
    return [
        Snapshot(attempt=a, step=k, **values, **{key: f(a, k) for key, f in varying.items()})
        for a in attempts
        for k in range(1, steps + 1)
    ]


def points(ax):
    (scatter,) = [c for c in ax.collections if isinstance(c, PathCollection)]
    return np.asarray(scatter.get_offsets())


def contours(ax):
    return [c for c in ax.collections if isinstance(c, ContourSet)]


def assert_saves(figure):
    assert isinstance(figure, Figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=30)
    assert buffer.getvalue().startswith(b"\x89PNG")


def test_marginals_shows_the_states_of_every_row_at_every_noise_level():
    given = states()
    figure = figures.marginals(given, SIGMAS, line())
    assert len(figure.axes) == len(given) * len(SIGMAS)
    columns = [x for row in given.values() for x in row]
    for ax, x in zip(figure.axes, columns, strict=True):
        np.testing.assert_array_equal(points(ax), x.numpy())
    names = [ax.get_ylabel() for ax in figure.axes]
    assert names == ["constrained", "", "", "PPR", "", ""]
    titles = [ax.get_title() for ax in figure.axes]
    assert all(f"{sigma:.2g}" in title for sigma, title in zip(SIGMAS, titles[:3], strict=True))
    assert_saves(figure)


def assert_draws(ax, sigma, median, worst, tolerance):
    """Residuals in units of their limit: a point for each median, and a band up to the worst."""
    line, limit = ax.get_lines()
    assert line.get_marker() == "."
    np.testing.assert_allclose(line.get_data(), (sigma, np.sqrt(np.divide(median, tolerance))))
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    for s, low, high in zip(sigma, median, worst, strict=True):
        heights = corners[corners[:, 0] == s, 1]
        np.testing.assert_allclose(
            [heights.min(), heights.max()], np.sqrt(np.divide([low, high], tolerance))
        )
    assert list(limit.get_ydata()) == [1, 1]


def test_trace_draws_the_first_attempt_only():
    run = snapshots(attempts=(0, 1, 2))
    left, right = figures.trace({"PPR": run}, tolerance=1e-3).axes
    sigma, median, worst = [1.0, 0.1, 0.01, 0.001], [0.1, 0.01, 1e-3, 1e-4], [1, 0.1, 0.01, 1e-3]
    assert_draws(left, sigma, median, worst, tolerance=1e-3)
    (share,) = right.get_lines()
    np.testing.assert_allclose(share.get_data(), (sigma, [25, 50, 75, 100]))


def test_trace_draws_chunks_as_one_run():
    chunks = [*snapshots(), *snapshots(median=lambda a, k: 1.0, worst=lambda a, k: 2.0)]
    left, right = figures.trace({"PPR": chunks}, tolerance=1e-3).axes
    sigma, median = [1.0, 0.1, 0.01, 0.001], [0.55, 0.505, 0.5005, 0.50005]
    assert_draws(left, sigma, median, [2.0] * 4, tolerance=1e-3)
    np.testing.assert_allclose(right.get_lines()[0].get_data(), (sigma, [25, 50, 75, 100]))


def test_trace_of_a_run_without_a_constraint_can_be_saved():
    def nan(a, k):
        return math.nan

    run = snapshots(median=nan, worst=nan, feasible=lambda a, k: 1.0)
    assert_saves(figures.trace({"ancestral": run}, tolerance=math.inf))


def test_histogram_counts_the_finite_members():
    c = torch.tensor([1e-9, 1e-8, 1e-8, 0.0, math.inf, math.nan, 0.5])
    figure = figures.histogram({"PPR": c}, 1e-6)
    (ax,) = figure.axes
    (outline,) = ax.patches
    height, edge = outline.get_xy()[:, 1], outline.get_xy()[:, 0]
    # the outline of a histogram visits every bin twice, at its height
    assert height.sum() / 2 == 5
    assert edge.min() == pytest.approx(-16)
    assert edge.max() == pytest.approx(math.log10(0.5))
    (tolerance,) = ax.get_lines()
    assert list(tolerance.get_xdata()) == [-6, -6]
    assert_saves(figure)


def test_trajectories_have_a_panel_each_on_one_colour_scale_with_observed_frames_marked():
    u = torch.linspace(-2, 2, 12).reshape(3, 4)
    fields = {f"panel {i}": u / (i + 1) for i in range(6)} | {figures.SPREAD: u + 2}
    figure = figures.trajectories(fields, observed=(0, 2), label="field (m)")
    *panels, own, hidden, bar_of_own, bar = figure.axes
    assert not hidden.axison
    assert bar.get_xlabel() == "field (m)"
    assert own.get_title() == figures.SPREAD
    assert own.get_images()[0].get_clim() == bar_of_own.get_ylim() == (0, 4)
    assert [ax.get_title() for ax in panels] == [f"panel {i}" for i in range(6)]
    for i, ax in enumerate(panels):
        (image,) = ax.get_images()
        np.testing.assert_allclose(image.get_array(), u / (i + 1))
        assert image.get_clim() == (-2, 2)
        assert image.origin == "lower"
        assert [line.get_ydata()[0] for line in ax.get_lines()] == [0, 2]


def test_maps_have_a_row_each_and_hours_as_columns_with_units_and_degrees():
    x = torch.randn(2, 3, 8, 16, generator=torch.Generator().manual_seed(0))
    figure = figures.maps({"day": x[0], "member": x[1]}, [0, 12, 23], "v (m/s)")
    *axes, bar = figure.axes
    assert len(axes) == 6
    assert [ax.get_title() for ax in axes[:3]] == ["hour 0", "hour 12", "hour 23"]
    assert axes[3].get_ylabel() == "member\nlatitude (°)"
    assert axes[5].get_xlabel() == "longitude (°)"
    assert bar.get_ylabel() == "v (m/s)"
    image = axes[4].images[0]
    np.testing.assert_array_equal(image.get_array(), x[1, 1].numpy())
    assert image.origin == "lower"
    assert image.get_extent() == [0, 360, -90, 90]
    scale = {ax.images[0].get_clim() for ax in axes}
    assert scale == {(-x[0].abs().max().item(), x[0].abs().max().item())}


def test_observed_points_are_marked_in_the_middle_of_their_cells():
    x, mask = torch.ones(2, 8, 16), torch.zeros(8, 16, dtype=torch.bool)
    mask[0, 0] = mask[7, 4] = True
    figure = figures.maps({"day": x, "member": x}, [0, 12], "v (m/s)", {12: mask})
    marks = [[line.get_xydata().tolist() for line in ax.get_lines()] for ax in figure.axes[:4]]
    assert marks == [[], [[[11.25, -78.75], [101.25, 78.75]]], [], []]


def test_rank_histograms_show_the_least_even_first():
    ranks = {"even": torch.arange(40) % 4, "high": torch.full((40,), 3), "low": torch.zeros(40)}
    figure = figures.rank_histograms(ranks, members=3, most=2)
    shown = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title() for ax in shown] == ["high", "low"]
    assert [bar.get_height() for bar in shown[0].patches[:4]] == [0, 0, 0, 40]


def test_coverage_is_drawn_against_the_share_that_should_be_covered():
    ((ax,),) = [figures.coverage({"a": [0.0, 0.9, 1.0]}).axes]
    curve, diagonal = ax.lines
    assert curve.get_xydata().tolist() == [[0, 0], [0.5, 0.9], [1, 1]]
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]


def ensemble(*shape, n=8, infeasible=(), failed=(), tolerance=1e-6):
    """Members 10, 11, ..., of which some are infeasible and some have failed."""
    x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))
    c = torch.zeros(n)
    for i in infeasible:
        c[i] = 1.0
    for i in failed:
        x[i], c[i] = math.nan, math.inf
    members = list(range(10, 10 + n))
    return Result(x, c, c <= 1e-6, members, 0, tolerance, Evaluations())


def images(figure):
    return [[ax.get_title(), *ax.images] for ax in figure.axes if ax.images]


def test_an_overview_of_points_tells_feasible_from_infeasible_and_draws_the_constraint():
    result = ensemble(2, infeasible=(1,), failed=(5,))
    figure = feasibly.plot(result, line())
    assert figure._suptitle.get_text() == "6 of 8 samples feasible"
    (ax,) = figure.axes
    good, bad = [c for c in ax.collections if isinstance(c, PathCollection)]
    x = result.samples[result.feasible].double()
    np.testing.assert_array_equal(np.asarray(good.get_offsets()), x)
    np.testing.assert_array_equal(np.asarray(bad.get_offsets()), result.samples[1:2].double())
    assert bad.get_label() == "infeasible"
    (curve,) = contours(ax)
    u, v = curve.get_paths()[0].vertices.T
    np.testing.assert_allclose(u - 2 * v + 0.3, 0, atol=1e-4)
    assert_saves(figure)
    assert not contours(feasibly.plot(result).axes[0])


def test_the_zero_set_is_evaluated_in_the_type_of_the_samples():
    seen = []

    def residual(x):
        seen.append(x.dtype)
        return x[:, :1]

    result = ensemble(2)
    result.samples = result.samples.double()
    feasibly.plot(result, Equality(residual, tolerance=1e-6))
    assert set(seen) == {torch.float64}


def test_an_overview_of_sequences_has_a_line_a_member_their_mean_and_their_range():
    result = ensemble(5, n=70, failed=(3,))
    figure = feasibly.plot(result)
    (ax,) = figure.axes
    *lines, mean = ax.get_lines()
    x = result.samples[result.finite].double()
    assert len(lines) == figures.LINES
    for drawn, member in zip(lines, x, strict=False):
        np.testing.assert_array_equal(drawn.get_ydata(), member)
    np.testing.assert_allclose(mean.get_ydata(), x.mean(dim=0))
    (band,) = ax.collections
    _, heights = band.get_paths()[0].vertices.T
    assert heights.max() == pytest.approx(np.quantile(x, 0.95, axis=0).max())
    assert heights.min() == pytest.approx(np.quantile(x, 0.05, axis=0).min())
    assert_saves(figure)


def test_an_overview_of_fields_has_the_first_members_the_mean_and_the_spread():
    result = ensemble(6, 7, infeasible=(2,), failed=(1,))
    figure = feasibly.plot(result, members=2)
    x = result.samples[result.finite].double()
    (a, b, mean, spread) = images(figure)
    assert [a[0], b[0], mean[0], spread[0]] == [
        "sample 10",
        "sample 12, infeasible",
        "mean",
        "spread",
    ]
    wanted = (x[0], x[1], x.mean(dim=0), x.std(dim=0, correction=0))
    for (_, image), field in zip((a, b, mean, spread), wanted, strict=True):
        np.testing.assert_allclose(image.get_array(), field)
    largest = x[:2].abs().max().item()
    assert {image.get_clim() for _, image in (a, b, mean)} == {(-largest, largest)}
    assert_saves(figure)


def test_an_overview_of_more_axes_has_a_row_for_slices_from_first_to_last():
    result = ensemble(2, 5, 6, 7)
    figure = feasibly.plot(result, members=1)
    shown = [ax for ax in figure.axes if ax.images]
    assert [ax.get_ylabel() for ax in shown[::3]] == ["[0, 0]", "[0, 3]", "[1, 1]", "[1, 4]"]
    field = shown[3].images[0].get_array()
    np.testing.assert_array_equal(field, result.samples[0, 0, 3].double())
    channels = feasibly.plot(ensemble(3, 6, 7), members=1)
    assert [ax.get_ylabel() for ax in channels.axes if ax.images][::3] == ["[0]", "[1]", "[2]"]


def test_an_overview_without_a_tolerance_speaks_of_no_feasible_members():
    figure = feasibly.plot(ensemble(5, 5, tolerance=math.inf, infeasible=(0,)))
    assert figure._suptitle.get_text() == "8 samples"
    assert images(figure)[0][0] == "sample 10"


@pytest.mark.slow
def test_an_overview_of_one_member_or_of_zeros_can_be_saved():
    assert_saves(feasibly.plot(ensemble(4, 4, n=1)))
    for shape in ((2,), (5,), (4, 4)):
        result = ensemble(*shape)
        result.samples = torch.zeros_like(result.samples)
        assert_saves(feasibly.plot(result))


def test_an_overview_needs_a_finite_member_and_a_number_of_members():
    with pytest.raises(ValueError, match="no sample is finite"):
        feasibly.plot(ensemble(2, n=2, failed=(0, 1)))
    for wrong in (0, 1.5):
        with pytest.raises(ValueError, match=rf"plot\(members=.* whole number.*, got {wrong}"):
            feasibly.plot(ensemble(4, 4), members=wrong)


def test_a_figure_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        feasibly.plot(ensemble(2))


@pytest.mark.parametrize(
    "constraint",
    [
        None,
        EachMember(line(), torch.zeros(3, 1)),
        Equality(lambda x: x, tolerance=1e-6),
        Equality(lambda x: x[:, :1] - 100, tolerance=1e-6),
    ],
    ids=["none", "one a member", "two", "far"],
)
def test_points_without_a_curve_are_drawn_without_one(constraint, recwarn):
    for x in (torch.zeros(1, 2), torch.randn(3, 2, dtype=torch.float64)):
        figure = figures.samples(x, constraint)
        (ax,) = figure.axes
        assert contours(ax) == []
        assert len(points(ax)) == len(x)
        assert_saves(figure)
    assert not recwarn.list


@pytest.mark.parametrize("shape", [(9, 3), (3, 9)])
def test_sequences_of_a_few_channels_have_a_panel_for_each(shape):
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).double()
    figure = figures.samples(x)
    assert len(figure.axes) == 3
    for k, ax in enumerate(figure.axes):
        *lines, mean = ax.get_lines()
        drawn = np.stack([line.get_ydata() for line in lines])
        channel = x[:, k] if shape[0] == 3 else x[:, :, k]
        np.testing.assert_array_equal(drawn, channel)
        np.testing.assert_allclose(mean.get_ydata(), channel.mean(dim=0))
    assert_saves(figure)
