"""What most users call: samples of a denoiser under a constraint."""

__all__ = ["plan", "sample"]

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .arguments import placed, shape_of, typed, whole
from .checks.balanced import balanced
from .constraints.base import Constraint
from .errors import CalibrationWarning, ConstraintError, DenoiserError, SamplingError
from .machine import is_exhausted
from .members import calling
from .network import Evaluations, Network, own_mode
from .plausible import SIZE, Reference, UnseenError, reference
from .policy import Plan, check_method, choose, differentiates, remarks
from .progress import shown
from .randomness import MemberNoise
from .result import Result
from .samplers import Sampler
from .sampling import failure, inspect, requested, run

SETTINGS = ("seed", "chunk", "callback", "observe")
LONG = 10.0
"""The seconds from which on a run is said to be expected to take them."""
CONDITIONED = ("particles", "calibrated", "ppr")
"""The methods that solve for the residual, in addition to `auto`; others are as published."""
UNSEEN = (
    "Fewer than 16 of 64 unconditional samples were finite. So members were not tested for "
    "plausibility, and what was not set by name was chosen for data of unit variance; test the "
    "denoiser by `python -m feasibly check`."
)


@typed
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
    progress: bool | None = None,
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
            constrained distribution. With `auto` it means that importance weights of particles
            may have a standard error of 0.2 in place of 0.025, or two thirds of the steps of
            posterior samples, or three quarters of PPR's where there are branches. With `ppr` it
            means fewer iterations of projections.
        options: Options of the method, such as `{"steps": 128}`.
        monitor: Whether to test which members are plausible; see :mod:`feasibly.plausible`. It
            takes 9 forward evaluations a member, or 5 from 64 elements on, and one more for its
            conditions, beside some 30 for each of 64 unconditional samples. These are taken by
            `auto` in any case, for its choice. Implausible members are resampled as infeasible
            ones are. If the denoiser has conditions that differ between members, those with other
            conditions are not tested, and the result says so.
        dtype: The type of the samples, float32 or float64.
        device: Where to sample; None for where the denoiser is.
        progress: Whether to show on standard error how far the run is, with the time left, and
            before a long one what it is expected to take. None shows it on a terminal and in a
            notebook. Samples are the same with and without it.
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
    ids, *_ = requested(members, shape, dtype=dtype, device=device, **settings)
    with shown(progress) as meter:
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
        meter.erase()
        for sentence in chosen.remarks:
            warnings.warn(sentence, CalibrationWarning, stacklevel=3)
        if chosen.seconds(len(ids)) > LONG:
            meter.tell(chosen.estimate(len(ids)))
        result = run(chosen.attempts, ids, shape, **settings)
    result.evaluations += chosen.evaluations
    result.seconds += seconds
    result.warnings += chosen.remarks
    return result


@typed
@own_mode()
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
    progress: bool | None = None,
) -> Plan:
    """Returns the samplers that :func:`sample` would take, the reason, and the expected cost.

    The arguments are those of :func:`sample`. Denoiser and constraint are tested on two states.
    If there is a constraint, 64 samples are taken without it, for the monitor and for the choice.
    With `survey`, those of an earlier plan for the problem stand for them. Its `estimate(n)` says
    what n samples are expected to take.
    """
    device, shape, options = placed(device), shape_of(shape), dict(options or {})
    for name, value in (("attempts", attempts), ("chunk", chunk)):
        if value is not None:
            whole(name, value, 1)
    for name in ("method", "attempts", "fast"):
        if name in options:
            raise ValueError(f"{name!r} is an argument of sample(), and no option of a method.")
    check_method(method)
    with shown(progress) as meter, meter.part("test of the denoiser and the constraint", 0):
        gradient = differentiates(method, constraint)
        problem = inspect(denoiser, constraint, shape, dtype, device, gradient=gradient)
        if not isinstance(method, Sampler) and _leans(denoiser, problem.x_0):
            denoiser = Network(denoiser, settles=True)
    evaluations, taken = Evaluations(), 0.0
    known: tuple[str, ...] = ()
    with shown(progress) as meter, calling([0], problem.x_0.device):
        # the target of member 0 stands for all, if each has its own
        if constraint is not None and method in ("auto", *CONDITIONED):
            constraint = balanced(constraint, problem.x_0)
        if constraint is not None and (monitor or method == "auto"):
            network, start = Network(denoiser, evaluations), time.perf_counter()
            try:
                with meter.part("survey of unconditional samples", 0):
                    survey = survey or _survey(network, constraint, shape, dtype, device, chunk)
                taken = time.perf_counter() - start
                known = tuple(remarks(constraint, survey))
            except UnseenError:  # the run itself may say where
                known = (UNSEEN,)
        arguments = {"method": method, "survey": survey, "attempts": attempts, "fast": fast}
        chosen = choose(denoiser, constraint, problem, **arguments, **options)
    forward, backward = chosen.attempts[0].expected(problem.residuals)
    if monitor and survey is not None:
        forward += survey.cost
    return replace(
        chosen,
        survey=survey,
        evaluations=evaluations,
        remarks=chosen.remarks + known,
        expected=(forward, backward),
        pace=taken / counted if (counted := evaluations.member_forward) else 0.0,
    )


def _survey(
    network: Network,
    constraint: Constraint,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str | None,
    chunk: int | None,
) -> Reference:
    """Samples unconditionally, fewer at a time if they do not fit into memory.

    Raises:
        SamplingError: If that fails.
    """
    size, where = min(chunk or SIZE, SIZE), "Sampling without the constraint"
    while True:
        try:
            return reference(network, shape, constraint, dtype=dtype, device=device, chunk=size)
        except (SamplingError, ConstraintError, DenoiserError) as error:
            if size == 1 or not is_exhausted(error):
                raise
        except Exception as error:
            if size == 1 or not is_exhausted(error):
                raise failure(where, error, size) from error
        size //= 2  # outside of the `except`, which would keep the tensors alive


@torch.no_grad()
def _leans(denoiser: Any, like: Tensor) -> bool:
    """Whether the data's mean is far from that which runs begin with. It is a part of the dry run,
    and not counted."""
    z = MemberNoise(0, range(len(like)), like.shape[1:], dtype=like.dtype, device=like.device)()
    t = torch.ones((), dtype=like.dtype, device=like.device)
    try:
        with calling([0] * len(like), like.device):
            return Network(denoiser).leans(z, t)
    except DenoiserError:
        raise
    except Exception as error:
        raise failure("The beginning of a run", error, len(like)) from error
