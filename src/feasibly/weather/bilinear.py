"""Values of fields between the points of a latitude-longitude grid, and between frames."""

__all__ = ["Grid", "Interpolation", "Stencil", "between"]

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import ConstraintError

NEAR = 1.5
"""A grid goes around the planet, or reaches a pole, if what is left is at most so many steps."""

ROUNDING = 1e-6
"""Degrees by which a station may lie outside of a grid."""


class Stencil(NamedTuple):
    """The points of a frame around some places, and their weights.

    Attributes:
        index: The four points around each place, as indices of a flat frame, with shape (n, 4).
        weight: Their weights, likewise.
        capped: The places beyond the last row of a grid, with shape (p).
        cap: The weights there of all points of the row of the first of the four, with shape
            (p, lon).
    """

    index: np.ndarray
    weight: np.ndarray
    capped: np.ndarray
    cap: np.ndarray


class Grid:
    """A grid of latitudes and longitudes, around the planet or of a region.

    Arguments:
        latitude: The latitudes in degrees, ascending or descending, with shape (lat).
        longitude: The longitudes in degrees, ascending, with shape (lon).

    Attributes:
        around: Whether the grid goes around the planet, so that the last longitude is next to the
            first.
        caps: The row next to the south and to the north pole; None where the grid has a row on
            the pole or does not reach it.

    Raises:
        ConstraintError: If they are no grid.
    """

    def __init__(self, latitude: Tensor, longitude: Tensor) -> None:
        self.latitude = _axis(latitude, "latitude")
        self.longitude = _axis(longitude, "longitude")
        steps, turns = np.diff(self.latitude), np.diff(self.longitude)
        if not ((steps > 0).all() or (steps < 0).all()) or abs(self.latitude).max() > 90:
            raise ConstraintError(
                "Stations(latitude=...) must ascend or descend within [-90, 90] degrees, got "
                f"{_shown(self.latitude)}."
            )
        left = 360 - (self.longitude[-1] - self.longitude[0])
        if not (turns > 0).all() or left <= ROUNDING:
            raise ConstraintError(
                "Stations(longitude=...) must ascend and have each meridian once, got "
                f"{_shown(self.longitude)}. Roll the fields, and drop a second 0 or 360."
            )
        self.around = bool(left <= NEAR * turns.max())
        low, high = (0, -1) if steps[0] > 0 else (-1, 0)
        self.caps = tuple(
            row % len(self.latitude) if self._reaches(row) else None for row in (low, high)
        )

    @property
    def shape(self) -> tuple[int, int]:
        """The number of latitudes and of longitudes."""
        return len(self.latitude), len(self.longitude)

    def outside(self, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
        """Returns which places are outside of the grid, with shape (n)."""
        low, high = self.latitude.min() - ROUNDING, self.latitude.max() + ROUNDING
        south, north = self.caps
        out = ((lat < low) & (south is None)) | ((lat > high) & (north is None))
        if self.around:
            return out
        return out | (self._east(lon) > self.longitude[-1] - self.longitude[0] + ROUNDING)

    def stencil(self, lat: np.ndarray, lon: np.ndarray, wind: np.ndarray) -> Stencil:
        """Returns the points around places, and their weights.

        Beyond the last row, the value of the pole counts. It is the mean of that row. A component
        of the wind turns with the longitude, and its value at the pole is the wave of one period
        that is closest to the row.

        Arguments:
            lat: The latitudes of the places in degrees, with shape (n).
            lon: Their longitudes, likewise.
            wind: Where a component of the wind is asked for.
        """
        rows, columns = self.shape
        flip = self.latitude[0] > self.latitude[-1]
        ascending = self.latitude[::-1] if flip else self.latitude
        i, u = _bracket(ascending, np.clip(lat, ascending[0], ascending[-1]))
        i_0, i_1 = (rows - 1 - i, rows - 2 - i) if flip else (i, i + 1)
        ends = self.longitude - self.longitude[0]
        j, v = _bracket(np.append(ends, 360.0) if self.around else ends, self._east(lon))
        j_1 = (j + 1) % columns
        share = np.zeros(len(lat))  # of the pole
        for row, pole in zip(self.caps, (-90.0, 90.0), strict=True):
            if row is None:
                continue
            found = np.clip((lat - self.latitude[row]) / (pole - self.latitude[row]), 0, 1)
            beyond = found > 0
            share[beyond], u[beyond] = found[beyond], 0.0
            i_0, i_1 = np.where(beyond, row, i_0), np.where(beyond, row, i_1)
        index = np.stack([r * columns + c for r in (i_0, i_1) for c in (j, j_1)], axis=1)
        weight = np.stack([a * b for a in (1 - u, u) for b in (1 - v, v)], axis=1)
        weight *= (1 - share)[:, None]
        (capped,) = np.nonzero(share)
        cap = share[capped, None] * self._pole(lon[capped], wind[capped])
        return Stencil(_where_it_counts(index, weight), weight, capped, cap)

    def _reaches(self, row: int) -> bool:
        gap = 90 - abs(self.latitude[row])
        step = abs(np.diff(self.latitude))[0 if row == 0 else -1]
        # by its sign, a row belongs to the pole of its own hemisphere
        own = (self.latitude[row] > self.latitude.mean()) == (self.latitude[row] > 0)
        return bool(self.around and own and ROUNDING < gap <= NEAR * step)

    def _east(self, lon: np.ndarray) -> np.ndarray:
        """Returns the degrees east of the first longitude, in [0, 360)."""
        east = (lon - self.longitude[0]) % 360
        # rounding of the first longitude itself
        return np.where(east > 360 - ROUNDING, 0.0, east)

    def _pole(self, lon: np.ndarray, wind: np.ndarray) -> np.ndarray:
        """Returns the weights of a row's longitudes for the value at the pole, (n, lon)."""
        turns = np.diff(np.append(self.longitude, self.longitude[0] + 360))
        width = (turns + np.roll(turns, 1)) / 720
        wave = 2 * np.cos(np.deg2rad(lon[:, None] - self.longitude))
        return np.where(wind[:, None], wave, 1.0) * width


def between(
    frames: np.ndarray, moments: np.ndarray, linear: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the two frames next to each moment, and which are outside.

    Arguments:
        frames: The times of the frames, ascending, with shape (T).
        moments: The times, in the same units, with shape (n).
        linear: Whether both frames count, by their distances, or the nearest alone. If the
            nearest counts, moments may be half a step before the first frame or behind the last.

    Returns:
        The frames and their weights, each with shape (n, 2), and which moments are outside, (n).
    """
    reach = (0.0, 0.0)
    if not linear and len(frames) > 1:
        reach = (frames[1] - frames[0]) / 2, (frames[-1] - frames[-2]) / 2
    outside = (moments < frames[0] - reach[0]) | (moments > frames[-1] + reach[1])
    if len(frames) == 1:
        k, w = np.zeros(len(moments), np.int64), np.zeros(len(moments))
    else:
        k, w = _bracket(frames, np.clip(moments, frames[0], frames[-1]))
    w = w if linear else (w > 0.5).astype(np.float64)
    weight = np.stack([1 - w, w], axis=1)
    index = np.stack([k, np.minimum(k + 1, len(frames) - 1)], axis=1)
    return _where_it_counts(index, weight), weight, outside


class Interpolation:
    """Values of flat samples as sums of some of their elements.

    Arguments:
        start: Where the frames of each value begin in a sample, with shape (n, frames).
        share: The weights of these frames, likewise.
        stencil: The points of a frame.
        columns: The number of longitudes.
    """

    def __init__(
        self, start: np.ndarray, share: np.ndarray, stencil: Stencil, columns: int
    ) -> None:
        index, weight, capped, cap = stencil
        row = (index[capped, 0] // columns * columns)[:, None] + np.arange(columns)
        self.index, self.weight = _products(start, share, index, weight)
        self.rim, self.cap = _products(start[capped], share[capped], row, cap)
        self.capped = torch.from_numpy(capped)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the values of samples, with shape (B, D), with shape (B, n)."""
        values = (x[:, self.index.to(x.device)] * self.weight.to(x)).sum(dim=-1)
        if not len(self.capped):
            return values
        more = (x[:, self.rim.to(x.device)] * self.cap.to(x)).sum(dim=-1)
        return values.index_add(1, self.capped.to(x.device), more)


def _axis(values: Tensor, name: str) -> np.ndarray:
    found = torch.as_tensor(values).detach().double().cpu().numpy()
    if found.ndim != 1 or len(found) < 2 or not np.isfinite(found).all():
        raise ConstraintError(
            f"Stations({name}=...) takes at least two finite numbers in a row, got shape "
            f"{found.shape}."
        )
    return found


def _where_it_counts(index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns indices with shape (n, K), those without a weight replaced by that of the largest.

    A neighbour that does not count may have no value, as the sea's temperature over land, and a
    frame that does not count need not be decoded.
    """
    largest = np.take_along_axis(index, weight.argmax(axis=1)[:, None], axis=1)
    return np.where(weight == 0, largest, index)


def _products(
    start: np.ndarray, share: np.ndarray, index: np.ndarray, weight: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Returns the elements of all points in all frames, and their weights, (n, frames * K)."""
    elements = start[:, :, None] + index[:, None]
    weights = share[:, :, None] * weight[:, None]
    flat = len(elements), elements.shape[1] * elements.shape[2]
    return torch.from_numpy(elements.reshape(flat)), torch.from_numpy(weights.reshape(flat))


def _bracket(ends: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the interval between ascending ends of each number, and where it is in it."""
    k = np.clip(np.searchsorted(ends, at, side="right") - 1, 0, len(ends) - 2)
    return k, np.clip((at - ends[k]) / (ends[k + 1] - ends[k]), 0.0, 1.0)


def _shown(values: np.ndarray) -> str:
    return f"{len(values)} values from {values[0]:g} to {values[-1]:g}"
