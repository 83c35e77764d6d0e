"""Weather for training, and the day of it that ships; KS is tested with its recipe."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import data
from feasibly.problems.shallow_water import Planet

SHAPE = (3, 32, 64)


def fields(members, hours, seed):
    generator = torch.Generator().manual_seed(seed)
    wind = torch.randn(members, hours, *SHAPE, generator=generator)
    wind[:, :, 0] = Planet.geopotential + 1000 * wind[:, :, 0]
    return wind


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of two members, that are quickly simulated, and which of them were."""
    done = []

    def simulate(block, seed, hours, resolution, planet):
        assert (resolution, planet) == ("T31", Planet())
        done.append(block)
        return fields(2, hours, 100 * seed + block)

    monkeypatch.setattr(data.shallow_water, "BLOCK", 2)
    monkeypatch.setattr(data.shallow_water, "simulate", simulate)
    return done


def expected(members, hours, seed):
    blocks = [fields(2, hours, 100 * seed + block) for block in range((members + 1) // 2)]
    weather = torch.cat(blocks)[:members]
    weather[:, :, 0] -= Planet.geopotential
    return weather.half()


def test_a_weather_file_is_its_blocks_in_order_without_the_mean_geopotential(tmp_path, blocks):
    path = tmp_path / "new" / "weather.npy"
    data.weather(path, 5, 4, "T31", seed=2)
    found = np.load(path, mmap_mode="r")
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, expected(5, 4, 2))
    assert [p.name for p in path.parent.iterdir()] == ["weather.npy"]


def test_weather_that_was_left_unfinished_is_taken_up_there(tmp_path, blocks, monkeypatch):
    path, quick = tmp_path / "weather.npy", data.shallow_water.simulate

    def stop(block, *settings):
        if block == 1:
            raise KeyboardInterrupt
        return quick(block, *settings)

    monkeypatch.setattr(data.shallow_water, "simulate", stop)
    with pytest.raises(KeyboardInterrupt):
        data.weather(path, 6, 4, "T31", seed=2)
    assert not path.exists()
    monkeypatch.setattr(data.shallow_water, "simulate", quick)
    data.weather(path, 6, 4, "T31", seed=2)
    assert blocks == [0, 1, 2]
    np.testing.assert_array_equal(np.load(path), expected(6, 4, 2))


def test_weather_is_not_written_over_nor_made_of_the_fresh_seed(tmp_path, blocks):
    (tmp_path / "weather.npy").write_bytes(b"an hour's work")
    with pytest.raises(ValueError, match="already; remove them, or choose another --out"):
        data.weather(tmp_path / "weather.npy", 6, 4, "T31", seed=2)
    with pytest.raises(ValueError, match="Seed 1 is kept"):
        data.weather(tmp_path / "new.npy", 6, 4, "T31", seed=1)
    assert blocks == []


def test_a_netcdf_file_is_read_back_by_xarray(tmp_path):
    """To the packing's error, which is half of 1/65,000 of a variable's range."""
    xarray = pytest.importorskip("xarray")
    day = fields(1, 24, seed=0)[0]
    data.netcdf(tmp_path / "new" / "day.nc", day, source="a test")
    found = xarray.open_dataset(tmp_path / "new" / "day.nc", engine="scipy")
    for name, field in zip(data.NAMES, day.unbind(1), strict=True):
        half = (field.max() - field.min()).item() / 65_000 / 2
        torch.testing.assert_close(
            torch.from_numpy(found[name].values).float(), field, rtol=0, atol=1.1 * half
        )
    assert found.sizes == {"time": 24, "latitude": 32, "longitude": 64}
    assert (found.time.diff("time") == np.timedelta64(1, "h")).all()
    np.testing.assert_array_equal(found.latitude, np.arange(-87.1875, 90, 5.625))
    np.testing.assert_array_equal(found.longitude, np.arange(0, 360, 5.625))
    names = {name: (found[name].standard_name, found[name].units) for name in data.NAMES}
    assert names["u_component_of_wind"] == ("eastward_wind", "m s-1")
    assert names["v_component_of_wind"] == ("northward_wind", "m s-1")
    assert names["geopotential"] == ("geopotential", "m2 s-2")
    assert [found[axis].axis for axis in found.sizes] == ["T", "Y", "X"]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["day.nc"]


SHIPPED = Path(data.shallow_water.__file__).parent / "weather_day.nc"
