"""What most users call: samples of a denoiser under a constraint."""

__all__ = ["plan", "sample"]

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from .arguments import typed, whole
from .checks.balanced import balanced
from .constraints.base import Constraint
from .errors import CalibrationWarning, ConstraintError, DenoiserError, SamplingError, advise
from .machine import is_exhausted
from .members import calling
from .messages import failure
from .monitor import Monitor
from .network import Evaluations, Network, counted, own_mode
from .policy import Case, Plan, choose, method_of
from .problem import DryRun, Problem, inspect
from .progress import current, shown
from .remarks import remarks
from .result import Result, Snapshot
from .run import requested, run
from .samplers import Method
from .survey import SIZE, Survey, UnseenError

LONG = 10.0
"""The seconds from which on a run is said to be expected to take them."""

UNSEEN = (
    "Fewer than 16 of 64 unconditional samples were finite. Therefore samples were not tested for "
    "plausibility, and options that you did not set were chosen for data of unit variance. Test "
    "the denoiser with `python -m feasibly check`."
)


@typed
def sample(
    denoiser: Any,
    constraint: Constraint | None,
    n: int | Sequence[int],
    shape: Sequence[int],
    *,
    method: str | Method = "auto",
    error: float | None = None,
    attempts: int | None = None,
    monitor: bool = True,
    seed: int = 0,
    batch_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    callback: Callable[[Snapshot], None] | None = None,
) -> Result:
    """Samples an ensemble under a constraint.

    The result says which methods ran, and why.

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`, such as
            :func:`feasibly.wrap` returns.
        constraint: The constraint; None for none.
        n: The number of samples, or their indices.
        shape: The shape of one sample.
        method: `auto`; a method with its options, such as `PPR(steps=128)`; or a method's name,
            one of :data:`feasibly.samplers.METHODS`, for its defaults.
        error: The standard error that importance weights may have, where `auto` takes them; None
            for 0.025. More particles lower it, at their cost.
        attempts: How often a sample is sampled, at most, if it ends infeasible or implausible;
            None for the method's choice.
        monitor: Whether to test which samples are plausible; see :mod:`feasibly.monitor`. It
            costs 9 forward evaluations a sample, or 5 from 64 elements on, and one more for its
            conditions, in addition to some 30 for each of 64 unconditional samples. These are
            taken in any case by `auto` and by methods that choose options by them. If the
            denoiser has conditions that differ between samples, those with other conditions are
            not tested, and the result says so.
        seed: The seed of the ensemble, from 0 to 2^32 - 1.
        batch_size: How many states may go through the denoiser at a time; None for all.
        dtype: The type of the samples, float32 or float64.
        device: Where to sample; None for where the denoiser is.
        progress: Whether to show on standard error how far the run is, with the time left, and
            before a long one what it is expected to take. None shows it on a terminal and in a
            notebook. Samples are the same with and without it.
        callback: Called with a :class:`Snapshot` after every step, at a sample's first try.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        SamplingError: If a step fails, or all samples do.
        ValueError: If there is no such method, or it does not fit the problem.

    Example:
        >>> result = feasibly.sample(denoiser, circle, 16, (2,))
        >>> result.samples.shape, bool(result.feasible.all())
        (torch.Size([16, 2]), True)
    """
    start = time.perf_counter()
    place: dict[str, Any] = {"dtype": dtype, "device": device, "batch_size": batch_size}
    problem = Problem(denoiser, constraint, shape, **place)
    ids, _ = requested(problem, n, seed)
    with shown(progress) as meter:
        chosen = _planned(problem, method, error, attempts, monitor)
        seconds = time.perf_counter() - start
        meter.erase()
        for sentence in chosen.remarks:
            advise(sentence, CalibrationWarning)
        if chosen.seconds(len(ids)) > LONG:
            meter.tell(chosen.estimate(len(ids)))
        result = run(
            chosen.kernels,
            ids,
            seed=seed,
            callback=callback,
            reason=chosen.reason,
            monitor=chosen.monitor,
        )
    result.evaluations += chosen.evaluations
    result.seconds += seconds
    result.warnings += chosen.remarks
    return result


@typed
def plan(
    denoiser: Any,
    constraint: Constraint | None,
    shape: Sequence[int],
    *,
    method: str | Method = "auto",
    error: float | None = None,
    attempts: int | None = None,
    monitor: bool | Monitor = True,
    batch_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> Plan:
    """Returns the kernels that :func:`sample` would run, the reason, and the expected cost.

    The arguments are those of :func:`sample`. Denoiser and constraint are tested on two states.
    If there is a constraint, 64 samples are taken without it, for the monitor and for the choice.
    A `monitor` of an earlier plan for the problem stands for them. The plan's `estimate(n)` says
    what n samples are expected to cost.

    Example:
        >>> plan = feasibly.plan(denoiser, circle, (2,))
        >>> type(plan.kernels[0]).__name__
        'SMC'
    """
    place: dict[str, Any] = {"dtype": dtype, "device": device, "batch_size": batch_size}
    problem = Problem(denoiser, constraint, shape, **place)
    with shown(progress):
        return _planned(problem, method, error, attempts, monitor)


@own_mode()
def _planned(
    problem: Problem,
    method: str | Method,
    error: float | None,
    attempts: int | None,
    monitor: bool | Monitor,
) -> Plan:
    """Returns the kernels for a problem; see :func:`plan`."""
    if attempts is not None:
        whole("attempts", attempts, 1)
    if error is not None and not error > 0:
        raise ValueError(f"sample(error=...) must be a positive number, got {error!r}.")
    if error is not None and method != "auto":
        raise ValueError(
            "error=... is an option of method='auto'; for another method set it there, as in "
            "SMC(error=...)."
        )
    named, constraint, meter = method_of(method), problem.constraint, current()
    with meter.part("testing denoiser and constraint", 0):
        gradient = constraint is not None if named is None else named.differentiates
        seen = inspect(problem, gradient=gradient)
        if named is not None:  # before the survey is paid for
            named.check(problem)
        if _leans(problem, seen):
            problem = problem.but(denoiser=Network(problem.denoiser, settles=True))
    evaluations, taken, survey = Evaluations(), 0.0, None
    known: tuple[str, ...] = ()
    with counted(evaluations), calling([0], problem.device):
        # the target of sample 0 stands for all, if each has its own
        if constraint is not None:
            if named is None or named.chooses:
                constraint = balanced(constraint, seen.x_0)
                problem = problem.but(constraint=constraint)
            if isinstance(monitor, Monitor):
                survey = monitor.survey
                known = tuple(remarks(constraint, survey))
            elif monitor or named is None or named.chooses:
                start = time.perf_counter()
                try:
                    with meter.part("survey of unconditional samples", 0):
                        survey, monitor = _surveyed(problem, watched=bool(monitor))
                    taken = time.perf_counter() - start
                    known = tuple(remarks(constraint, survey))
                except UnseenError:  # the run itself may say where
                    known, monitor = (UNSEEN,), False
        case = Case(problem, seen, survey, attempts, **({"error": error} if error else {}))
        chosen = choose(case) if named is None else Plan(case.repeated(named))
    forward, backward = chosen.kernels[0].expected(seen.residuals)
    watch = monitor if isinstance(monitor, Monitor) else None
    return replace(
        chosen,
        survey=survey,
        monitor=watch,
        evaluations=evaluations,
        remarks=chosen.remarks + known,
        expected=(forward + (watch.cost if watch else 0), backward),
        pace=taken / states if (states := evaluations.member_forward) else 0.0,
    )


def _surveyed(problem: Problem, watched: bool) -> tuple[Survey, Monitor | Literal[False]]:
    """Samples unconditionally, fewer at a time if they do not fit into memory. Returns the survey
    and, if it is asked for, the monitor.

    Raises:
        SamplingError: If that fails.
    """
    size, where = min(problem.batch_size or SIZE, SIZE), "Sampling without the constraint"
    while True:
        try:
            survey = Survey.of(problem.but(batch_size=size))
            return survey, Monitor.of(survey) if watched else False
        except (SamplingError, ConstraintError, DenoiserError) as error:
            if size == 1 or not is_exhausted(error):
                raise
        except Exception as error:
            if size == 1 or not is_exhausted(error):
                raise failure(where, error, size) from error
        size //= 2  # outside of the `except`, which would keep the tensors alive


@torch.no_grad()
def _leans(problem: Problem, seen: DryRun) -> bool:
    """Whether the data's mean is far from that which runs begin with. It is a part of the dry run,
    and not counted."""
    like = seen.x_0
    z = problem.noise(0, range(len(like)))()
    t = torch.ones((), dtype=like.dtype, device=like.device)
    try:
        with calling([0] * len(like), like.device):
            return problem.denoiser.leans(z, t)
    except DenoiserError:
        raise
    except Exception as error:
        raise failure("Starting the run", error, len(like)) from error
