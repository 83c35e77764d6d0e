"""`python -m feasibly score`."""

import sys

import numpy as np
import pytest
import torch

from feasibly.__main__ import main
from feasibly.cli.score import scores
from feasibly.weather.forecasts import ForecastStore, write_forecast

xarray = pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")

LATITUDE = torch.linspace(-90, 90, 5, dtype=torch.float64)
LONGITUDE = torch.arange(0, 360, 60, dtype=torch.float64)
GRID = {"latitude": LATITUDE, "longitude": LONGITUDE}
INITS, LEADS = ["2021-06-01T00", "2021-06-02T00"], [0, 6, 12]
CHANNELS = ["t2m", "sst", "z500", "z850"]
LAND = (slice(1, 3), slice(2, 4))


def forecasts():
    generator = torch.Generator().manual_seed(0)
    return 280 + 10 * torch.randn(2, 4, 3, 4, 5, 6, generator=generator)


def truth(path):
    """Six-hourly, more than is needed, rows from the north, and no sea over land."""
    rng = np.random.default_rng(0)
    times = np.datetime64("2021-05-31T00", "ns") + np.arange(20) * np.timedelta64(6, "h")
    surface, levels = (20, 5, 6), (20, 2, 5, 6)
    dims = ("time", "latitude", "longitude")
    data = xarray.Dataset(
        {
            "2m_temperature": (dims, rng.normal(280, 10, surface)),
            "sea_surface_temperature": (dims, rng.normal(280, 10, surface)),
            "geopotential": (("time", "level", *dims[1:]), rng.normal(280, 10, levels)),
        },
        {"time": times, "level": [500, 850], "latitude": LATITUDE, "longitude": LONGITUDE},
    )
    data["sea_surface_temperature"][:, *LAND] = np.nan
    data.isel(latitude=slice(None, None, -1)).to_zarr(path, zarr_format=2)
    return data


@pytest.fixture
def stores(tmp_path):
    paths = tmp_path / "forecast.zarr", tmp_path / "truth.zarr"
    write_forecast(paths[0], forecasts(), INITS, LEADS, CHANNELS, **GRID)
    return *paths, truth(paths[1])


def expected(x, y, there):
    """WeatherBench 2's formulas, in numpy: x (K, M, lat, lon), y (K, lat, lon)."""
    edges = np.deg2rad(np.r_[-90, (LATITUDE[1:] + LATITUDE[:-1]).numpy() / 2, 90])
    area = np.diff(np.sin(edges))[:, None] * there
    members = x.shape[1]

    def mean(v):
        return (np.where(there, v, 0) * area).sum(axis=(1, 2)).mean() / area.sum()

    skill = np.sqrt(mean((x.mean(axis=1) - y) ** 2))
    spread = np.sqrt(mean(x.var(axis=1, ddof=1)))
    pairs = np.abs(x[:, :, None] - x[:, None]).sum(axis=(1, 2)) / (members * (members - 1))
    crps = mean(np.abs(x - y[:, None]).mean(axis=1) - pairs / 2)
    return [skill, spread, np.sqrt((members + 1) / members) * spread / skill, crps]


def test_scores_are_those_of_weatherbench2_worked_out_apart(stores):
    forecast, path, held = stores
    found = list(scores(forecast, path))
    assert [(row.channel.name, row.hours) for row in found] == [
        (name, hours) for name in CHANNELS for hours in LEADS
    ]
    x = forecasts().double().numpy()
    inits = np.array(INITS, "datetime64[ns]")
    for row in found:
        k, lead = CHANNELS.index(row.channel.name), LEADS.index(row.hours)
        y = held[row.channel.field.long].sel(time=inits + np.timedelta64(int(row.hours), "h"))
        y = y if row.channel.level is None else y.sel(level=row.channel.level)
        there = np.ones((5, 6), bool)
        if row.channel.name == "sst":
            there[LAND] = False
        values = expected(x[:, :, lead, k], y.values, there)
        np.testing.assert_allclose(list(row.values.values()), values, rtol=1e-10)


def test_the_command_prints_them(stores, monkeypatch, capsys):
    forecast, path, _ = stores
    command = ["feasibly", "score", str(forecast), str(path), "--variables", "t2m", "geopotential"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [[cell for cell in line if cell != "│"] for line in lines if "│" in line]
    found = list(scores(forecast, path, ("t2m", "z500", "z850")))
    assert len(rows) == len(found) == 9
    for cells, row in zip(rows, found, strict=True):
        assert cells[0] == row.channel.name
        printed = [float(cell) for cell in cells[-5:]]
        np.testing.assert_allclose(printed, [row.hours, *row.values.values()], rtol=1e-4)


def test_what_does_not_fit_is_said(stores, tmp_path):
    forecast, path, held = stores
    with pytest.raises(ValueError, match=r"forecast\.zarr lacks 10m_u_component_of_wind, z300"):
        list(scores(forecast, path, ("u10", "z300")))
    with pytest.raises(ValueError, match="is not an ensemble of forecasts"):
        list(scores(path, path))
    held.isel(time=slice(6)).to_zarr(tmp_path / "short.zarr", zarr_format=2)
    with pytest.raises(ValueError, match=r"lacks the valid times 2021-06-02T00"):
        list(scores(forecast, tmp_path / "short.zarr"))
    shifted = held.assign_coords(longitude=held.longitude + 30)
    shifted.to_zarr(tmp_path / "shifted.zarr", zarr_format=2)
    with pytest.raises(ValueError, match="different grids"):
        list(scores(forecast, tmp_path / "shifted.zarr"))


def test_a_store_with_a_member_unwritten_is_refused(stores, tmp_path):
    store = ForecastStore(tmp_path / "part.zarr", INITS, LEADS, 4, CHANNELS, **GRID)
    store.write(forecasts()[0, 0], 0, 0)
    with pytest.raises(ValueError, match="was every member written"):
        list(scores(tmp_path / "part.zarr", stores[1]))
