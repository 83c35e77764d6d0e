"""Forecast stores: the layout that WeatherBench2's evaluation takes, and scores from it."""

import json

import numpy as np
import pytest
import torch

from feasibly.weather.forecasts import ForecastStore, write_forecast

xarray = pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")

LATITUDE = torch.linspace(-90, 90, 7, dtype=torch.float64)  # with poles
LONGITUDE = torch.arange(0, 360, 45, dtype=torch.float64)
INITS = ["2021-06-01T00", "2021-06-02T00", "2021-06-04T00"]
LEADS = [0, 6, 12, 18]
GRID = {"latitude": LATITUDE, "longitude": LONGITUDE}


def samples(inits=3, members=5, channels=4):
    generator = torch.Generator().manual_seed(0)
    return 280 + 10 * torch.randn(inits, members, 4, channels, 7, 8, generator=generator)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "fc.zarr"
    write_forecast(path, samples(), INITS, LEADS, ["t2m", "tp", "z"], [850, 500], **GRID)
    return path


def test_the_layout_is_that_of_weatherbench2(path):
    data = xarray.open_zarr(path, chunks=None)
    assert dict(data.sizes) == {
        "time": 3,
        "prediction_timedelta": 4,
        "number": 5,
        "level": 2,
        "latitude": 7,
        "longitude": 8,
    }
    surface = ("time", "prediction_timedelta", "number", "latitude", "longitude")
    assert {str(k): v.dims for k, v in data.items()} == {
        "2m_temperature": surface,
        "total_precipitation": surface,
        "geopotential": (*surface[:3], "level", *surface[3:]),
    }
    assert data.time.values.tolist() == np.array(INITS, "datetime64[ns]").tolist()
    assert np.issubdtype(data.prediction_timedelta.dtype, np.timedelta64)
    assert (data.prediction_timedelta / np.timedelta64(1, "h")).values.tolist() == LEADS
    assert data.number.values.tolist() == [0, 1, 2, 3, 4]
    assert data.level.values.tolist() == [500, 850]
    assert data.latitude.values.tolist() == LATITUDE.tolist()
    assert data.longitude.values.tolist() == LONGITUDE.tolist()
    assert data["geopotential"].dtype == np.float32


def test_every_chunk_is_one_field_of_one_member(path):
    chunks = {
        name: json.loads((path / name / ".zarray").read_text())["chunks"]
        for name in ("2m_temperature", "geopotential")
    }
    assert chunks == {"2m_temperature": [1, 1, 1, 7, 8], "geopotential": [1, 1, 1, 1, 7, 8]}
    assert (path / ".zmetadata").is_file()


def test_what_is_read_is_what_was_written(path):
    data = xarray.open_zarr(path, chunks=None)
    x = samples().numpy()
    for name, level, k in (
        ("2m_temperature", None, 0),
        ("total_precipitation", None, 1),
        ("geopotential", 850, 2),
        ("geopotential", 500, 3),
    ):
        held = data[name] if level is None else data[name].sel(level=level)
        assert np.array_equal(held.transpose("time", "number", ...).values, x[:, :, :, k])


def test_members_are_written_one_by_one_by_several_writers(path, tmp_path):
    whole = xarray.open_zarr(path, chunks=None)
    layout = (tmp_path / "parts.zarr", INITS, LEADS, 5, ["t2m", "tp", "z850", "z500"])
    first = ForecastStore(*layout, **GRID)
    other = ForecastStore(*layout, **GRID, exist_ok=True)
    for i in range(3):
        for member in range(4):
            (first, other)[member % 2].write(samples()[i, member], member, i)
    parts = xarray.open_zarr(layout[0], chunks=None)
    xarray.testing.assert_identical(parts.isel(number=slice(4)), whole.isel(number=slice(4)))
    assert parts["2m_temperature"].isel(number=4).isnull().all()


def test_one_init_time_needs_no_axis_of_its_own(tmp_path):
    write_forecast(tmp_path / "one", samples()[0, :, :, :1], INITS[0], LEADS, ["msl"], **GRID)
    data = xarray.open_zarr(tmp_path / "one", chunks=None)
    assert data.sizes["time"] == 1
    assert "level" not in data.dims


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"longitude": LONGITUDE - 180}, r"within \[0, 360\)"),
        ({"latitude": LATITUDE.roll(1)}, "Latitudes must ascend or descend"),
        ({"lead_hours": [0, 6, 6, 12]}, "whole hours and ascend"),
        ({"samples": samples()[0, 0]}, "Samples must have shape"),
        ({"samples": samples()[:, :, :3]}, "A member has shape"),
        ({"variables": ["t2m", "tp", "z850", "u500"]}, "share their levels"),
        ({"variables": ["t2m", "t2m", "z850", "z500"]}, "must differ"),
    ],
    ids=["longitude", "latitude", "lead", "axes", "shape", "levels", "twice"],
)
def test_what_weatherbench2_would_not_take_is_refused(change, message, tmp_path):
    given = {
        "samples": samples(),
        "init_times": INITS,
        "lead_hours": LEADS,
        "variables": ["t2m", "tp", "z850", "z500"],
        **GRID,
    }
    with pytest.raises(ValueError, match=message):
        write_forecast(tmp_path / "fc.zarr", **(given | change))


def test_a_store_is_neither_overwritten_nor_mixed_with_another(path):
    layout = (INITS, LEADS, 5, ["t2m", "tp", "z850", "z500"])
    with pytest.raises(ValueError, match="exists"):
        ForecastStore(path, *layout, **GRID)
    with pytest.raises(ValueError, match="other times"):
        ForecastStore(path, INITS[:2], *layout[1:], **GRID, exist_ok=True)
