"""Interpolation between the points of a latitude-longitude grid, and between frames."""

__all__ = ["Grid", "between"]

import numpy as np
from torch import Tensor

from ..errors import ConstraintError

NEAR = 1.5
"""A grid goes around the planet, or reaches a pole, if what is left is at most so many steps."""

ROUNDING = 1e-6
"""Degrees by which a station may lie outside of a grid."""


class Grid:
    """A grid of latitudes and longitudes, around the planet or of a region.

    Arguments:
        latitude: The latitudes in degrees, ascending or descending, with shape (lat).
        longitude: The longitudes in degrees, ascending, with shape (lon).

    Attributes:
        around: Whether the last longitude is next to the first.

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
                f"{self.latitude}."
            )
        left = 360 - (self.longitude[-1] - self.longitude[0])
        if not (turns > 0).all() or left <= ROUNDING:
            raise ConstraintError(
                "Stations(longitude=...) must ascend and have each meridian once, got "
                f"{self.longitude}. Roll the fields, and drop a second 0 or 360."
            )
        self.around = bool(left <= NEAR * turns.max())

    @property
    def shape(self) -> tuple[int, int]:
        """The number of latitudes and of longitudes."""
        return len(self.latitude), len(self.longitude)

    def outside(self, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
        """Returns which places are outside of the grid, with shape (n).

        A grid around the planet whose last row is next to a pole reaches to the pole.
        """
        ends = np.sort(self.latitude)
        low, high = ends[0] - ROUNDING, ends[-1] + ROUNDING
        if self.around:
            low = -90 if ends[0] + 90 <= NEAR * (ends[1] - ends[0]) else low
            high = 90 if 90 - ends[-1] <= NEAR * (ends[-1] - ends[-2]) else high
        out = (lat < low) | (lat > high)
        width = self.longitude[-1] - self.longitude[0]
        return out if self.around else out | (self._east(lon) > width + ROUNDING)

    def stencil(self, lat: np.ndarray, lon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the four points around places, as indices of a flat frame, and their weights,
        each with shape (n, 4). Beyond the last row, that row counts.

        Arguments:
            lat: The latitudes of the places in degrees, with shape (n).
            lon: Their longitudes, likewise.
        """
        rows, columns = self.shape
        flip = self.latitude[0] > self.latitude[-1]
        i, u = _bracket(self.latitude[::-1] if flip else self.latitude, lat)
        i_0, i_1 = (rows - 1 - i, rows - 2 - i) if flip else (i, i + 1)
        ends = self.longitude - self.longitude[0]
        j, v = _bracket(np.append(ends, 360.0) if self.around else ends, self._east(lon))
        j_1 = (j + 1) % columns
        index = np.stack([r * columns + c for r in (i_0, i_1) for c in (j, j_1)], axis=1)
        weight = np.stack([a * b for a in (1 - u, u) for b in (1 - v, v)], axis=1)
        return _where_it_counts(index, weight), weight

    def _east(self, lon: np.ndarray) -> np.ndarray:
        """Returns the degrees east of the first longitude, in [0, 360)."""
        east = (lon - self.longitude[0]) % 360
        return np.where(east > 360 - ROUNDING, 0.0, east)


def between(
    frames: np.ndarray, moments: np.ndarray, linear: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the two frames next to each moment and their weights, each with shape (n, 2), and
    which moments are outside, with shape (n).

    Arguments:
        frames: The times of the frames, ascending, with shape (T).
        moments: The times, in the same units, with shape (n).
        linear: Whether both frames count, by their distances, or the nearest alone. If the
            nearest counts, moments may be half a step before the first frame or behind the last.
    """
    reach = (0.0, 0.0)
    if not linear and len(frames) > 1:
        reach = (frames[1] - frames[0]) / 2, (frames[-1] - frames[-2]) / 2
    outside = (moments < frames[0] - reach[0]) | (moments > frames[-1] + reach[1])
    if len(frames) == 1:
        k, w = np.zeros(len(moments), np.int64), np.zeros(len(moments))
    else:
        k, w = _bracket(frames, moments)
    w = w if linear else (w > 0.5).astype(np.float64)
    weight = np.stack([1 - w, w], axis=1)
    index = np.stack([k, np.minimum(k + 1, len(frames) - 1)], axis=1)
    return _where_it_counts(index, weight), weight, outside


def _axis(values: Tensor, name: str) -> np.ndarray:
    found = np.asarray(values, np.float64)
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


def _bracket(ends: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the interval between ascending ends of each number, and where it is in it."""
    k = np.clip(np.searchsorted(ends, at, side="right") - 1, 0, len(ends) - 2)
    return k, np.clip((at - ends[k]) / (ends[k + 1] - ends[k]), 0.0, 1.0)
