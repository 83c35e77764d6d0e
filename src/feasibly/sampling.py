"""A run: tests the problem, samples chunk by chunk and attempt by attempt, collects a result."""

__all__ = [
    "Monitor",
    "Problem",
    "Run",
    "State",
    "complaints",
    "counts",
    "describe",
    "doubts",
    "dry_run",
    "failure",
    "implausible",
    "inspect",
    "misfit",
    "noisy_parts",
    "passed",
    "run",
    "shortfall",
    "trajectory",
]

import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from . import members as batch
from . import progress as meters
from .arguments import members_of, placed, shape_of, typed, whole
from .checks.derivatives import check_gradient
from .checks.inputs import check_constraint, check_denoiser, check_parts
from .constraints.base import Constraint
from .errors import (
    CalibrationWarning,
    DenoiserError,
    InfeasibleWarning,
    SamplingError,
    safe,
)
from .machine import check_room, exhausted, is_exhausted
from .minimizers import LBFGS
from .minimizers.base import per_sample
from .network import Evaluations, Network, device_of, explained, own_mode
from .randomness import MemberNoise
from .result import RELIABLE, Result, Snapshot, Weights

POPULATION = 1024
"""The largest number of samples that share weights in one run."""

RATE = 0.01
"""The share of unconditional samples that a monitor takes for implausible, at most and on average
over references."""


@dataclass(frozen=True)
class Problem:
    r"""What a dry run shows of a problem.

    Attributes:
        x_0: Two clean estimates, with shape (2, *).
        r: Their residuals, with shape (2, m); None without a constraint.
        member: The index of the member under whose conditions they are.
        chunk: How many states may go through the denoiser at a time.
    """

    x_0: Tensor
    r: Tensor | None
    member: int = 0
    chunk: int = 2

    @property
    def residuals(self) -> int:
        """The number of residuals; 0 without a constraint."""
        return 0 if self.r is None else self.r.shape[1]


@dataclass(frozen=True)
class State:
    """What an observer sees after a step.

    Attributes:
        members: The indices of the members.
        attempt: The attempt, 0 for the first.
        t: The time reached.
        x: The states, with shape (B, *); not to be written to.
        x_0: The clean estimates behind them, with shape (B, *); likewise.
    """

    members: list[int]
    attempt: int
    t: Tensor
    x: Tensor
    x_0: Tensor


@runtime_checkable
class Monitor(Protocol):
    """Tells which members are plausible."""

    def assess(
        self, denoiser: Any, x: Tensor, members: Sequence[int], chunk: int | None = None
    ) -> Any:
        """Returns an object with a `statistic` for each member, with shape (B), at most 1 for
        plausible members."""


@typed
@own_mode()
def run(
    attempts: Sequence[Any],
    members: int | Sequence[int],
    shape: Sequence[int],
    *,
    seed: int = 0,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    callback: Callable[[Snapshot], None] | None = None,
    observe: Callable[[State], None] | None = None,
    reason: str = "",
    monitor: Monitor | None = None,
    progress: bool | None = None,
) -> Result:
    r"""Samples an ensemble, attempt by attempt.

    The first sampler samples all members. Each one after it resamples the members that are still
    infeasible, or implausible if there is a monitor, from fresh noise. Of such a member a feasible
    attempt is kept, then the most plausible one, or that of least violation. What is feasible is
    said by the constraint of the last sampler.

    Before the run, denoiser and constraint are tested on two states: two forward evaluations and,
    if a method needs gradients, 18 more and nine gradients, which are not counted. The denoiser's
    parameters should not require gradients, which cost memory.

    Arguments:
        attempts: The samplers, one for each attempt.
        members: The number of members, or their indices. A member depends on `seed` and its
            index alone. Samples that share weights depend on the indices of all that do, of
            which there are at most 1024.
        shape: The shape of one sample.
        seed: The seed of the ensemble, from 0 to 2^32 - 1.
        chunk: How many members to sample at a time; None for all.
        dtype: The type of the samples, float32 or float64.
        device: Where to sample; None for where the denoiser is.
        callback: Called with a :class:`Snapshot` after every step, at a member's first try.
        observe: Called with a :class:`State` after every step, likewise.
        reason: Why these samplers, in a sentence.
        monitor: What tells which members are plausible, such as
            :func:`feasibly.plausible.reference` returns; None for none.
        progress: Whether to show how far the run is; None for on a terminal or in a notebook.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        SamplingError: If a step fails, or all members do. Whatever is raised once members are
            sampled has an attribute `partial`: the result of the finished members, or None.
    """
    if not attempts:
        raise ValueError("A run needs at least one sampler.")
    device = device or device_of(attempts[0].denoiser.denoiser)
    ids, shape, size = requested(
        members, shape, seed=seed, chunk=chunk, dtype=dtype, device=device
    )
    evaluations, start = Evaluations(), time.perf_counter()
    parts: list[Result] = []
    failure = ""
    with meters.shown(progress) as meter, meter.part("sampling"):
        prepared, costs = dry_run(attempts, shape, dtype, device, ids[0], size, evaluations)
        costs = [cost + getattr(monitor, "cost", 0) for cost in costs]
        meter.expect(len(ids) * costs[0])
        begun, unit = meter.done, size
        if any(sampler.shares for sampler in attempts):
            unit = min(POPULATION, len(ids))
        for first in range(0, len(ids), unit):
            part = Run(
                seed,
                shape,
                dtype,
                device,
                callback,
                observe,
                evaluations,
                start=start,
                monitor=monitor,
                costs=costs,
                chunk=chunk,
            )
            evaluations = Evaluations()  # what the preparation took is the first chunk's
            try:
                parts.append(part.sample(prepared, list(ids[first : first + unit])))
            except BaseException as error:
                parts += [part.latest] if part.latest else []
                # set on whatever it is, a keyboard interrupt included
                error.partial = Result.join(parts) if parts else None  # ty: ignore
                raise
            failure, start = failure or part.failure, time.perf_counter()
            done = min(first + unit, len(ids))
            each = (meter.done - begun) / done  # not as expected, but as it was
            meter.expect((len(ids) - done) * each, f"sampling, {done:,} of {len(ids):,} finished")
    result = replace(Result.join(parts), reason=reason)
    if not result.finite.any():
        raise SamplingError(
            f"All {len(ids)} members became non-finite{failure}; test the denoiser there with "
            "`python -m feasibly check`, or raise `steps`."
        )
    _warn(result, prepared)
    return result


@typed
def requested(
    members: int | Sequence[int],
    shape: Sequence[int],
    *,
    seed: int = 0,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    callback: Callable[[Snapshot], None] | None = None,
    observe: Callable[[State], None] | None = None,
) -> tuple[Sequence[int], tuple[int, ...], int]:
    """Returns the indices of the members, the shape of a sample, and the size of a chunk, as
    :func:`run` takes them.

    Raises:
        ValueError: If an argument is out of range, or the samples do not fit into memory.
    """
    ids, shape = members_of(members), shape_of(shape)
    whole("seed", seed, 0, 2**32 - 1)
    size = len(ids) if chunk is None else min(whole("chunk", chunk, 1), len(ids))
    check_room(shape, dtype, placed(device) or "cpu", len(ids), size)
    return ids, shape, size


def inspect(
    denoiser: Any,
    constraint: Constraint | None,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    member: int = 0,
    chunk: int = 2,
    gradient: bool = False,
) -> Problem:
    """Tests a denoiser and a constraint at t = 1/2, on two states as noisy as a run's, and the
    denoiser's gradient at three noise levels.

    Arguments:
        denoiser: The denoiser.
        constraint: The constraint; None for none.
        shape: The shape of one sample.
        dtype: The type of the samples.
        device: Where to sample; None for where the denoiser is.
        member: The member whose conditions the denoiser is tested with.
        chunk: How many states may go through the denoiser at a time.
        gradient: Whether the denoiser must have a gradient.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
    """
    check_parts("sample", denoiser, constraint)
    network = Network(denoiser)
    device = device or device_of(network.denoiser)
    t = torch.tensor(0.5, dtype=dtype, device=device)
    z = MemberNoise(0, range(2), shape, dtype=dtype, device=device)()
    with torch.no_grad(), batch.calling([member] * 2, device):
        x_t = network.noisy(z, t)
        x_0 = check_denoiser(network.denoiser, x_t, t, gradient)
        if gradient:
            check_gradient(network.denoiser, z)
        # one such state may be a bad one, and its estimate not finite: the run will say so
        x_0 = torch.where(x_0.isfinite(), x_0, z)
        r = None if constraint is None else check_constraint(constraint, x_0)
    return Problem(x_0, r, member, chunk)


def dry_run(
    attempts: Sequence[Any],
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str,
    member: int,
    chunk: int,
    evaluations: Evaluations,
) -> tuple[list[Any], list[float]]:
    """Tests samplers on their problem. Returns them as prepared for it, and the work that each is
    expected to take for a sample; see :mod:`feasibly.progress`.

    Equal samplers are prepared once. What a preparation evaluates is added to `evaluations`.
    """
    constraint = attempts[-1].constraint
    gradient = any(a.differentiates for a in attempts)
    parts = (shape, dtype, device, member, chunk)
    problem = inspect(attempts[0].denoiser, constraint, *parts, gradient=gradient)
    prepared: dict[int, Any] = {}
    costs: dict[int, float] = {}
    for sampler in attempts:
        if id(sampler) not in prepared:
            with batch.calling([member] * 2, device):
                counted = replace(sampler, denoiser=Network(sampler.denoiser, evaluations))
                try:
                    prepared[id(sampler)] = counted.prepare(problem)
                except ValueError:  # the method does not fit the problem
                    raise
                except Exception as error:
                    raise failure("The preparation of a run", error, chunk) from error
            costs[id(sampler)] = meters.work(*prepared[id(sampler)].expected(problem.residuals))
    ids = list(map(id, attempts))
    return [prepared[i] for i in ids], [costs[i] for i in ids]


def trajectory(sampler: Any, noise: MemberNoise) -> Iterator[tuple[int, Tensor, Any]]:
    r"""Goes from :math:`t = 1` to :math:`t = 0` once.

    Arguments:
        sampler: The sampler.
        noise: The noise of the members.

    Yields:
        The number of the step, the time reached, and what the step returned; for step 0 what
        the sampler began with. A member that is not finite is reset to zero for the steps to
        come, so that it raises no errors inside the network.
    """
    k, s, length = 0, torch.tensor(1.0), 0
    try:
        with torch.no_grad(), batch.calling(noise.members, noise.device):
            start = sampler.begin(noise)
        x_t, times, memory, *_ = start
        yield 0, times[0], start
        del start  # its memory may be large, and is not needed after the first step
        length = sampler.taken
        first = length - len(times) + 2
        for k, (t, s) in enumerate(pairwise(times), start=first):
            with torch.no_grad(), batch.calling(noise.members, noise.device):
                step = sampler.step(x_t, t, s, noise, memory)
            if not hasattr(step, "memory"):
                raise TypeError(f"`step` returned {type(step).__name__}, not Step(x, x_0, memory)")
            yield k, s, step
            good = per_sample(finite(step.x) & finite(step.x_0), step.x)
            x_t, memory = torch.where(good, step.x, 0.0), step.memory
    except Exception as error:
        where = f"Step {k} of {length}, to sigma = {sampler.noise_level(s):.3g},"
        where = where if k else "The beginning of a run"
        raise failure(where, error, len(noise.members)) from error


def failure(where: str, error: Exception, states: int) -> SamplingError:
    """Returns the error of a network that failed somewhere in a run, with so many states in a
    batch."""
    if is_exhausted(error):
        return SamplingError(exhausted(where.rstrip(","), error, states))
    if why := explained(error):
        return SamplingError(f"{where} failed. {why} ({error}).")
    fix = "test the denoiser there with `python -m feasibly check`"
    if isinstance(error, OSError):  # of a disk or a connection
        fix = "it is not an error of the method, so run it again once that is fixed"
    return SamplingError(f"{where} failed ({type(error).__name__}: {error}); {fix}.")


Watch = Callable[[Tensor, Tensor, Tensor], None]
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def passed(x: Tensor, x_0: Tensor, s: Tensor) -> None:
    """Tells the run of a step that a sampler takes while it begins.

    Arguments:
        x: A state of each member, with shape (B, *).
        x_0: The clean estimates behind them, with shape (B, *).
        s: The time that they reached.
    """
    watch = _WATCH.get()
    if watch is not None:
        with _watching(None):  # what a callback samples is another run
            watch(x, x_0, s)


@contextmanager
def _watching(watch: Watch | None) -> Generator[None]:
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


@dataclass
class Run:
    """The run of one chunk of members, and its statistics.

    Attributes:
        seed: The seed of the ensemble.
        shape: The shape of one sample.
        dtype: The type of the samples.
        device: Where to sample.
        callback: Called with a :class:`Snapshot` after every step.
        observe: Called with a :class:`State` after every step.
        evaluations: The network evaluations so far.
        trace: A snapshot for every step.
        start: When the run began.
        failure: Where all members of an attempt failed, in words.
        latest: The members as they stood after the last attempt; None before the first.
        paths: The violations of each member's clean estimates, step by step, in the attempt
            that is kept.
        current: The same in the attempt that is under way.
        statistics: What samplers say of their beginnings, summed.
        monitor: What tells which members are plausible; None for none.
        costs: The work that each attempt is expected to take for a sample, with its test.
        chunk: How many states may go through the denoiser at a time; None for all members.
        populations: The importance weights that samples were drawn by.
    """

    seed: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | str
    callback: Callable[[Snapshot], None] | None = None
    observe: Callable[[State], None] | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    trace: list[Snapshot] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)
    failure: str = ""
    latest: Result | None = None
    paths: dict[int, list[float]] = field(default_factory=dict)
    current: dict[int, list[float]] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)
    monitor: Monitor | None = None
    costs: Sequence[float] = ()
    chunk: int | None = None
    populations: list[Weights] = field(default_factory=list)

    def sample(self, attempts: Sequence[Any], ids: list[int]) -> Result:
        """Samples the members `ids` attempt by attempt; warns of nothing."""
        meter, costs = meters.current(), self.costs or [0.0] * len(attempts)
        with meter.part(expected=min(len(ids) * costs[0], meter.left)):
            return self._sample(attempts, ids, costs)

    def _sample(self, attempts: Sequence[Any], ids: list[int], costs: Sequence[float]) -> Result:
        constraint = attempts[-1].constraint
        x_0 = torch.full((len(ids), *self.shape), torch.nan, dtype=self.dtype, device=self.device)
        c = torch.full((len(ids),), torch.inf, dtype=self.dtype, device=self.device)
        feasible = torch.zeros_like(c, dtype=torch.bool)
        odd = torch.full_like(c, torch.inf)
        for attempt, sampler in enumerate(attempts):
            rows = (~feasible | (odd > 1)).nonzero().squeeze(1)
            if attempt and not rows.numel():
                break
            counted = replace(sampler, denoiser=Network(sampler.denoiser, self.evaluations))
            if sampler.shares:
                counted = replace(counted, batch=self.chunk)
            for part in rows.split(len(rows) if sampler.shares else self.chunk or len(rows)):
                members = [ids[i] for i in part.tolist()]
                found = self._attempt(counted, constraint, members, attempt)
                c_found, good = self._assess(constraint, found, members)
                odd_found = self._oddness(counted, found, members)
                closer = c_found < c[part]
                better = torch.where(feasible[part], good & (odd_found < odd[part]), good | closer)
                for row in part[better].tolist():
                    self.paths[ids[row]] = self.current[ids[row]]
                kept = part[better]
                x_0[kept], odd[kept] = found[better], odd_found[better]
                c[kept], feasible[kept] = c_found[better], good[better]
                self.latest = self._result(x_0, c, feasible, odd, ids, attempts)
            left = int((~feasible | (odd > 1)).sum())
            share = left / len(rows)  # and of these as many again
            ahead = sum(share**k * cost for k, cost in enumerate(costs[attempt + 1 :]))
            meters.current().expect(left * ahead)
        return self._result(x_0, c, feasible, odd, ids, attempts)

    def _oddness(self, sampler: Any, x_0: Tensor, ids: list[int]) -> Tensor:
        """Returns how implausible members are, with shape (B): at most 1 for plausible ones. It is
        zero for all without a monitor, and NaN for members that the monitor does not apply to."""
        if self.monitor is None:
            return torch.zeros_like(x_0.flatten(start_dim=1)[:, 0])
        try:
            with torch.no_grad():
                found = self.monitor.assess(sampler.denoiser, x_0, ids, self.chunk)
                return found.statistic.to(x_0.dtype)
        except DenoiserError:  # the monitor's samples had other conditions than some members
            if len(ids) == 1:
                return torch.full_like(x_0.flatten(start_dim=1)[:, 0], torch.nan)
            # each by itself, so that no member depends on its batch mates
            alone = [self._oddness(sampler, x[None], [i]) for x, i in zip(x_0, ids, strict=True)]
            return torch.cat(alone)
        except Exception as error:
            raise failure("The plausibility check of samples", error, len(ids)) from error

    def _attempt(
        self, sampler: Any, constraint: Constraint | None, ids: list[int], attempt: int
    ) -> Tensor:
        """Samples members once; those that fail come back as NaN."""
        noise = MemberNoise(self.seed, ids, self.shape, attempt, self.dtype, self.device)
        failed = torch.zeros(len(ids), dtype=torch.bool, device=self.device)
        self.current = {i: [] for i in ids}
        steps, length, times = trajectory(sampler, noise), sampler.taken, sampler.times()
        reached, raised = 0, None

        def note(k: int, s: Tensor, x: Tensor, x_0: Tensor) -> None:
            nonlocal reached
            sigma = sampler.noise_level(s)
            some = "1 sample" if len(x) == 1 else f"{len(x):,} samples"
            meters.current().say(
                f"step {k} of {length}, noise level {sigma:.2g}, attempt {attempt + 1}, {some}"
            )
            if k > reached:  # else members that are tried again have been here
                self._note(length, constraint, ids, x_0, failed, attempt, k, sigma)
                if self.observe is not None and not failed.all():
                    self.observe(State(ids, attempt, s, x, x_0))
                reached = k

        def watch(x: Tensor, x_0: Tensor, s: Tensor) -> None:
            nonlocal raised
            k = int((times - s.item()).abs().argmin())
            try:
                note(length + 1 - len(times) + k, s, x, x_0)
            except Exception as error:
                raised = error
                raise

        try:
            with _watching(watch):
                _, s, start = next(steps)
        except SamplingError:
            if raised is not None:  # by a callback, or the constraint after a step
                raise raised from None
            raise
        for name, number in start.statistics.items():
            self.statistics[name] = self.statistics.get(name, 0.0) + number
        x_t = x_0 = start.x
        if start.population is not None:
            self.populations.append(start.population)
        del start
        for k, s, (x_t, x_0, _) in steps:
            failed |= ~finite(x_t) | ~finite(x_0)
            note(k, s, x_t, x_0)
            if failed.all():
                sigma = sampler.noise_level(s)
                self.failure = f" by step {k} of {length}, at sigma = {sigma:.3g}"
                return torch.full_like(x_0, torch.nan)

        x_t = torch.where(per_sample(failed, x_t), 0.0, x_t)
        try:
            with torch.no_grad():
                (x_0,) = self._by_parts(
                    lambda some: (sampler.finish(sampler.read(x_t[some], x_0[some], s)),), ids
                )
        except Exception as error:
            raise failure("The output after the last step", error, len(ids)) from error
        return torch.where(per_sample(failed | ~finite(x_0), x_0), torch.nan, x_0)

    def _note(
        self,
        length: int,
        constraint: Constraint | None,
        ids: list[int],
        x_0: Tensor,
        failed: Tensor,
        attempt: int,
        step: int,
        sigma: float,
    ) -> None:
        """Keeps the statistics of a step."""
        c, feasible = self._assess(constraint, x_0, ids)
        known = c.new_full((1,), math.nan)
        if constraint is not None:
            for i, violation in zip(ids, c.tolist(), strict=True):
                self.current[i].append(violation)
            known = known if failed.all() else c[~failed]
        snapshot = Snapshot(
            attempt=attempt,
            members=failed.numel(),
            step=step,
            steps=length,
            sigma=sigma,
            forward=self.evaluations.forward,
            backward=self.evaluations.backward,
            median=known.median().item(),
            worst=known.max().item(),
            feasible=(feasible & ~failed).double().mean().item(),
            failed=int(failed.sum()),
            seconds=time.perf_counter() - self.start,
        )
        self.trace.append(snapshot)
        if self.callback is not None:
            self.callback(snapshot)

    def _assess(
        self, constraint: Constraint | None, x_0: Tensor, ids: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Returns the violation of each member, and whether it is feasible; see :func:`assess`."""
        c, good = self._by_parts(lambda some: assess(constraint, x_0[some]), ids)
        return c, good

    def _by_parts(
        self, function: Callable[[slice], tuple[Tensor, ...]], ids: list[int]
    ) -> tuple[Tensor, ...]:
        """Returns what a function of rows returns for all members, of which no more are evaluated
        at a time than may go through the denoiser."""
        found, size = [], self.chunk or len(ids)
        for first in range(0, len(ids), size):
            some = slice(first, first + size)
            with batch.calling(ids[some], self.device):
                found.append(function(some))
        return tuple(map(torch.cat, zip(*found, strict=True)))

    def _result(
        self,
        x_0: Tensor,
        c: Tensor,
        feasible: Tensor,
        odd: Tensor,
        ids: list[int],
        attempts: Sequence[Any],
    ) -> Result:
        constraint = attempts[-1].constraint
        return Result(
            samples=x_0.clone(),
            violation=c.clone(),
            feasible=feasible.clone(),
            members=ids,
            seed=self.seed,
            tolerance=math.inf if constraint is None else constraint.tolerance,
            evaluations=replace(self.evaluations),
            trace=list(self.trace),
            seconds=time.perf_counter() - self.start,
            method=describe(attempts),
            statistics=dict(self.statistics),
            populations=list(self.populations),
            oddness=None if self.monitor is None else odd.clone(),
            chi_square=self._fit(constraint, x_0, ids),
        )

    @torch.no_grad()
    def _fit(
        self, constraint: Constraint | None, x_0: Tensor, ids: list[int]
    ) -> dict[str, Tensor]:
        """Returns how members fit each observation with noise."""
        found, good = {}, finite(x_0)
        for name, part in noisy_parts(constraint).items():
            x = torch.where(per_sample(good, x_0), x_0, 0.0)
            (r,) = self._by_parts(lambda some, x=x, part=part: (part.residual(x[some]),), ids)
            found[name] = torch.where(good, r.square().mean(dim=1), torch.nan)
        return found


def describe(attempts: Sequence[Any]) -> str:
    """Returns in words which samplers run, one after the other."""
    counted: list[tuple[str, int]] = []
    for words in map(safe, map(repr, attempts)):  # a constraint may quote names of a table
        if counted and counted[-1][0] == words:
            counted[-1] = words, counted[-1][1] + 1
        else:
            counted.append((words, 1))
    return ", then ".join(
        words if times == 1 else f"up to {times} times {words}" for words, times in counted
    )


def assess(constraint: Constraint | None, x_0: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the violation of each member and whether it is feasible, both with shape (B).

    They are infinite and False where a member is not finite, and zero and True where there is no
    constraint.
    """
    good = finite(x_0)
    if constraint is None:
        c, feasible = torch.zeros_like(good, dtype=x_0.dtype), good
    else:
        c, feasible = constraint.assess(torch.where(per_sample(good, x_0), x_0, 0.0))
    return torch.where(good & c.isfinite(), c, torch.inf), good & feasible


def finite(x: Tensor) -> Tensor:
    """Returns which members of `x` are finite, with shape (B)."""
    return x.isfinite().flatten(start_dim=1).all(dim=1)


def shortfall(result: Result, sampler: Any) -> str:
    """Says how many members are infeasible, why as far as that shows, and what helps; nothing if
    there is nothing to say.

    Of a method that does not land on the constraint, some infeasible members are no news, and of
    one that gives residuals noise on purpose, none are.
    """
    bad, said = ~result.feasible, non_finite(result)
    some, all_of = int(bad.sum()), len(result.members)
    if sampler.constraint is None or not sampler.enforces or sampler.noise:
        return said
    bad &= result.finite
    if not bad.any() or sampler.constraint.exact is None or (some < all_of and not sampler.lands):
        return said
    missed, rows = result.violation[bad], bad.nonzero().flatten()[:TRIED].tolist()
    why = advice(sampler, result.samples[rows], [result.members[i] for i in rows])
    if some < all_of:
        which = f"{int(bad.sum())} of {all_of} members do not satisfy {sampler.constraint!r}"
        span = f"violation {missed.min():.3g} to {missed.max():.3g}"
        return f"{said} {which} ({span}); `result.feasible` tells which. {why}".strip()
    best = f"best violation {missed.min():.3g}, tolerance {sampler.constraint.tolerance:.3g}"
    none = f"None of the {all_of} members satisfies {sampler.constraint!r} ({best})."
    return f"{said} {none} {why}".strip()


def non_finite(result: Result) -> str:
    """Says how many members are not finite, and where the first became so; empty if none is."""
    lost = int((~result.finite).sum())
    if not lost:
        return ""
    at = next((one for one in result.trace if one.failed), None)
    where = "after the last step"
    if at is not None:
        where = f"the first by step {at.step} of {at.steps}, at sigma = {at.sigma:.3g}"
    return (
        f"{lost} of {len(result.members)} members became non-finite, {where}; `result.finite` "
        "tells which. Look there for what the network returns."
    )


TRIED = 4
"""The number of infeasible samples on which it is tried why they are."""


@torch.no_grad()
def advice(sampler: Any, x: Tensor, ids: Sequence[int]) -> str:
    """Says why samples are infeasible, and what helps: longer and freer projections are tried on
    them, and whether the tolerance is below rounding.

    Arguments:
        sampler: The sampler.
        x: A few infeasible samples, which are finite, with shape (B, *).
        ids: The indices of the members.
    """
    name = "last" if getattr(sampler, "last", None) else "minimize"
    search, constraint = getattr(sampler, name, None), sampler.constraint.exact
    if search is None or constraint is None or not len(x):
        return sampler.advice
    goal, unit, nearest = constraint.tolerance, math.sqrt(x[0].numel()), x
    own = unit * (sampler.noise_level(torch.tensor(0.0)) if sampler.space == "x_t" else 1.0)
    unbounded: dict[str, Any] = {"max_step": None, "max_distance": None}
    trials = (
        (replace(search, steps=4 * search.steps), own),
        (replace(search, **unbounded), unit),
        (LBFGS(steps=100, **unbounded), unit),
    )
    try:
        with batch.calling(ids, x.device):
            before = best = constraint.residual(x).square().sum(dim=1).median().item()
            for longer, length in trials:
                found = longer(lambda z: (constraint.residual(z), z), x, sampler.stop, length)
                if (reached := found.value.median().item()) <= goal:
                    return f"The last projection stops too early; {name}={longer!r} gets there."
                if reached <= best:
                    best, nearest = reached, found.x
            signs = MemberNoise(0, ids, x.shape[1:], dtype=x.dtype)().to(x).sign()
            moved = nearest * (1 + torch.finfo(x.dtype).eps * signs)
            rounding = constraint.residual(moved) - constraint.residual(nearest)
    except Exception:  # the advice must not cost the samples
        return sampler.advice
    if (least := rounding.square().sum(dim=1).median().item()) > goal:
        fix = " or sample with dtype=torch.float64" if x.dtype == torch.float32 else ""
        return (
            f"Rounding alone changes the violation by {least:.1g}, and the tolerance is "
            f"{goal:.1g}: raise it{fix}."
        )
    if best < SLOW * before:
        return (
            f"Projections converge slowly there, from {before:.2g} to {best:.2g} in a hundred "
            "iterations: scale the residual's values alike, or raise the tolerance."
        )
    return (
        "The violation is at a local minimum there, so that more iterations do not help. Allow "
        "more `attempts`; if most members end so, the constraint may be impossible, or far from "
        "what the model knows."
    )


SLOW = 0.5
"""A projection that lowers the violation to this share or less is on its way."""


def implausible(some: int, all_of: int, attempts: int = 1) -> str:
    """Says that so many members are implausible, if chance does not explain them; else nothing.

    The rate of one reference varies by about itself, and each attempt has its own samples.
    """
    expected = RATE**attempts * all_of
    if some <= expected + 3 * math.sqrt(expected + (1.1 * expected) ** 2) + 1:
        return ""
    return (
        f"{some} of {all_of} members are not plausible: to the denoiser they do not look like "
        "data of the model. Data may hardly satisfy the constraint, or the sampler has left the "
        "data; compare with another method."
    )


MISFIT = 1.5
"""Members whose chi-square a value is larger, beyond chance, are said to fit badly."""

ENOUGH = 100
"""The effective sample size of weights below which a run of twice as many samples warns."""

LARGEST = 1e6
"""A k-hat that is larger is called infinite."""

NOTED = 0.1
"""The share of samples with unreliable weights above which a run warns."""

UNTESTED = (
    "Members whose conditions are not those of member 0 were not tested for plausibility: the "
    "unconditional samples are of that member. The samplers were chosen for it too."
)


def complaints(attempts: Sequence[Any], statistics: Mapping[str, float]) -> Iterator[str]:
    """Yields what samplers warn of, each method once, given the summed statistics of a run."""
    if statistics:
        for sampler in {type(sampler): sampler for sampler in attempts}.values():
            yield from sampler.warnings(statistics)


def doubts(populations: Sequence[Weights], fix: str = "") -> Iterator[str]:
    """Yields what a user must know of the importance weights that samples were drawn by.

    Arguments:
        populations: The weights.
        fix: How to take more particles; empty for four times as many by an option.
    """
    if not populations:
        return
    poor = [one for one in populations if one.pareto_k > RELIABLE]
    some, size = (sum(len(one.members) for one in group) for group in (poor, populations))
    worst = max(populations, key=lambda one: one.pareto_k)
    fix = fix or f"options={{'particles': {4 * worst.particles}}}"
    ess = sum(one.ess for one in populations)
    if some > NOTED * size:
        k_hat = "infinite" if worst.pareto_k > LARGEST else f"{worst.pareto_k:.2g}"
        yield (
            f"Importance weights are not reliable: k-hat is {k_hat}, and should be at most "
            f"{RELIABLE}. So {some} of {size} samples were drawn without sharing weights. "
            "Modes may have wrong weights, also in samples that are feasible and plausible, and "
            f"means and spreads with them. Take more particles: {fix}."
        )
    elif ess < min(ENOUGH, size / 2):
        yield (
            "A few trajectories carry most of the importance weight: the effective sample size is "
            f"{ess:.0f} of {size} samples. Weights of modes have a standard error of some "
            f"{0.5 / math.sqrt(ess):.1g} from this, or of twice that if a mode is rare. Take more "
            f"particles: {fix}."
        )


def noisy_parts(constraint: Constraint | None) -> dict[str, Constraint]:
    """Returns the parts of a constraint that are observed with errors, by name."""
    found: dict[str, Constraint] = {}
    for k, part in enumerate([] if constraint is None else constraint.parts):
        if part.noisy is not None:
            name = safe(repr(part))
            found[f"{name}, part {k}" if name in found else name] = part.noisy
    return found


@torch.no_grad()
def counts(constraint: Constraint | None, x: Tensor, member: int) -> dict[str, int]:
    """Returns how many values with errors each part of a constraint has, by name, given a sample
    of a member, with shape (1, *)."""
    with batch.calling([member], x.device):
        return {k: part.residual(x).shape[1] for k, part in noisy_parts(constraint).items()}


def misfit(name: str, fit: float, values: int) -> str:
    """Says that members fit an observation worse than its errors allow; empty if they do not.

    Over many values, chi-square a value is one for posterior samples of a right model, on average
    over observations, with a standard deviation of some (2 / m)^(1/2).

    Arguments:
        name: The observation.
        fit: Chi-square a value, on average over members.
        values: The number of its values.
    """
    if not fit > MISFIT + 5 * math.sqrt(2 / values):
        return ""
    return (
        f"Members fit {name} worse than its errors allow: chi-square a value is {fit:.2g} on "
        "average, and should be about one. The sampler may have missed it, errors may be larger "
        "than stated, or the model may hardly know such values."
    )


def misfits(result: Result, constraint: Constraint | None) -> Iterator[str]:
    """Yields which observations with noise members fit worse than errors allow."""
    found = counts(constraint, result.samples[:1].nan_to_num(), result.members[0])
    for (name, m), fit in zip(found.items(), result.chi_square.values(), strict=True):
        if words := misfit(name, fit.nanmean().item(), m):
            yield words


def _warn(result: Result, attempts: Sequence[Any]) -> None:
    """Warns the caller of :func:`run` of infeasible members and of what samplers complain of."""
    meters.current().erase()
    # over this function, `run` and `sample`, and the decorators around them
    for sentence in (*complaints(attempts, result.statistics), *doubts(result.populations)):
        result.warnings.append(sentence)
        warnings.warn(sentence, CalibrationWarning, stacklevel=7)
    if result.oddness is not None and result.oddness.isnan().any():
        result.warnings.append(UNTESTED)
    for sentence in misfits(result, attempts[-1].constraint):
        result.warnings.append(sentence)
        warnings.warn(sentence, CalibrationWarning, stacklevel=7)
    plausible = result.plausible
    if plausible is not None and (
        suspicion := implausible(int((~plausible).sum()), len(plausible), len(attempts))
    ):
        result.warnings.append(suspicion)
        warnings.warn(suspicion, CalibrationWarning, stacklevel=7)
    if missed := shortfall(result, attempts[-1]):
        result.warnings.append(missed)
        warnings.warn(missed, InfeasibleWarning, stacklevel=7)
