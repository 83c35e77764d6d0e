"""The account that a run of a sampler keeps."""

__all__ = ["Run", "assess", "finite", "warn_if_infeasible"]

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..errors import InfeasibleWarning
from ..minimizers.base import per_sample
from ..network import Calls
from ..result import Result, Snapshot


@dataclass
class Run:
    """What the attempts at some members have in common, and what they cost."""

    seed: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | str
    callback: Callable[[Snapshot], None] | None
    calls: Calls = field(default_factory=Calls)
    trace: list[Snapshot] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)
    failure: str = ""  # where all members of an attempt failed
    latest: Result | None = None  # the members as they stood after the last attempt
    paths: dict[int, list[float]] = field(default_factory=dict)  # violations by member and step

    def note(
        self,
        sampler: Any,
        ids: list[int],
        x_0: Tensor,
        failed: Tensor,
        attempt: int,
        step: int,
        sigma: float,
    ) -> None:
        """Takes down the state of an attempt at the members `ids` after a step."""
        c, feasible = assess(sampler.constraint, x_0)
        if sampler.constraint is not None:
            if step == 1:  # the path of an earlier attempt ends
                self.paths.update((i, []) for i in ids)
            for i, violation in zip(ids, c.tolist(), strict=True):
                self.paths[i].append(violation)
        known = c[~failed] if sampler.constraint is not None else c.new_full((1,), math.nan)
        known = known if known.numel() else c.new_full((1,), math.nan)
        snapshot = Snapshot(
            attempt=attempt,
            members=failed.numel(),
            step=step,
            steps=sampler.steps,
            sigma=sigma,
            forward=self.calls.forward,
            backward=self.calls.backward,
            median=known.median().item(),
            worst=known.max().item(),
            feasible=(feasible & ~failed).double().mean().item(),
            failed=int(failed.sum()),
            seconds=time.perf_counter() - self.start,
        )
        self.trace.append(snapshot)
        if self.callback is not None:
            self.callback(snapshot)

    def result(
        self, x_0: Tensor, c: Tensor, feasible: Tensor, ids: list[int], sampler: Any
    ) -> Result:
        """Closes the account; `c` and `feasible` are those of the samples `x_0`."""
        return Result(
            samples=x_0.clone(),
            violation=c.clone(),
            feasible=feasible.clone(),
            members=ids,
            seed=self.seed,
            tolerance=math.inf if sampler.constraint is None else sampler.constraint.tolerance,
            calls=self.calls,
            trace=self.trace,
            seconds=time.perf_counter() - self.start,
            method=repr(sampler),
        )


def assess(constraint: Constraint | None, x_0: Tensor) -> tuple[Tensor, Tensor]:
    """The violation of each member and whether it is feasible; infinite and not, where a member
    is not finite; zero and feasible, where there is no constraint."""
    good = finite(x_0)
    if constraint is None:
        c, feasible = torch.zeros_like(good, dtype=x_0.dtype), good
    else:
        c, feasible = constraint.assess(torch.where(per_sample(good, x_0), x_0, 0.0))
    return torch.where(good & c.isfinite(), c, torch.inf), good & feasible


def finite(x: Tensor) -> Tensor:
    """Which members of `x` are finite."""
    return x.isfinite().flatten(start_dim=1).all(dim=1)


def shortfall(result: Result, sampler: Any) -> str:
    """Says which members are infeasible and what to try; nothing if there is nothing to say. Of
    a method that does not land on the constraint, some infeasible members are no news."""
    some, all_of = int((~result.feasible).sum()), len(result.members)
    if not some or (some < all_of and not sampler.lands):
        return ""
    missed = result.violation[~result.feasible]
    if some < all_of:
        return (
            f"{some} of {all_of} members do not satisfy {sampler.constraint!r} (violation "
            f"{missed.min():.3g} to {missed.max():.3g}); `result.feasible` tells which. To bring "
            f"them there, {sampler.advice}."
        )
    reason = (
        "the constraint may be infeasible for this model, or needs a larger tolerance, or the "
        "denoiser is not right (`python -m feasibly check` tests both); or "
        if sampler.lands
        else "the method steers toward a constraint and does not land on it: "
    )
    return (
        f"None of the {all_of} members satisfies {sampler.constraint!r} (best violation "
        f"{missed.min():.3g}): {reason}{sampler.advice}."
    )


def warn_if_infeasible(result: Result, sampler: Any) -> None:
    """Warns the caller of `sample` of infeasible members."""
    message = shortfall(result, sampler)
    if message:
        # over this function, `sample` and the decorator around it
        warnings.warn(message, InfeasibleWarning, stacklevel=4)
