import re

import numpy as np
import pytest
import torch

from feasibly.cli import page
from feasibly.constraints import Composite, Linear
from feasibly.report import Report
from feasibly.weather import Stations

LATITUDE, LONGITUDE = torch.linspace(-60, 60, 4), torch.arange(6) * 60.0


def made(n, error):
    rows = {"time": [0.0] * n, "lat": np.linspace(-50, 50, n), "lon": [0.0] * n}
    rows |= {"variable": ["t2m"] * n, "value": np.arange(n) * 1.0, "error": [error] * n}
    grid = {"times": [0.0], "latitude": LATITUDE, "longitude": LONGITUDE}
    return Stations(rows, variables=["t2m"], **grid)


def whole(x):
    return x


def written(tmp_path, add, *arguments):
    report = Report("A run")
    add(report, *arguments)
    report.write(tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("by_frame", [None, True, False])
@pytest.mark.parametrize("n", [3, 60])
def test_a_page_has_the_stations_that_fit_worst(tmp_path, by_frame, n):
    """Zero fields miss value k by k, so that the last rows fit worst; one member has failed."""
    stations = made(n, 2.0)
    decode = {"decode": None if by_frame is None else whole, "by_frame": by_frame}
    part = stations.constraint(**decode)
    exact = Linear(torch.ones(1, 24), [0.0], 1e-6)
    x = torch.zeros(3, 1, 1, 4, 6)
    x[1] = torch.nan
    found = written(tmp_path, page.stations, Composite([exact, part]), x, [0, 1, 5])
    shown = min(n, page.WORST)
    assert f"The {shown} of {n} combinations of station and variable" in found
    rows = re.findall(r"<tr>(<td>.*?)</tr>", found)
    assert len(rows) == shown
    cells = re.findall(r"<td>(.*?)</td>", rows[0])
    k = n - 1
    assert cells == ["50, 0", "t2m", "1", "2", f"{k:.3g}", f"{k**2 / 4:.3g}"]


@pytest.mark.parametrize(
    ("constraint", "x"),
    [
        (None, torch.zeros(2, 3)),
        (Linear(torch.ones(1, 3), [0.0], noise=1.0), torch.zeros(2, 3)),
        (made(2, 0.0).constraint(tolerance=1e-6), torch.zeros(2, 1, 1, 4, 6)),
        (made(2, 1.0).constraint(), torch.full((2, 1, 1, 4, 6), torch.nan)),
    ],
    ids=["none", "no stations", "exact", "all failed"],
)
def test_a_page_about_something_else_has_no_stations(tmp_path, constraint, x):
    assert "tations" not in written(tmp_path, page.stations, constraint, x, [0, 1])


def test_stations_in_physical_units_are_found(tmp_path):
    part = made(3, 2.0).constraint().in_units(1.0, 2.0)
    found = written(tmp_path, page.stations, part, torch.zeros(1, 1, 1, 4, 6), [0])
    # fields of one everywhere miss the values 0, 1 and 2 by one, zero and one
    assert found.count("<td>1</td><td>2</td><td>1</td><td>0.25</td>") == 2


def test_a_page_says_how_members_fit_those_that_have_not_failed(tmp_path):
    fits = {"A": torch.tensor([1.0, torch.nan, 2.0]), "B": torch.tensor([torch.nan])}
    found = written(tmp_path, page.fits, fits)
    assert re.findall(r"<td>(.*?)</td>", found) == ["A", "1.5", "1", "2"]
    for nothing in ({}, {"B": fits["B"]}):
        assert "errors" not in written(tmp_path, page.fits, nothing)


def test_a_page_has_a_picture_of_finite_members_if_there_are_any(tmp_path):
    x = torch.zeros(3, 5)
    x[0, 1] = torch.nan
    assert "Samples, drawn according to their shape" in written(tmp_path, page.pictures, x)
    assert "<img" not in written(tmp_path, page.pictures, x[:1])
    assert "<img" not in written(tmp_path, page.pictures, x[:0])
    assert "Samples, drawn according to their shape" in written(
        tmp_path, page.pictures, torch.zeros(3, 2)
    )
    assert "<img" in written(tmp_path, page.pictures, torch.zeros(3, 1, 5, 6))
