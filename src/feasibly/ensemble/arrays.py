"""What zarr reads of a store, besides the members: files that follow from the manifest alone.

References:
    | Zarr core specification, version 3
    | https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

__all__ = ["MEMBERS", "about", "files"]

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from .manifest import Manifest

MEMBERS = {
    "finished": ("bool", "whether the member is finished, so that its values are there"),
    "feasible": ("bool", "whether the member satisfies the constraint"),
    "violation": ("float64", "violation of the constraint"),
    "oddness": ("float64", "denoising error, in units of what unconditional samples allow"),
    "pareto_k": ("float64", "k-hat of the importance weights of the member's population"),
    "ess": ("float64", "their effective sample size"),
    "log_evidence": ("float64", "the logarithm of their mean"),
    "forward": ("float64", "forward evaluations of the network"),
    "backward": ("float64", "vector-Jacobian products through the network"),
    "seconds": ("float64", "time to sample the member"),
}
"""The variables with one value a member: their types, and what they are."""

UNITS = {"seconds": "s"}

FIT = "mean square of the misfits in units of their errors, about one for members that fit"
"""What `chi_square` is, which a store has if there are observations with errors."""


def files(manifest: Manifest) -> dict[str, bytes]:
    """Returns the files by their paths in the store: the descriptions of the arrays, that of the
    whole, then coordinates. In this order a reader always finds values or none."""
    config, layout = manifest.config, manifest.layout
    count, names = config.members, list(manifest.observations)
    arrays = {"member": _array(["member"], [count], "int64", long_name="member")}
    chunks = {"member": np.arange(count, dtype="<i8")}
    for axis, size in zip(layout.axes, config.shape, strict=True):
        words = {"units": axis.units, "long_name": axis.long_name or axis.name}
        arrays[axis.name] = _array([axis.name], [size], "float64", **words)
        values = np.arange(size) if axis.values is None else axis.values
        chunks[axis.name] = np.asarray(values, dtype="<f8")
    for name, (kind, words) in MEMBERS.items():
        units = UNITS.get(name, "1")
        arrays[name] = _array(["member"], [count], kind, units=units, long_name=words)
    if names:
        words = {"units": "1", "long_name": FIT, "observations": names}
        shape = [count, len(names)]
        arrays["chi_square"] = _array(["member", "observation"], shape, "float64", **words)
    dims = ["member", *(axis.name for axis in layout.axes)]
    words = {"units": layout.units, "long_name": layout.long_name}
    made = _array(dims, [count, *config.shape], config.dtype, **words)
    made["chunk_grid"]["configuration"]["chunk_shape"][0] = 1
    arrays[layout.name] = made
    # in one place, so that readers need not list the store and its folders that are no arrays
    inner = {"kind": "inline", "must_understand": False, "metadata": arrays}
    group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": inner}
    group["attributes"] = {"title": "ensemble of feasibly", "config": about(manifest)}
    found = {f"{name}/zarr.json": json.dumps(one).encode() for name, one in arrays.items()}
    found["zarr.json"] = json.dumps(group).encode()
    return found | {f"{name}/c/0": values.tobytes() for name, values in chunks.items()}


def about(manifest: Manifest) -> str:
    """Returns a configuration for the readers of a store, without what starts the run again."""
    return json.dumps({k: v for k, v in asdict(manifest.config).items() if k != "source"})


def _array(dims: Sequence[str], shape: list[int], kind: str, **words: Any) -> dict[str, Any]:
    """Returns the description of an array in one raw chunk, whose size says whether it is
    whole."""
    endian = {} if kind == "bool" else {"configuration": {"endian": "little"}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": {"bool": False, "int64": 0}.get(kind, "NaN"),
        "codecs": [{"name": "bytes", **endian}],
        "attributes": words,
        "dimension_names": list(dims),
        "storage_transformers": [],
    }
