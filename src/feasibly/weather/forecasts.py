r"""Forecasts as zarr stores that WeatherBench2's evaluation takes.

References:
    | WeatherBench 2 (Rasp et al., 2024), https://doi.org/10.1029/2023MS004019
    | https://weatherbench2.readthedocs.io
"""

__all__ = ["ForecastStore", "write_forecast"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .era5 import channels


def write_forecast(
    path: str | Path,
    samples: Tensor,
    init_times: Any,
    lead_hours: Sequence[int],
    variables: Sequence[str],
    levels: Sequence[int] = (),
    *,
    latitude: Tensor,
    longitude: Tensor,
) -> None:
    r"""Writes an ensemble of forecasts as a zarr store that WeatherBench2's evaluation takes.

    Arguments:
        path: The folder of the store, which must not exist.
        samples: The fields in ERA5's units, with shape (init times, members, lead hours, channels,
            latitudes, longitudes), or without the first axis for one init time.
        init_times: The time or times at which lead hours are counted from.
        lead_hours: The lead times in hours.
        variables: The channels, as in :func:`read_era5`.
        levels: The pressure levels in hPa.
        latitude: The latitudes in degrees, ascending or descending.
        longitude: The longitudes in degrees, ascending, in [0, 360).

    Raises:
        ValueError: If the shapes do not fit, or the grid or the names are not accepted.
        ImportError: If zarr is missing.
    """
    samples = samples if samples.ndim == 6 else samples[None]
    if samples.ndim != 6:
        raise ValueError(
            "Samples must have shape (init times, members, lead hours, channels, latitudes, "
            f"longitudes), or without the first; got {tuple(samples.shape)}."
        )
    layout = init_times, lead_hours, samples.shape[1], variables, levels
    store = ForecastStore(path, *layout, latitude=latitude, longitude=longitude)
    for i, ensemble in enumerate(samples):
        for member, sample in enumerate(ensemble):
            store.write(sample, member, i)


class ForecastStore:
    r"""A zarr store of forecasts that is written member by member, by one process or by many.

    Every chunk is one field of one member, so that no two writers share one. Where the store
    exists it is opened, and must have the same layout. What is not written is NaN.

    Arguments:
        path: The folder of the store. For the others see :func:`write_forecast`.
        members: The number of members.
        exist_ok: Whether the store may exist already.
    """

    def __init__(
        self,
        path: str | Path,
        init_times: Any,
        lead_hours: Sequence[int],
        members: int,
        variables: Sequence[str],
        levels: Sequence[int] = (),
        *,
        latitude: Tensor,
        longitude: Tensor,
        exist_ok: bool = False,
    ) -> None:
        self.zarr = _library()
        self.channels = channels(variables, levels)
        if len(set(self.channels)) < len(self.channels):
            raise ValueError(f"Channels must differ, got {[c.name for c in self.channels]}.")
        self.levels = sorted({c.level for c in self.channels if c.level is not None})
        self._check_levels()
        self.coordinates = _coordinates(
            init_times, lead_hours, members, self.levels, latitude, longitude
        )
        if Path(path).exists() and not exist_ok:
            raise ValueError(
                f"{path} exists; remove it, or write into it by ForecastStore(..., exist_ok=True)."
            )
        if Path(path).exists():
            self.group = self.zarr.open_group(str(path), mode="r+")
            self._check_layout(path)
        else:
            self.group = self.zarr.open_group(str(path), mode="w", zarr_format=2)
            self._create()

    def write(self, sample: Tensor, member: int, init: int = 0) -> None:
        """Writes a member of an init time: fields with shape (lead hours, channels, latitudes,
        longitudes)."""
        axes = ("prediction_timedelta", "latitude", "longitude")
        leads, *grid = (len(self.coordinates[axis][0]) for axis in axes)
        expected = (leads, len(self.channels), *grid)
        if tuple(sample.shape) != expected:
            raise ValueError(
                f"A member has shape (lead hours, channels, latitudes, longitudes) = {expected}; "
                f"got {tuple(sample.shape)}."
            )
        fields = sample.detach().to("cpu", torch.float32).numpy()
        for k, channel in enumerate(self.channels):
            where = (init, slice(None), member)
            if channel.level is not None:
                where += (self.levels.index(channel.level),)
            self.group[channel.field.long][where] = fields[:, k]

    def _check_levels(self) -> None:
        """Variables share one level axis, so each must be on every level."""
        on_levels = [(c.field, c.level) for c in self.channels if c.level is not None]
        for held in {field for field, _ in on_levels}:
            own = {level for field, level in on_levels if field == held}
            if own != set(self.levels):
                raise ValueError(
                    f"All variables of a store share their levels: {held.long} is given on "
                    f"{sorted(own)}, others on {self.levels}. Write them to separate stores."
                )

    def _create(self) -> None:
        for name, (values, attributes) in self.coordinates.items():
            array = self.group.create_array(
                name,
                shape=values.shape,
                chunks=values.shape,
                dtype=values.dtype,
                fill_value=None,  # xarray would take a coordinate 0 for a missing one
                attributes={**attributes, "_ARRAY_DIMENSIONS": [name]},
            )
            array[...] = values
        for channel in self.channels:
            held = channel.field
            if held.long in self.group:
                continue
            level = [] if channel.level is None else ["level"]
            axes = ["time", "prediction_timedelta", "number", *level, "latitude", "longitude"]
            shape = tuple(len(self.coordinates[axis][0]) for axis in axes)
            self.group.create_array(
                held.long,
                shape=shape,
                chunks=(*(1 for _ in axes[:-2]), *shape[-2:]),
                dtype=np.float32,
                fill_value=np.nan,
                attributes={
                    "standard_name": held.standard,
                    "long_name": held.long.replace("_", " "),
                    "units": held.units,
                    "short_name": held.short,
                    "_ARRAY_DIMENSIONS": axes,
                },
            )
        self.zarr.consolidate_metadata(self.group.store, zarr_format=2)

    def _check_layout(self, path: str | Path) -> None:
        same = all(
            name in self.group and np.array_equal(self.group[name][...], values)
            for name, (values, _) in self.coordinates.items()
        )
        if not same or any(c.field.long not in self.group for c in self.channels):
            raise ValueError(
                f"{path} has other times, members, levels, variables or another grid than these; "
                "write to another store."
            )


def _library() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise ImportError(
            f"Forecasts are written by zarr, which cannot be imported ({error}); `pip install "
            "feasibly[weather]` brings it."
        ) from error
    return zarr


def _coordinates(
    init_times: Any,
    lead_hours: Sequence[int],
    members: int,
    levels: list[int],
    latitude: Tensor,
    longitude: Tensor,
) -> dict[str, tuple[np.ndarray, dict[str, str]]]:
    """Every coordinate's values and its attributes, by CF's conventions."""
    times = np.atleast_1d(np.asarray(init_times, "datetime64[s]")).astype(np.int64)
    leads, lat, lon = np.asarray(lead_hours), _numbers(latitude), _numbers(longitude)
    if (np.diff(lon) <= 0).any() or lon.min() < 0 or lon.max() >= 360:
        raise ValueError(
            "Longitudes must ascend within [0, 360), as in WeatherBench2's data; got "
            f"{lon.min():g} to {lon.max():g}. Roll the fields, and take longitudes modulo 360."
        )
    if not ((np.diff(lat) > 0).all() or (np.diff(lat) < 0).all()) or abs(lat).max() > 90:
        raise ValueError(f"Latitudes must ascend or descend within [-90, 90]; got {lat.tolist()}.")
    if (leads != leads.astype(np.int64)).any() or (np.diff(leads) <= 0).any():
        raise ValueError(f"Lead times must be whole hours and ascend; got {leads.tolist()}.")
    found: dict[str, tuple[np.ndarray, dict[str, str]]] = {
        "time": (times, {"units": "seconds since 1970-01-01"}),
        # the dtype is what xarray itself writes, and asks for
        "prediction_timedelta": (
            leads.astype(np.int64),
            {"standard_name": "forecast_period", "units": "hours", "dtype": "timedelta64[ns]"},
        ),
        "number": (np.arange(members), {"standard_name": "realization", "units": "1"}),
        "level": (
            np.asarray(levels, np.int64),
            {"standard_name": "air_pressure", "units": "hPa", "positive": "down", "axis": "Z"},
        ),
        "latitude": (lat, {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"}),
        "longitude": (lon, {"standard_name": "longitude", "units": "degrees_east", "axis": "X"}),
    }
    reference = {"standard_name": "forecast_reference_time", "calendar": "proleptic_gregorian"}
    found["time"][1].update(reference)
    return {name: held for name, held in found.items() if len(held[0])}


def _numbers(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
