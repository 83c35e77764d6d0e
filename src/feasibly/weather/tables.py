"""Tables of observations: their columns as arrays, their names and their times."""

__all__ = ["columns", "known", "library", "times"]

from typing import Any

import numpy as np
from torch import Tensor

from ..errors import ConstraintError
from .era5 import NAMES, channel

COLUMNS = ("time", "lat", "lon", "variable", "value", "error")
OTHERS = {"latitude": "lat", "longitude": "lon", "valid_time": "time"}
"""Names of columns elsewhere, and here."""


def columns(table: Any) -> dict[str, np.ndarray]:
    """Returns the columns of a table, each with shape (rows): times, numbers and names.

    Arguments:
        table: A pandas DataFrame, a mapping of arrays, or an `xarray.Dataset` along one
            dimension, with the columns of :data:`COLUMNS`. The last may be missing.

    Raises:
        ConstraintError: If it is no table, lacks a column or all rows, or its columns differ in
            length or have other values.
    """
    pandas = library()
    try:
        if hasattr(table, "to_dataframe"):
            frame = table.to_dataframe().reset_index()
        elif isinstance(table, pandas.DataFrame):
            frame = table if table.index.names == [None] else table.reset_index()
        else:
            plain = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in table.items()}
            frame = pandas.DataFrame({k: _array(v) for k, v in plain.items()})
    except (AttributeError, TypeError, ValueError) as error:
        raise ConstraintError(
            "Stations takes a table: a pandas DataFrame, a dict of arrays of one length or an "
            f"xarray Dataset along one dimension, got {type(table).__name__} ({error})."
        ) from error
    frame = frame.rename(columns={k: v for k, v in OTHERS.items() if v not in frame})
    missing = [name for name in COLUMNS[:-1] if name not in frame]
    if missing or not len(frame):
        raise ConstraintError(
            f"The table must have rows and the columns {', '.join(COLUMNS)}; it has {len(frame)} "
            f"rows and lacks {', '.join(missing) or 'no column'}."
        )
    found = {"time": times(frame["time"], "The column time")}
    found["variable"] = frame["variable"].astype(str).to_numpy(object)
    for name in ("lat", "lon", "value", "error"):
        column = frame[name] if name in frame else pandas.Series(np.nan, frame.index)
        if column.dtype.kind in "mM":
            raise ConstraintError(f"The column {name} must have numbers, but has times.")
        try:
            found[name] = pandas.to_numeric(column).to_numpy(np.float64)
        except (TypeError, ValueError) as error:
            raise ConstraintError(f"The column {name} must have numbers ({error}).") from error
    return found


def known(name: str) -> str:
    """Returns one name for all names of a variable: `t2m` for `2m_temperature`, `geopotential`
    for `z`, and the name itself for a variable that is not known."""
    try:
        return channel(name).name
    except ValueError:
        return NAMES[name].long if name in NAMES else name


def times(values: Any, name: str) -> np.ndarray:
    """Returns times as numbers of hours, say, in double precision; or as numpy's `datetime64` in
    UTC, if they are dates.

    Raises:
        ConstraintError: If they are neither, or one is missing.
    """
    pandas = library()
    series = pandas.Series(_array(values)).infer_objects()
    if series.dtype.kind in "iuf":
        found = series.to_numpy(np.float64)
    else:
        try:
            dates = pandas.to_datetime(series, utc=True, format="ISO8601")
        except (TypeError, ValueError) as error:
            raise ConstraintError(
                f"{name} must have dates or numbers, and has others ({error})."
            ) from error
        found = dates.dt.tz_localize(None).to_numpy("datetime64[ns]")
    missing = pandas.isna(found) | (series == np.inf).to_numpy()
    if missing.any():
        raise ConstraintError(
            f"{name} lacks {int(missing.sum())} of {len(found)} times, the first in row "
            f"{int(missing.argmax())}. Drop these rows."
        )
    return found


def library() -> Any:
    """Returns pandas.

    Raises:
        ImportError: If it is missing.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            f"Stations reads tables by pandas, which cannot be imported ({error}); "
            "`pip install feasibly[weather]` brings it."
        ) from error
    return pandas


def _array(values: Any) -> Any:
    return values if hasattr(values, "index") and hasattr(values, "dtype") else np.ma.array(values)
