"""ERA5 read from miniatures of WeatherBench2's stores and of the Climate Data Store's files."""

import numpy as np
import pytest
import torch

from feasibly.weather.era5 import channels
from feasibly.weather.weatherbench import read_era5

xarray = pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")

LATITUDE = np.arange(-87.5, 90, 25.0)  # 8 rows
LONGITUDE = np.arange(0.0, 360, 30)  # 12 columns
LEVELS = [500, 850, 1000]
TIMES = np.datetime64("2021-06-01T00", "ns") + np.arange(4) * np.timedelta64(6, "h")


def miniature(seed=0):
    """Six-hourly ERA5 as in WeatherBench2's small stores: longitude before latitude."""
    rng = np.random.default_rng(seed)
    surface = (len(TIMES), len(LONGITUDE), len(LATITUDE))
    levels = (len(TIMES), len(LEVELS), len(LONGITUDE), len(LATITUDE))
    data = xarray.Dataset(
        {
            "2m_temperature": (("time", "longitude", "latitude"), rng.normal(280, 10, surface)),
            "sea_surface_temperature": (
                ("time", "longitude", "latitude"),
                rng.normal(290, 5, surface),
            ),
            "geopotential": (
                ("time", "level", "longitude", "latitude"),
                rng.normal(5e4, 1e3, levels),
            ),
            "land_sea_mask": (("longitude", "latitude"), rng.uniform(size=surface[1:])),
        },
        {"time": TIMES, "level": LEVELS, "longitude": LONGITUDE, "latitude": LATITUDE},
    ).astype("float32")
    data["sea_surface_temperature"][:, 3:5, 2] = np.nan
    return data


@pytest.fixture
def store(tmp_path):
    miniature().to_zarr(tmp_path / "era5.zarr", zarr_format=2)
    return tmp_path / "era5.zarr"


def test_channels_come_in_the_order_asked_for_with_their_grid(store):
    read = read_era5(store, ["geopotential", "t2m", "z850"], [1000, 500], TIMES[[2, 0]])
    assert read.names == ("z1000", "z500", "t2m", "z850")
    assert read.values.shape == (2, 4, 8, 12)
    data = miniature()
    expected = data["geopotential"].sel(level=500).isel(time=[2, 0])
    expected = expected.transpose("time", "latitude", "longitude").values
    assert np.array_equal(read.values[:, 1].numpy(), expected)
    assert np.array_equal(read.times, TIMES[[2, 0]])
    assert read.latitude.tolist() == LATITUDE.tolist()
    assert read.longitude.tolist() == LONGITUDE.tolist()


def test_all_times_are_read_by_default_and_strings_name_some(store):
    assert read_era5(store, ["t2m"]).values.shape[0] == 4
    some = read_era5(store, ["t2m"], times="2021-06-01T12")
    torch.testing.assert_close(some.values, read_era5(store, ["t2m"]).values[2:3])


@pytest.mark.parametrize("north_first", [False, True])
@pytest.mark.parametrize("stored", [slice(None), slice(None, None, -1)], ids=["south", "north"])
def test_rows_come_in_the_order_asked_for_however_they_are_stored(stored, north_first):
    read = read_era5(miniature().isel(latitude=stored), ["t2m"], north_first=north_first)
    order = slice(None, None, -1) if north_first else slice(None)
    assert read.latitude.tolist() == LATITUDE[order].tolist()
    plain = read_era5(miniature(), ["t2m"]).values.numpy()
    assert np.array_equal(read.values.numpy(), plain[:, :, order])


def test_longitudes_from_minus_180_are_brought_to_0_to_360():
    data = miniature()
    west = data.assign_coords(longitude=(LONGITUDE + 180) % 360 - 180).sortby("longitude")
    assert west.longitude.values.min() == -180
    read, plain = (read_era5(d, ["t2m", "z500"]) for d in (west, data))
    assert read.longitude.tolist() == LONGITUDE.tolist()
    torch.testing.assert_close(read.values, plain.values, rtol=0, atol=0)


def test_a_meridian_that_is_there_twice_is_refused():
    data = miniature()
    twice = xarray.concat(
        [data, data.isel(longitude=[0]).assign_coords(longitude=[360])], "longitude"
    )
    with pytest.raises(ValueError, match="a meridian twice"):
        read_era5(twice, ["t2m"])


def test_values_that_are_not_there_are_kept_as_a_mask(store):
    read = read_era5(store, ["sst", "t2m"])
    assert read.mask[:, 1].all()
    land = ~read.mask[:, 0]
    assert land.sum() == 4 * 2
    assert land[:, 2, 3:5].all()


def test_files_of_the_climate_data_store_are_read_alike(tmp_path):
    """Short names, valid_time, pressure_level, latitudes from the north, a level in floats."""
    pytest.importorskip("scipy")  # for netCDF
    data = miniature()[["2m_temperature", "geopotential"]]
    cds = data.rename(
        {
            "2m_temperature": "t2m",
            "geopotential": "z",
            "time": "valid_time",
            "level": "pressure_level",
        }
    ).isel(latitude=slice(None, None, -1))
    cds = cds.assign_coords(pressure_level=np.array(LEVELS, float), number=0)
    cds = cds.transpose("valid_time", "pressure_level", "latitude", "longitude")
    cds.to_netcdf(tmp_path / "cds.nc", engine="scipy")
    read = read_era5(tmp_path / "cds.nc", ["z", "2m_temperature"], [850])
    plain = read_era5(data, ["z850", "t2m"])
    torch.testing.assert_close(read.values, plain.values, rtol=0, atol=0)


def test_all_that_is_missing_is_named_at_once(store):
    with pytest.raises(ValueError, match="lacks") as error:
        read_era5(store, ["u10", "z", "t500"], [500, 300], ["2021-06-01", "2021-07-01"])
    for part in (
        "10m_u_component_of_wind",
        "z300",
        "temperature",
        "2021-07-01",
        "[500, 850, 1000]",
    ):
        assert part in str(error.value)
    assert "z500" not in str(error.value)


def test_names_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match=r"no variable 'zz500'.*t2m \(2m_temperature\)"):
        channels(["zz500"])
    with pytest.raises(ValueError, match="geopotential needs a pressure level"):
        channels(["z"])
    with pytest.raises(ValueError, match="mean_sea_level_pressure is not on levels"):
        channels(["msl500"])
    assert [c.name for c in channels(["2t", "u10", "10u", "u1000"])] == [
        "t2m",
        "u10",
        "u10",
        "u1000",
    ]


def test_other_grids_and_axes_are_refused(tmp_path):
    data = miniature()
    with pytest.raises(ValueError, match="no coordinate longitude"):
        read_era5(data.drop_vars("longitude"), ["t2m"])
    with pytest.raises(ValueError, match="expver"):
        read_era5(data.expand_dims(expver=[1, 5]), ["t2m"])
    with pytest.raises(ValueError, match="cannot be read as a zarr store"):
        read_era5(tmp_path / "nothing.zarr", ["t2m"])
