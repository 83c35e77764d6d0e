"""Tables of observations: their columns as arrays, their names and their times."""

__all__ = ["columns", "known", "numbers", "seconds", "times"]

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import ConstraintError
from .era5 import NAMES, channel

COLUMNS = ("time", "lat", "lon", "variable", "value", "error")
OTHERS = {"latitude": "lat", "longitude": "lon", "valid_time": "time"}
"""Names of columns elsewhere, and here."""


def columns(table: Any) -> dict[str, np.ndarray]:
    """Returns the columns of a table, each with shape (rows).

    Arguments:
        table: A pandas DataFrame, a mapping of arrays, or an `xarray.Dataset` along one
            dimension, with the columns of :data:`COLUMNS`. The last may be missing.

    Raises:
        ConstraintError: If it is no table, lacks a column, or its columns differ in length.
    """
    if hasattr(table, "data_vars"):
        held = {str(k): table[k] for k in table.variables}
    elif hasattr(table, "reset_index") and hasattr(table, "columns"):
        whole = table if table.index.names == [None] else table.reset_index()
        held = {str(k): whole[k] for k in whole.columns}
    elif isinstance(table, Mapping):
        held = dict(table)
    else:
        raise ConstraintError(
            "Stations takes a table: a pandas DataFrame, a dict of arrays or an xarray Dataset, "
            f"got {type(table).__name__}."
        )
    held = {**{OTHERS[k]: v for k, v in held.items() if k in OTHERS}, **held}
    missing = [name for name in COLUMNS[:-1] if name not in held]
    if missing:
        raise ConstraintError(
            f"The table lacks the column {', '.join(missing)}; it has "
            f"{', '.join(map(str, held)) or 'none'}. Rename yours to {', '.join(COLUMNS)}."
        )
    found = {name: _array(held[name]) for name in COLUMNS if name in held}
    shapes = {name: column.shape for name, column in found.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) > 1:
        raise ConstraintError(
            "The columns of the table must have one length, got the shapes "
            f"{', '.join(f'{name} {shape}' for name, shape in shapes.items())}."
        )
    return found


def known(name: str) -> str:
    """Returns one name for all names of a variable: `t2m` for `2m_temperature`, `geopotential`
    for `z`, and the name itself for a variable that is not known."""
    try:
        return channel(name).name
    except ValueError:
        return NAMES[name].long if name in NAMES else name


def numbers(column: np.ndarray, name: str) -> np.ndarray:
    """Returns a column of numbers in double precision.

    Raises:
        ConstraintError: If they are no numbers.
    """
    if column.dtype.kind in "mM":
        raise ConstraintError(f"The column {name} must have numbers, and has times.")
    try:
        return np.array([np.nan if v is None else v for v in column.tolist()], np.float64)
    except (TypeError, ValueError) as error:
        raise ConstraintError(f"The column {name} must have numbers ({error}).") from error


def times(values: Any, name: str) -> np.ndarray:
    """Returns times as numbers of hours, say, in double precision; or as numpy's `datetime64` in
    UTC, if they are dates.

    Raises:
        ConstraintError: If they are neither, or one is missing.
    """
    array = np.atleast_1d(_array(values))
    plain = array.dtype == object and all(isinstance(v, (int, float)) for v in array)
    if array.dtype.kind in "iuf" or plain:
        found = array.astype(np.float64)
        missing = ~np.isfinite(found)
    else:
        try:
            if array.dtype.kind != "M":  # numpy would drop a zone
                array = np.array([_utc(v) for v in array.tolist()], "datetime64[ns]")
            found = array.astype("datetime64[ns]")
        except (TypeError, ValueError) as error:
            raise ConstraintError(
                f"{name} must have dates or numbers, and has others ({error})."
            ) from error
        missing = np.isnat(found)
    if missing.any():
        raise ConstraintError(
            f"{name} lacks {int(missing.sum())} of {len(found)} times, the first in row "
            f"{int(missing.argmax())}. Drop these rows."
        )
    return found


def seconds(values: np.ndarray, first: Any) -> np.ndarray:
    """Returns times since the first, in seconds if they are dates, in double precision."""
    since = values - first
    return since / np.timedelta64(1, "s") if since.dtype.kind == "m" else since


def _array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, np.ma.MaskedArray):
        return values.astype(np.float64).filled(np.nan)
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        return np.asarray(list(values), dtype=object)


def _utc(moment: Any) -> Any:
    """Returns a date or its text in UTC; the zone of those without one is UTC."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.astimezone(UTC).replace(tzinfo=None)
    if isinstance(moment, (int, float)) and not np.isnan(moment):
        raise ValueError(f"{moment!r} among dates")
    return moment
