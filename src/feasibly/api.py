"""What most users call: samples of a denoiser under a constraint."""

__all__ = ["plan", "sample"]

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from .constraints.base import Constraint
from .errors import CalibrationWarning, SamplingError
from .members import calling
from .network import Evaluations, Network
from .plausible import Reference, reference
from .policy import Plan, choose, differentiates, remarks
from .result import Result
from .samplers import Sampler
from .sampling import inspect, run, shape_of

SETTINGS = ("seed", "chunk", "callback", "observe")
UNSEEN = (
    "Fewer than 16 of 64 unconditional samples were finite. So members were not tested for "
    "plausibility, and what was not set by name was chosen for data of unit variance; test the "
    "denoiser by `python -m feasibly check`."
)


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
    monitor: bool = True,
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
        fast: Whether to take fewer evaluations, for samples that are a little farther from the
            constrained distribution. With `auto` it means 24 steps of particles in place of 32,
            and at most 4 tries in place of 8, or two thirds of the steps of posterior samples, or
            three quarters of PPR's where there are branches. With `ppr` it means fewer iterations
            of projections.
        options: Options of the method, such as `{"steps": 128}`.
        monitor: Whether to test which members are plausible; see :mod:`feasibly.plausible`. It
            takes 9 forward evaluations a member, or 5 from 64 elements on, and one more for its
            conditions, beside some 30 for each of 64 unconditional samples. These are taken by
            `auto` in any case, for its choice. Implausible members are resampled as infeasible
            ones are. If the denoiser has conditions that differ between members, those with other
            conditions are not tested, and the result says so.
        dtype: The type of the samples, float32 or float64.
        device: Where to sample; None for where the denoiser is.
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
    start = time.perf_counter()
    chosen = plan(
        denoiser,
        constraint,
        shape,
        method=method,
        attempts=attempts,
        fast=fast,
        options=options,
        monitor=monitor,
        dtype=dtype,
        device=device,
        chunk=settings.get("chunk"),
    )
    survey = chosen.survey
    settings |= {"dtype": dtype, "device": device, "reason": chosen.reason}
    if monitor:
        settings["monitor"] = survey
    seconds = time.perf_counter() - start
    for sentence in chosen.remarks:
        warnings.warn(sentence, CalibrationWarning, stacklevel=2)
    result = run(chosen.attempts, members, shape, **settings)
    result.evaluations += chosen.evaluations
    result.seconds += seconds
    result.warnings += chosen.remarks
    return result


def plan(
    denoiser: Any,
    constraint: Constraint | None,
    shape: Sequence[int],
    *,
    method: str | Sampler = "auto",
    attempts: int | None = None,
    fast: bool = False,
    options: dict[str, Any] | None = None,
    monitor: bool = True,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    chunk: int | None = None,
    survey: Reference | None = None,
) -> Plan:
    """Returns the samplers that :func:`sample` would take, and the reason.

    The arguments are those of :func:`sample`. Denoiser and constraint are tested on two states.
    If there is a constraint, 64 samples are taken without it, for the monitor and for the choice.
    With `survey`, those of an earlier plan for the problem stand for them.
    """
    gradient = differentiates(method, constraint)
    problem = inspect(denoiser, constraint, shape_of(shape), dtype, device, gradient=gradient)
    options = options or {}
    for name in ("method", "attempts", "fast"):
        if name in options:
            raise ValueError(f"{name!r} is an argument of sample(), and no option of a method.")
    evaluations = Evaluations()
    known: tuple[str, ...] = ()
    with calling([0], problem.x_0.device):  # whose target stands for all, if each has its own
        if constraint is not None and (monitor or method == "auto"):
            network = Network(denoiser, evaluations)
            try:
                survey = survey or reference(
                    network, shape, constraint, dtype=dtype, device=device, chunk=chunk
                )
                known = tuple(remarks(constraint, survey))
            except SamplingError:  # the run itself may say where
                known = (UNSEEN,)
        arguments = {"method": method, "survey": survey, "attempts": attempts, "fast": fast}
        chosen = choose(denoiser, constraint, problem, **arguments, **options)
    return replace(chosen, survey=survey, evaluations=evaluations, remarks=chosen.remarks + known)
