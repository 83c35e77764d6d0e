"""Samples as ArviZ reads them: `pip install arviz`."""

__all__ = ["to_arviz"]

from collections.abc import Sequence
from typing import Any

import arviz_base

from ..result import Result


def to_arviz(ensemble: Any, name: str = "x", dims: Sequence[str] | None = None) -> Any:
    """Returns samples as an `xarray.DataTree` with ArviZ's groups `posterior` and `sample_stats`.

    The samples are the draws of one chain, and a draw's coordinate is the sample's index. The
    group `sample_stats` has what is known of each, such as `violation`, `feasible` and `oddness`.
    Samples that failed are left out; infeasible samples are kept.

    ArviZ computes its effective sample size from the order of the draws, which says nothing of
    importance weights. That of the weights is the attribute `ess` of `posterior`, next to their
    `pareto_k`; for a store both are in `sample_stats`, by population.

    Arguments:
        ensemble: A result; or the `xarray.Dataset` of one, or of a store of an ensemble, such as
            `xarray.open_zarr("run.zarr")`. Of a store, samples that are not finished are left out.
        name: The name of the sample among the variables of `posterior`.
        dims: The names of a result's axes; see :meth:`feasibly.Result.to_xarray`.

    Raises:
        ValueError: If there is no finite sample, or the dataset has no samples by member.

    References:
        | Exploratory analysis of Bayesian models with ArviZ (Martin et al., 2026)
        | https://python.arviz.org
    """
    about = {}
    if isinstance(ensemble, Result):
        about = {"ess": ensemble.ess, "pareto_k": ensemble.pareto_k}
        ensemble = ensemble.to_xarray(dims)
    samples = getattr(ensemble, "data_vars", {}).get("samples")
    if samples is None or samples.dims[:1] != ("member",):
        raise ValueError(
            f"to_arviz() got {type(ensemble).__name__}; it takes a Result, Result.load(path) or a "
            "dataset with `samples` by `member`, such as xarray.open_zarr of a store."
        )
    axes = ensemble["samples"].dims[1:]
    good = ensemble["samples"].notnull().all(axes).values
    if "finished" in ensemble:
        good &= ensemble["finished"].values
    if not good.any():
        raise ValueError("to_arviz(): none of the samples is finite.")
    found = ensemble[[k for k, v in ensemble.items() if v.dims[:1] == ("member",)]]
    found = found.isel(member=good)
    values = {str(k): v.values[None] for k, v in found.items() if k != "samples"}
    return arviz_base.from_dict(
        {"posterior": {name: found["samples"].values[None]}, "sample_stats": values},
        coords={"draw" if k == "member" else str(k): v.values for k, v in found.coords.items()},
        dims={name: list(axes)} | {str(k): list(v.dims[1:]) for k, v in found.items()},
        attrs={"posterior": {**found.attrs, **about}},
    )
