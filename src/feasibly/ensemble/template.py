"""The arrays of a store, as zarr makes and xarray reads them, and their values by member."""

__all__ = ["check", "dtype", "make", "tell"]

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import StoreError
from .files import read_json, write
from .layout import Layout
from .manifest import Config

MEMBERS = {
    "finished": ("bool", "whether the member is finished, so that its values are there"),
    "feasible": ("bool", "whether the member satisfies the constraint"),
    "violation": ("float64", "violation of the constraint"),
    "forward": ("float64", "forward evaluations of the network"),
    "backward": ("float64", "vector-Jacobian products through the network"),
    "seconds": ("float64", "time to draw the member"),
}
"""The variables with one value a member: their types, and what they are."""

UNITS = {"seconds": "s"}


def dtype(config: Config) -> np.dtype:
    """Returns how a value is stored: little-endian on every machine."""
    return np.dtype(config.dtype).newbyteorder("<")


def make(path: Path, config: Config, layout: Layout) -> None:
    """Makes a zarr store with all that is known before the run: coordinates, and arrays whose
    values are not written yet.

    Arguments:
        path: A folder that is not there.
        config: The configuration of the run.
        layout: The names, coordinates and units of a sample.

    Raises:
        StoreError: If zarr is not installed.
    """
    try:
        import zarr
    except ImportError as error:
        raise StoreError(
            f"A store needs zarr ({error}); pip install 'feasibly[ensemble]'."
        ) from error
    about = {k: v for k, v in asdict(config).items() if k != "source"}
    title = {"title": "ensemble of feasibly", "config": json.dumps(about)}
    group = zarr.create_group(path, zarr_format=3, attributes=title)

    def add(name: str, dims: Sequence[str], shape: Sequence[int], kind: Any, **words: Any) -> Any:
        return group.create_array(
            name,
            shape=tuple(shape),
            chunks=(1, *config.shape) if name == layout.name else tuple(shape),
            dtype=kind,
            fill_value=False if kind == "bool" else 0 if kind == "int64" else float("nan"),
            # raw: noise does not shrink, and a chunk cut short is told by its size
            compressors=None,
            dimension_names=list(dims),
            attributes=words,
        )

    add("member", ["member"], [config.members], "int64", long_name="member")[:] = np.arange(
        config.members
    )
    for axis, size in zip(layout.axes, config.shape, strict=True):
        words = {"units": axis.units, "long_name": axis.long_name or axis.name}
        values = np.arange(size) if axis.values is None else axis.values
        add(axis.name, [axis.name], [size], "float64", **words)[:] = np.asarray(values, float)
    for name, (kind, words) in MEMBERS.items():
        add(name, ["member"], [config.members], kind, units=UNITS.get(name, "1"), long_name=words)
    dims = ["member", *(axis.name for axis in layout.axes)]
    shape = (config.members, *config.shape)
    add(layout.name, dims, shape, config.dtype, units=layout.units, long_name=layout.long_name)
    with warnings.catch_warnings():
        # in one place, so that readers need not list the store and its folders that are no arrays
        warnings.filterwarnings("ignore", message=".*[Cc]onsolidated metadata")
        zarr.consolidate_metadata(path)


def tell(path: Path, values: Mapping[str, np.ndarray]) -> None:
    """Writes the variables of :data:`MEMBERS`, each with shape (members): one raw chunk each."""
    for name, (kind, _) in MEMBERS.items():
        chunk = path / name / "c" / "0"
        if any(folder.is_symlink() for folder in (path / name, chunk.parent)):
            raise StoreError(f"{chunk} leads out of the store; the store is forged.")
        chunk.parent.mkdir(exist_ok=True)
        write(chunk, values[name].astype(np.dtype(kind).newbyteorder("<")).tobytes())


def check(path: Path, config: Config) -> None:
    """Refuses the description of the samples' array if it is not what :func:`make` writes.

    Raises:
        StoreError: If it is another: readers would find other values than were written.
    """
    try:
        found = read_json(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); is it a store?") from error
    expected: dict[str, Any] = {
        "node_type": "array",
        "shape": [config.members, *config.shape],
        "data_type": config.dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [1, *config.shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    for name, value in expected.items():
        if not isinstance(found, dict) or found.get(name) != value:
            raise StoreError(
                f"{path} does not describe the run of the manifest ({name} should be {value}); "
                "the store is damaged."
            )
