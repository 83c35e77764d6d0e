r"""Tables of observations at stations, as constraints on fields of latitude and longitude."""

__all__ = ["Stations"]

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..constraints import Constraint, Decoded, FrameDecoder, Observation
from ..errors import ConstraintError
from .bilinear import Grid, between
from .tables import columns, known, library
from .tables import times as times_of

Decode = Callable[[Tensor], Tensor]


class Stations:
    r"""A table of values at stations, such as those of buoys, radiosondes or surface stations.

    The table has the columns `time`, `lat`, `lon`, `variable`, `value` and `error`, with a row for
    each value. :meth:`constraint` observes fields at these places and times, with these errors:

    .. code-block:: python

        stations = Stations(
            pandas.read_csv("stations.csv"),
            variables=["t2m", "u10", "v10"],
            times=hours,
            latitude=latitude,
            longitude=longitude,
        )
        result = feasibly.sample(denoiser, stations.constraint(decode), 16, shape)
        print(stations.fit(fields).to_dataframe())

    Fields have shape :math:`(B, T, C, lat, lon)`. Between points of the grid they are
    interpolated linearly in latitude and in longitude, around the planet if the grid goes around
    it. Between the last row and a pole, the last row counts. Rows without a value are left out.
    Errors are independent.

    Arguments:
        table: A pandas DataFrame, a dict of arrays or an `xarray.Dataset` with these columns.
            Latitudes and longitudes are in degrees, times are dates (in UTC) or numbers, and
            errors are standard deviations in the units of the values. An error of zero is of an
            exact value. Columns may also be called `latitude`, `longitude` and `valid_time`.
        variables: The variables of the fields, in the order of their channels, such as `t2m` and
            `z500`. ERA5's names are known, long or short. Others must be those of the table.
        times: The times of the frames, ascending, as dates or numbers, as in the table.
        latitude: The latitudes of the fields in degrees, ascending or descending.
        longitude: Their longitudes in degrees, ascending.
        errors: For each variable, the error of rows without one, in the units of the values.
        scale: For each variable, what values and errors are multiplied by to have the units of
            the fields, such as `{"z500": 9.80665}` for heights; 1 by default.
        offset: For each variable, what is added to values after that, such as
            `{"t2m": 273.15}`; 0 by default.
        between: `linear` or `nearest`: how values between frames are computed. The nearest frame
            may be up to half a step away.
        like: Fields that are known, such as samples of the prior, with shape
            :math:`(*, C, lat, lon)`. Values that are farther outside of their range than this is
            wide are refused. None for no test.

    Attributes:
        y: The values, in the units of the fields, with shape :math:`(m)`.
        errors: Their standard deviations, likewise.
        rows: Their rows in the table, from 0, with shape :math:`(m)`.
        frames: The frames that they need.

    Raises:
        ConstraintError: If the table or the grid cannot be used. The message names the row.
        ImportError: If pandas is missing, which the extra `weather` brings.
    """

    def __init__(
        self,
        table: Any,
        *,
        variables: Sequence[str],
        times: Any,
        latitude: Tensor,
        longitude: Tensor,
        errors: Mapping[str, float] | None = None,
        scale: Mapping[str, float] | None = None,
        offset: Mapping[str, float] | None = None,
        between: str = "linear",
        like: Tensor | None = None,
    ) -> None:
        if between not in ("linear", "nearest"):
            raise ConstraintError(
                f"Stations(between=...) must be 'linear' or 'nearest', got {between!r}."
            )
        self.variables, self._names = _variables(variables)
        self.grid = Grid(latitude, longitude)
        held = columns(table)
        lat, lon, value = held["lat"], held["lon"], held["value"]
        (self.rows,) = np.nonzero(np.isfinite(value))
        _refuse(np.isinf(value), "has an infinite value: leave it out")
        _refuse(~(abs(lat) <= 90), "has no latitude within [-90, 90] degrees", lat)
        _refuse(~((lon >= -180) & (lon <= 360)), "has no longitude within [-180, 360]", lon)
        if not len(self.rows):
            raise ConstraintError(f"No row is left: all {len(value)} values are missing.")
        held = {name: column[self.rows] for name, column in held.items()}
        self.time, self.lat, self.lon = held["time"], held["lat"], held["lon"]
        self.channel = self._channels(held["variable"])
        factor, shift, error = (
            self._of_variables(values, name, default)[self.channel]
            for values, name, default in (
                (scale, "scale", 1.0),
                (offset, "offset", 0.0),
                (errors, "errors", np.nan),
            )
        )
        if (factor == 0).any():
            raise ConstraintError("Stations(scale=...) must not be zero.")
        error = np.where(np.isnan(held["error"]), error, held["error"])
        self._refuse(np.isnan(error), "has no error: give the column, or errors={...}")
        self._refuse(~((error >= 0) & (error < np.inf)), "has no standard deviation", error)
        self.y = torch.from_numpy(factor * held["value"] + shift)
        self.errors = torch.from_numpy(abs(factor) * error)
        lines = self.grid.latitude, self.grid.longitude
        ends = " and ".join(f"{line.min():g} to {line.max():g}" for line in lines)
        outside = self.grid.outside(self.lat, self.lon)
        self._refuse(outside, f"is outside of the grid, which is from {ends}: drop it")
        self._check_units(like)
        self._interpolate(times, between)
        self._refuse_twice()

    def __len__(self) -> int:
        return len(self.y)

    def __call__(self, fields: Tensor) -> Tensor:
        """Returns the values of fields, with shape (B, T, C, lat, lon), at the stations, in the
        order of `rows`, with shape (B, m): the operator :math:`A`.

        Raises:
            ConstraintError: If the fields have another shape.
        """
        if tuple(fields.shape[1:]) != self.shape:
            raise ConstraintError(
                "Stations takes fields of shape (B, frames, variables, latitudes, longitudes) = "
                f"(B, {', '.join(map(str, self.shape))}), got {tuple(fields.shape)}."
            )
        return self._of_frames(fields[:, self.frames])

    def constraint(
        self,
        decode: Decode | None = None,
        tolerance: float | None = None,
        *,
        by_frame: bool = True,
        recompute: bool = True,
    ) -> Constraint:
        """Returns the observation of samples at the stations.

        Arguments:
            decode: The decoder of latents; None if samples are fields. It maps a batch of frames,
                with shape (B, *), to fields with shape (B, C, lat, lon). Frames without a station
                are not decoded.
            tolerance: The largest sum of squares of the misfits of exact values, whose errors are
                zero, in squared units of the fields; None if there are none.
            by_frame: Whether the decoder is of frames, or of whole trajectories, with shape
                (B, T, *), to fields with shape (B, T, C, lat, lon).
            recompute: Whether activations of a decoded frame are computed again for its gradient;
                see :class:`feasibly.constraints.FrameDecoder`.

        Raises:
            ConstraintError: If values are exact and there is no tolerance, or the other way
                round, or the decoder is no function.
        """
        exact = int((self.errors == 0).sum())
        if exact and tolerance is None:
            raise ConstraintError(
                f"{exact} of {len(self)} values have an error of zero, so that they are exact. "
                "Give a tolerance for them, constraint(tolerance=...), or their errors."
            )
        if not exact and tolerance is not None:
            raise ConstraintError(
                "constraint(tolerance=...) applies to exact values, but all values have errors. "
                "Leave it out."
            )
        _check_decoder(decode)
        by_frame = by_frame and decode is not None
        A = self._of_frames if by_frame else self
        observation = Observation(A, self.y, tolerance, noise=self.errors)
        observation.linear = decode is None
        if decode is None:
            return observation
        frames = FrameDecoder(decode, self.frames, recompute=recompute) if by_frame else decode
        return Decoded(observation, frames)

    @torch.no_grad()
    def values(
        self, samples: Tensor, decode: Decode | None = None, *, by_frame: bool = True
    ) -> Tensor:
        """Returns the values of samples at the stations, with shape (B, m). Samples are decoded
        one by one; see :meth:`fit`."""
        if decode is None:
            return self(samples)
        _check_decoder(decode)
        if not by_frame:
            return torch.cat([self(decode(x)) for x in samples.split(1)])
        frames = FrameDecoder(decode, self.frames)
        return torch.cat([self._of_frames(frames(x)) for x in samples.split(1)])

    def chi_square(
        self, samples: Tensor, decode: Decode | None = None, *, by_frame: bool = True
    ) -> dict[str, Tensor]:
        """Returns, for each variable with errors, the mean square of the misfits in units of their
        errors, with shape (B). It is about one for samples that fit; see :meth:`fit`."""
        squares = self._squares(self.values(samples, decode, by_frame=by_frame).double().cpu())
        return {name: squares[:, seen].mean(dim=1) for name, seen in self._uncertain()}

    def fit(self, samples: Tensor, decode: Decode | None = None, *, by_frame: bool = True) -> Any:
        """Returns how an ensemble fits each value of the table.

        Arguments:
            samples: The ensemble: fields, with shape (M, T, C, lat, lon), or latents. Members that
                are not finite are left out.
            decode: The decoder of latents, as in :meth:`constraint`; None if samples are fields.
            by_frame: Whether the decoder is of frames.

        Returns:
            An `xarray.Dataset` along `row`, the rows of the table that are used. In the units of
            the fields it has `observed` and its `error`, and the `mean` and the `spread` (over M -
            1) of the ensemble; in units of the error, the `misfit` of the ensemble mean and
            `chi_square`, the mean square of those of members. The attribute `chi_square of t2m` is
            the mean of the last over a variable's rows.

        Raises:
            ConstraintError: If no member is finite.
        """
        import xarray

        found = self.values(samples, decode, by_frame=by_frame).double().cpu()
        found = found[found.isfinite().all(dim=1)]
        if not len(found):
            raise ConstraintError("Stations.fit: no member has finite values at all stations.")
        squares, mean = self._squares(found).mean(dim=0), found.mean(dim=0)
        spread = found.std(dim=0) if len(found) > 1 else torch.full_like(mean, torch.nan)
        error = torch.where(self.errors > 0, self.errors, torch.nan)
        columns = {
            "observed": self.y,
            "error": self.errors,
            "mean": mean,
            "spread": spread,
            "misfit": (mean - self.y) / error,
            "chi_square": squares,
        }
        names = np.array(self.variables)[self.channel]
        return xarray.Dataset(
            {name: ("row", column.numpy()) for name, column in columns.items()},
            {
                "row": self.rows,
                "time": ("row", self.time),
                "lat": ("row", self.lat),
                "lon": ("row", self.lon),
                "variable": ("row", names),
            },
            {
                "members": len(found),
                **{
                    f"chi_square of {name}": squares[seen].mean().item()
                    for name, seen in self._uncertain()
                },
            },
        )

    def by_station(self, misfits: Tensor) -> list[dict[str, Any]]:
        """Returns, for each station and variable in the order of the table, how an ensemble fits.

        Arguments:
            misfits: The misfits of values with errors, in units of them, with shape (M, m): the
                residual of the observation's attribute `noisy`.

        Returns:
            A dict for each: `lat`, `lon` and `variable`; the number of `values`; the root mean
            squares of their `error` and of the `misfit` of the ensemble mean, in the units of the
            fields; and `chi_square`, the mean square of the misfits in units of errors.
        """
        seen = (self.errors > 0).numpy()
        r, error = misfits.double().cpu().numpy(), self.errors.double().numpy()[seen]
        keys = ["lat", "lon", "variable"]
        columns = {
            "lat": self.lat[seen],
            "lon": self.lon[seen],
            "variable": np.array(self.variables)[self.channel[seen]],
            "error": error**2,
            "misfit": (r.mean(axis=0) * error) ** 2,
            "chi_square": (r**2).mean(axis=0),
        }
        rows = library().DataFrame(columns).groupby(keys, sort=False)
        found = rows.mean()
        found[["error", "misfit"]] **= 0.5
        return found.assign(values=rows.size()).reset_index().to_dict("records")

    def _squares(self, values: Tensor) -> Tensor:
        error = torch.where(self.errors > 0, self.errors, torch.nan)
        return ((values - self.y) / error).square()

    def _uncertain(self) -> list[tuple[str, Tensor]]:
        """Returns the variables, and which of the values are of them and have errors."""
        with_error, channel = self.errors > 0, torch.from_numpy(self.channel)
        found = [(name, with_error & (channel == c)) for c, name in enumerate(self.variables)]
        return [(name, seen) for name, seen in found if seen.any()]

    def _of_frames(self, fields: Tensor) -> Tensor:
        """Returns the values of those frames alone that are needed."""
        expected = (len(self.frames), *self.shape[1:])
        if tuple(fields.shape[1:]) != expected:
            raise ConstraintError(
                "The decoder must return frames of shape (B, variables, latitudes, longitudes) = "
                f"(B, {', '.join(map(str, expected[1:]))}), got "
                f"{(fields.shape[0], *fields.shape[2:])}."
            )
        flat, weight = fields.flatten(start_dim=1), self._weight.to(fields)
        return (flat[:, self._index.to(fields.device)] * weight).sum(dim=-1)

    def _channels(self, names: np.ndarray) -> np.ndarray:
        """Returns the channel of each row."""
        spellings = {name: known(name) for name in set(names)}
        lacking = sorted(name for name, one in spellings.items() if one not in self._names)
        if lacking:
            raise ConstraintError(
                f"The table has the variable {', '.join(lacking)}, but the fields have only "
                f"{', '.join(self.variables)}. Drop these rows, or rename them."
            )
        return np.array([self._names.index(spellings[name]) for name in names])

    def _of_variables(
        self, values: Mapping[str, float] | None, name: str, default: float
    ) -> np.ndarray:
        """Returns a number for each variable, with shape (C)."""
        found = np.full(len(self.variables), default)
        for key, value in (values or {}).items():
            if known(key) not in self._names or not np.isfinite(value):
                raise ConstraintError(
                    f"Stations({name}=...) must have finite numbers for the variables "
                    f"{', '.join(self.variables)}, got {value} for {key!r}."
                )
            found[self._names.index(known(key))] = value
        return found

    def _interpolate(self, times: Any, how: str) -> None:
        """Finds the elements of the fields that values are sums of, and the frames."""
        frames = times_of(np.atleast_1d(times), "Stations(times=...)")
        self.shape = (len(frames), len(self.variables), *self.grid.shape)
        if frames.dtype != self.time.dtype:
            raise ConstraintError(
                f"The column time is of {self.time.dtype}, but Stations(times=...) is of "
                f"{frames.dtype}. Give both as dates, or both as numbers."
            )
        since, moments = (_seconds(t - frames[0]) for t in (frames, self.time))
        if (np.diff(since) <= 0).any():
            raise ConstraintError("Stations(times=...) must ascend, with each time once.")
        k, share, outside = between(since, moments, how == "linear")
        what = f"is outside of the frames, which are from {frames[0]} to {frames[-1]}: drop it"
        self._refuse(outside, what, self.time)
        self.frames = [int(f) for f in np.unique(k)]
        points = math.prod(self.grid.shape)
        k = np.searchsorted(self.frames, k)
        start = (k * len(self.variables) + self.channel[:, None]) * points
        if (share[:, 1] == 0).all():  # no second frame counts
            start, share = start[:, :1], share[:, :1]
        index, weight = self.grid.stencil(self.lat, self.lon)
        elements = start[:, :, None] + index[:, None]
        weights = share[:, :, None] * weight[:, None]
        self._index = torch.from_numpy(elements).flatten(start_dim=1)
        self._weight = torch.from_numpy(weights).flatten(start_dim=1)

    def _check_units(self, like: Tensor | None) -> None:
        """Refuses values that are far outside of the range of known fields."""
        if like is None:
            return
        if like.shape[-3:] != (len(self.variables), *self.grid.shape):
            raise ConstraintError(
                "Stations(like=...) takes fields of shape (*, variables, latitudes, longitudes), "
                f"got {tuple(like.shape)}."
            )
        fields = like.detach().double().cpu().movedim(-3, 0).flatten(start_dim=1)
        y = self.y.numpy()
        for c, name in enumerate(self.variables):
            values = fields[c][fields[c].isfinite()]
            if not len(values):
                continue
            low, high = (f.item() for f in values.aminmax())
            far = (self.channel == c) & ((y < 2 * low - high) | (y > 2 * high - low))
            what = (
                f"is of {name}, whose fields are from {low:.6g} to {high:.6g}: correct it, or "
                "give its units as scale, such as 9.80665 for heights, and as offset, such as "
                "273.15 for Celsius"
            )
            self._refuse(far & (high > low), what, y)

    def _refuse(self, wrong: np.ndarray, what: str, values: np.ndarray | None = None) -> None:
        """Refuses a table by the rows that are used."""
        _refuse(wrong, what, values, self.rows)

    def _refuse_twice(self) -> None:
        seen: dict[tuple, int] = {}
        columns = (self.time, self.lat, self.lon % 360, self.channel)
        keys = zip(*(column.tolist() for column in columns), strict=True)
        for row, key in zip(self.rows, keys, strict=True):
            if key in seen:
                raise ConstraintError(
                    f"Row {row} of the table has the time, place and variable of row {seen[key]}. "
                    "Drop one of them, or average them."
                )
            seen[key] = row

    def __repr__(self) -> str:
        counts = [int((self.channel == c).sum()) for c in range(len(self.variables))]
        names = (f"{n} of {v}" for n, v in zip(counts, self.variables, strict=True) if n)
        return f"Stations({', '.join(names)}, in {len(self.frames)} of {self.shape[0]} frames)"


def _variables(names: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Returns the names of the channels, as given and as they are known."""
    found = [] if isinstance(names, str) else [known(name) for name in names]
    if not found or len(set(found)) < len(found):
        raise ConstraintError(
            "Stations(variables=...) takes the names of the fields' channels, each once, such as "
            f"['t2m', 'z500'], got {names!r}."
        )
    return tuple(names), found


def _refuse(
    wrong: np.ndarray,
    what: str,
    values: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> None:
    """Refuses a table with wrong rows, and names the first."""
    if not wrong.any():
        return
    first, count = int(wrong.argmax()), int(wrong.sum())
    row = first if rows is None else rows[first]
    value = "" if values is None else f", with {values[first]},"
    raise ConstraintError(f"Row {row} of the table{value} {what} ({count} of {len(wrong)} rows).")


def _seconds(since: np.ndarray) -> np.ndarray:
    """Returns durations in seconds if they are of dates, in double precision."""
    return since / np.timedelta64(1, "s") if since.dtype.kind == "m" else since


def _check_decoder(decode: Any) -> None:
    if decode is not None and not callable(decode):
        raise ConstraintError(
            f"Stations takes a decoder as a function, got {type(decode).__name__}."
        )
