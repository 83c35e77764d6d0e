"""`python -m feasibly score`: an ensemble forecast against its truth."""

__all__ = ["Row", "score", "scores"]

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from .. import metrics
from ..weather.era5 import FIELDS, Channel, channels
from ..weather.weatherbench import missing, open_weather, read
from .words import Screen


def score(forecast: Path, truth: Path, /, variables: tuple[str, ...] = ()) -> int:
    """Score an ensemble of forecasts as WeatherBench 2 does.

    Prints, for every channel and lead time, in the units of the channel: the root mean square
    error of the ensemble mean (skill), the spread of the ensemble, their ratio times
    sqrt((M + 1) / M) for M members, and the fair CRPS. Averages over space are weighted by the
    area of the cells, and averages over dates are taken before the root. Points where the forecast
    or the truth is missing at any time are left out.

    Arguments:
        forecast: A zarr store of forecasts: time (of the start), prediction_timedelta, number,
            latitude, longitude, and level where there are levels.
        truth: A store that holds every valid time, on the same grid.
        variables: The channels to score: t2m, z500, or a variable for all its levels; all that
            both stores have by default.
    """
    rows = [
        {
            "channel": row.channel.name,
            "units": row.channel.field.units,
            "hours": f"{row.hours:g}",
            **{name: f"{value:.5g}" for name, value in row.values.items()},
        }
        for row in scores(forecast, truth, variables)
    ]
    table = Table(*rows[0], title=f"{forecast} against {truth}")
    for row in rows:
        table.add_row(*row.values())
    Screen().print(table)
    return 0


class Row(NamedTuple):
    """The scores of a channel at a lead time."""

    channel: Channel
    hours: float
    values: dict[str, float]


def scores(forecast: Path, truth: Path, variables: tuple[str, ...] = ()) -> Iterator[Row]:
    """Returns the scores of every channel and lead time; see :func:`score`.

    Raises:
        ValueError: If the stores lack something, which is named, or do not fit together.
    """
    ours, theirs = open_weather(forecast), open_weather(truth)
    needed = {"prediction_timedelta", "number"} - set(ours.dims)
    if needed:
        raise ValueError(
            f"{forecast} is not an ensemble of forecasts: it has no {', '.join(needed)}."
        )
    wanted = _channels(ours, theirs, variables)
    for path, data in ((forecast, ours), (truth, theirs)):
        lacking = missing(data, wanted)
        if lacking:
            raise ValueError(f"{path} lacks {', '.join(lacking)}.")
    _check_grids(forecast, ours, truth, theirs)
    for channel in wanted:
        yield from _rows(ours, theirs, channel, truth)


def _channels(ours: Any, theirs: Any, variables: tuple[str, ...]) -> tuple[Channel, ...]:
    levels = [int(level) for level in ours.coords["level"].values] if "level" in ours.dims else []
    names = variables or [f.long for f in FIELDS if f.long in ours and f.long in theirs]
    if not names:
        raise ValueError("The two stores have no known variable in common.")
    return channels(names, levels)


def _check_grids(forecast: Path, ours: Any, truth: Path, theirs: Any) -> None:
    for axis in ("latitude", "longitude"):
        a, b = (data.coords[axis].values for data in (ours, theirs))
        if a.shape != b.shape or abs(a - b).max() > 1e-3:
            raise ValueError(
                f"{forecast} and {truth} have different grids ({len(a)} and {len(b)} values of "
                f"{axis}); regrid one of them to the grid of the other."
            )


def _rows(ours: Any, theirs: Any, channel: Channel, truth: Path) -> Iterator[Row]:
    area = metrics.area_weights(torch.tensor(ours.coords["latitude"].values, dtype=torch.float64))
    held = theirs.get_index("time")
    for k, lead in enumerate(ours.coords["prediction_timedelta"].values):
        valid = ours.coords["time"].values + lead
        places = held.get_indexer(valid)
        if (places < 0).any():
            raise ValueError(
                f"{truth} lacks the valid times {', '.join(map(str, valid[places < 0]))}."
            )
        x = torch.from_numpy(read(ours, channel, ["time", "number"], prediction_timedelta=k))
        y = torch.from_numpy(read(theirs.isel(time=places), channel, ["time"]))
        values = _scores(x.double()[:, :, None], y.double()[:, None], area)
        yield Row(channel, float(lead / np.timedelta64(1, "h")), values)


def _scores(x: Tensor, y: Tensor, area: Tensor) -> dict[str, float]:
    """The scores of ensembles, with shape (K, M, 1, latitudes, longitudes), where all have
    values."""
    there = x.isfinite().all(dim=1).all(dim=0)[0] & y.isfinite().all(dim=0)[0]
    if not there.any():
        raise ValueError(
            "At no point do all members and the truth have values at all start times; was every "
            "member written?"
        )
    weights = area * there
    x, y = (torch.where(there, v, 0.0) for v in (x, y))
    found = {
        "skill": metrics.skill(x, y, weights),
        "spread": metrics.spread(x, weights),
        "ratio": metrics.spread_skill_ratio(x, y, weights),
        "CRPS": metrics.crps(x, y, weights),
    }
    return {name: value.item() for name, value in found.items()}
