"""What most users call: samples of a denoiser under a constraint."""

__all__ = ["plan", "sample"]

from collections.abc import Sequence
from typing import Any

import torch

from .constraints.base import Constraint
from .policy import Plan, choose
from .result import Result
from .samplers import Sampler
from .sampling import inspect, run, shape_of

SETTINGS = ("seed", "chunk", "callback", "observe")


def sample(
    denoiser: Any,
    constraint: Constraint | None,
    members: int | Sequence[int],
    shape: Sequence[int],
    *,
    method: str | Sampler = "auto",
    attempts: int | None = None,
    fast: bool = False,
    options: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result:
    """Samples an ensemble under a constraint.

    The result says which samplers ran, and why.

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`, such as
            :func:`feasibly.wrap` returns.
        constraint: The constraint; None for none.
        members: The number of members, or their indices.
        shape: The shape of one sample.
        method: `auto`; a method's name, one of :data:`feasibly.samplers.METHODS`; or a sampler,
            which is taken as it is.
        attempts: How often a member is sampled, at most; None for the policy's choice.
        fast: Whether projections take fewer iterations, for samples that are a little farther
            from the constrained distribution.
        options: Options of the method, such as `{"steps": 128}`.
        dtype: The type of the samples, float32 or float64.
        device: Where to sample; None for where the denoiser's parameters are.
        settings: Settings of the run: `seed`, `chunk`, `callback`, `observe`; see
            :func:`feasibly.sampling.run`.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        SamplingError: If a step fails, or all members do.
        ValueError: If there is no such method, or an option does not fit it.
    """
    for name in settings:
        if name not in SETTINGS:
            raise TypeError(
                f"sample() has no argument {name!r}; an option of the method is given as "
                f"options={{{name!r}: ...}}."
            )
    chosen = plan(
        denoiser,
        constraint,
        shape,
        method=method,
        attempts=attempts,
        fast=fast,
        options=options,
        dtype=dtype,
        device=device,
    )
    settings |= {"dtype": dtype, "device": device, "reason": chosen.reason}
    return run(chosen.attempts, members, shape, **settings)


def plan(
    denoiser: Any,
    constraint: Constraint | None,
    shape: Sequence[int],
    *,
    method: str | Sampler = "auto",
    attempts: int | None = None,
    fast: bool = False,
    options: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Plan:
    """Returns the samplers that :func:`sample` would take, and the reason.

    The arguments are those of :func:`sample`. Denoiser and constraint are tested on two states.
    """
    problem = inspect(denoiser, constraint, shape_of(shape), dtype, device)
    options = options or {}
    for name in ("method", "attempts", "fast"):
        if name in options:
            raise ValueError(f"{name!r} is an argument of sample(), and no option of a method.")
    arguments = {"method": method, "attempts": attempts, "fast": fast}
    return choose(denoiser, constraint, problem, **arguments, **options)
