r"""Weather in the layout of WeatherBench2: ERA5, and forecasts.

References:
    | WeatherBench 2 (Rasp et al., 2024), https://doi.org/10.1029/2023MS004019
    | https://weatherbench2.readthedocs.io
"""

__all__ = ["Weather", "missing", "open_weather", "read", "read_era5"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .era5 import NAMES, Channel, channels

COORDINATES = {
    "valid_time": "time",
    "pressure_level": "level",
    "isobaricInhPa": "level",
    "lat": "latitude",
    "lon": "longitude",
    "realization": "number",
    "ensemble": "number",
    "step": "prediction_timedelta",
    "lead_time": "prediction_timedelta",
    "init_time": "time",
}
"""Names of dimensions elsewhere, in files of the Climate Data Store for instance, and here."""


@dataclass(frozen=True)
class Weather:
    r"""Fields on a latitude-longitude grid.

    Attributes:
        values: The fields in ERA5's units, with shape (times, channels, latitudes, longitudes);
            NaN where there is none, as of the sea's temperature over land.
        channels: The channels, each by its variable and its level.
        times: The valid times, numpy's `datetime64`.
        latitude: The latitudes in degrees.
        longitude: The longitudes in degrees, ascending, in [0, 360).
    """

    values: Tensor
    channels: tuple[Channel, ...]
    times: np.ndarray
    latitude: Tensor
    longitude: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """The channels' names, such as `t2m` and `z500`."""
        return tuple(channel.name for channel in self.channels)

    @property
    def mask(self) -> Tensor:
        """Where there are values, with the shape of `values`."""
        return self.values.isfinite()


def read_era5(
    store: Any,
    variables: Sequence[str],
    levels: Sequence[int] = (),
    times: Any = None,
    *,
    north_first: bool = False,
) -> Weather:
    r"""Reads ERA5, from a store of WeatherBench2, ARCO or alike, or a file of the Climate Data
    Store.

    Arguments:
        store: The path of a zarr store or netCDF file, or an `xarray.Dataset`.
        variables: The variables: `geopotential` or `z`, on all `levels`; `t2m`; or a channel,
            `z500`.
        levels: The pressure levels in hPa.
        times: The times to read, anything that numpy reads as `datetime64`; None for all.
        north_first: Whether latitudes descend, as in ERA5's own files, or ascend.

    Raises:
        ValueError: If variables, levels or times are missing, which are all named, or the grid
            is none of latitudes and longitudes.
        ImportError: If xarray or zarr is missing.
    """
    wanted = channels(variables, levels)
    data = open_weather(store, north_first=north_first)
    held = data.coords["time"].values
    moments = held if times is None else np.atleast_1d(np.asarray(times, "datetime64[ns]"))
    lacking = missing(data, wanted) + [str(t) for t in moments if t not in held]
    if lacking:
        levels = data.coords["level"].values.tolist() if "level" in data.coords else []
        raise ValueError(
            f"{_name(store)} lacks {', '.join(lacking)}. It has {', '.join(map(str, data))}, the "
            f"levels {levels}, and times from {held.min()} to {held.max()}."
        )
    data = data.sel(time=moments)
    parts = [torch.from_numpy(read(data, channel, ["time"])) for channel in wanted]
    return Weather(
        torch.stack(parts, dim=1),
        wanted,
        moments,
        *(torch.from_numpy(np.array(data[axis], float)) for axis in ("latitude", "longitude")),
    )


def open_weather(store: Any, *, north_first: bool = False) -> Any:
    """Returns a store as an `xarray.Dataset`, lazily, with ERA5's long names and WeatherBench2's
    dimensions; latitudes are sorted, and longitudes lie in [0, 360). See :func:`read_era5`.

    Raises:
        ValueError: If the store cannot be read, or its grid is none of latitudes and longitudes.
        ImportError: If xarray or zarr is missing.
    """
    data = store if hasattr(store, "data_vars") else _open(store)
    names = {k: v for k, v in COORDINATES.items() if k in data.variables or k in data.dims}
    names |= {k: NAMES[k].long for k in data.data_vars if k in NAMES}
    data = data.rename({k: v for k, v in names.items() if k != v and v not in data.variables})
    for axis in ("latitude", "longitude", "time"):
        if axis not in data.coords or (axis != "time" and data.coords[axis].ndim != 1):
            raise ValueError(
                f"{_name(store)} has no coordinate {axis} of its own axis; it has "
                f"{', '.join(map(str, data.coords))}. Regrid it to latitudes and longitudes first."
            )
    if data.coords["time"].ndim == 0:
        data = data.expand_dims("time")
    longitude = np.asarray(data.coords["longitude"].values, np.float64) % 360
    if len(np.unique(longitude.round(6))) < len(longitude):
        raise ValueError(
            f"{_name(store)} has a meridian twice, as longitudes 0 and 360 or -180 and 180; drop "
            "one of them."
        )
    # sorted only where that is needed, since it makes every read one of scattered points
    data = data.assign_coords(longitude=longitude)
    if (np.diff(longitude) < 0).any():
        data = data.sortby("longitude")
    steps = np.diff(data.coords["latitude"].values)
    if not ((steps < 0) if north_first else (steps > 0)).all():
        data = data.sortby("latitude", ascending=not north_first)
    return data


def read(data: Any, channel: Channel, axes: Sequence[str], **where: int) -> np.ndarray:
    """Reads a channel, with shape (axes, latitudes, longitudes), at positions on other axes."""
    values = data[channel.field.long].isel(where)
    if channel.level is not None:
        values = values.sel(level=channel.level)
    expected = {*axes, "latitude", "longitude"}
    if set(values.dims) != expected:
        raise ValueError(
            f"{channel.field.long} has the axes {', '.join(map(str, values.dims))} where "
            f"{', '.join(sorted(expected))} are expected; select one entry of each other axis."
        )
    return np.array(values.transpose(*axes, "latitude", "longitude").values)


def missing(data: Any, wanted: Sequence[Channel]) -> list[str]:
    """Names the variables, and the levels of those that there are, that data lack."""
    fields = {c.field.long: c for c in wanted if c.field.long not in data}
    levels = data.coords["level"].values if "level" in data.coords else ()
    held = (c for c in wanted if c.field.long not in fields and c.level is not None)
    return [*fields, *(c.name for c in held if c.level not in levels)]


def _open(store: Any) -> Any:
    try:
        import xarray

        if str(store).endswith((".nc", ".nc4", ".netcdf")):
            return xarray.open_dataset(store)
        # without chunks nothing but what is selected is read, and dask is not needed
        return xarray.open_zarr(store, chunks=None, decode_timedelta=True)
    except ImportError as error:
        raise ImportError(
            f"Weather is read by xarray and zarr, of which one cannot be imported ({error}); "
            "`pip install feasibly[weather]` brings them."
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{store} cannot be read as a zarr store or a netCDF file "
            f"({type(error).__name__}: {error}); open it by xarray and hand over the dataset."
        ) from error


def _name(store: Any) -> str:
    return "The dataset" if hasattr(store, "data_vars") else str(store)
