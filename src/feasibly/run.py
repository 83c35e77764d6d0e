"""A run: samples batch by batch and attempt by attempt, and collects a result."""

__all__ = ["POPULATION", "Run", "State", "assess", "dry_run", "run", "trajectory"]

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from . import progress as meters
from .arguments import members_of, typed, whole
from .constraints.base import Constraint
from .errors import DenoiserError, SamplingError
from .machine import check_room
from .members import calling
from .messages import describe, failure, noisy_parts, warn
from .minimizers.base import finite, per_sample
from .monitor import Monitor
from .network import Evaluations, counted, own_mode
from .problem import Problem, inspect
from .randomness import MemberNoise
from .result import Result, Snapshot, Weights
from .samplers.base import Method, watching

POPULATION = 1024
"""The largest number of samples that share weights in one run."""


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


@typed
@own_mode()
def run(
    kernels: Sequence[Method],
    members: int | Sequence[int],
    *,
    seed: int = 0,
    callback: Callable[[Snapshot], None] | None = None,
    observe: Callable[[State], None] | None = None,
    reason: str = "",
    monitor: Monitor | None = None,
    progress: bool | None = None,
) -> Result:
    r"""Samples an ensemble, attempt by attempt.

    The first kernel samples all. Each one after it resamples what is still infeasible, or
    implausible if there is a monitor, from fresh noise. Of such a sample a feasible attempt is
    kept, then the most plausible one, or that of least violation. What is feasible is said by the
    constraint of the last kernel, and its problem says shape, type and device.

    Before the run, denoiser and constraint are tested on two states: two forward evaluations and,
    if a method needs gradients, 18 more and nine gradients, which are not counted. The denoiser's
    parameters should not require gradients, which cost memory.

    Arguments:
        kernels: Methods that are bound to a problem, one for each attempt.
        members: The number of samples, or their indices. A sample depends on `seed` and its
            index alone. Samples that share weights depend on the indices of all that do, of
            which there are at most 1024.
        seed: The seed of the ensemble, from 0 to 2^32 - 1.
        callback: Called with a :class:`Snapshot` after every step, at a sample's first try.
        observe: Called with a :class:`State` after every step, likewise.
        reason: Why these methods, in a sentence.
        monitor: What tells which samples are plausible; None for nothing.
        progress: Whether to show how far the run is; None for on a terminal or in a notebook.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        SamplingError: If a step fails, or all samples do. Whatever is raised once samples are
            there has an attribute `partial`: the result of those that are finished, or None.
    """
    if not kernels or not all(isinstance(one, Method) for one in kernels):
        raise ValueError(
            "run(kernels, ...) takes a sequence of bound methods, one for each attempt, such as "
            f"feasibly.plan(...).kernels; got {kernels!r:.200}."
        )
    problem = kernels[-1].bound_to
    ids, size = requested(problem, members, seed)
    evaluations, start = Evaluations(), time.perf_counter()
    parts: list[Result] = []
    failed = ""
    with meters.shown(progress) as meter, meter.part("sampling"):
        prepared, costs = dry_run(kernels, ids[0], size, evaluations)
        costs = [cost + (monitor.cost if monitor else 0) for cost in costs]
        meter.expect(len(ids) * costs[0])
        begun, unit = meter.done, size
        if any(kernel.shares for kernel in kernels):
            unit = min(POPULATION, len(ids))
        for first in range(0, len(ids), unit):
            part = Run(
                prepared, seed, callback, observe, evaluations, start, monitor=monitor, costs=costs
            )
            evaluations = Evaluations()  # what the preparation took is the first batch's
            try:
                parts.append(part.sample(list(ids[first : first + unit])))
            except BaseException as error:
                parts += [part.latest] if part.latest else []
                # set on whatever it is, a keyboard interrupt included
                error.partial = Result.join(parts) if parts else None  # ty: ignore
                raise
            failed, start = failed or part.failure, time.perf_counter()
            done = min(first + unit, len(ids))
            each = (meter.done - begun) / done  # not as expected, but as it was
            meter.expect((len(ids) - done) * each, f"sampling, {done:,} of {len(ids):,} finished")
    result = replace(Result.join(parts), reason=reason)
    if not result.finite.any():
        all_of_them = "The sample" if len(ids) == 1 else f"All {len(ids)} samples"
        raise SamplingError(
            f"{all_of_them} became non-finite{failed}; test the denoiser with `python "
            "-m feasibly check`, or use more `steps`."
        )
    warn(result, prepared)
    return result


def requested(
    problem: Problem, members: int | Sequence[int], seed: int
) -> tuple[Sequence[int], int]:
    """Returns the indices of samples, and how many are sampled at a time.

    Raises:
        ValueError: If an argument is out of range, or the samples do not fit into memory.
    """
    ids = members_of(members)
    whole("seed", seed, 0, 2**32 - 1)
    size = min(problem.batch_size or len(ids), len(ids))
    check_room(problem.shape, problem.dtype, problem.device, len(ids), size)
    return ids, size


def dry_run(
    kernels: Sequence[Method], member: int, batch_size: int, evaluations: Evaluations
) -> tuple[list[Method], list[float]]:
    """Tests kernels on their problem. Returns them as prepared for it, and the work that each is
    expected to take for a sample; see :mod:`feasibly.progress`.

    Equal kernels are prepared once. What a preparation evaluates is added to `evaluations`.
    """
    gradient, problem = any(kernel.differentiates for kernel in kernels), kernels[-1].bound_to
    seen = inspect(problem, member, batch_size, gradient)
    prepared: dict[int, Method] = {}
    costs: dict[int, float] = {}
    for kernel in kernels:
        if id(kernel) not in prepared:
            with calling([member] * 2, problem.device), counted(evaluations):
                try:
                    prepared[id(kernel)] = kernel.prepare(seen)
                except ValueError:  # the method does not fit the problem
                    raise
                except Exception as error:
                    raise failure("Preparing the run", error, batch_size) from error
            costs[id(kernel)] = meters.work(*prepared[id(kernel)].expected(seen.residuals))
    ids = list(map(id, kernels))
    return [prepared[i] for i in ids], [costs[i] for i in ids]


def trajectory(kernel: Method, noise: MemberNoise) -> Iterator[tuple[int, Tensor, Any]]:
    r"""Goes from :math:`t = 1` to :math:`t = 0` once.

    Arguments:
        kernel: The kernel.
        noise: The noise of the samples.

    Yields:
        The number of the step, the time reached, and what the step returned; for step 0 what
        the kernel began with. A sample that is not finite is reset to zero for the steps to
        come, so that it raises no errors inside the network.
    """
    k, s, length = 0, torch.tensor(1.0), 0
    try:
        with torch.no_grad(), calling(noise.members, noise.device):
            start = kernel.begin(noise)
        x_t, times, memory, *_ = start
        yield 0, times[0], start
        del start  # its memory may be large, and is not needed after the first step
        length = kernel.taken
        first = length - len(times) + 2
        for k, (t, s) in enumerate(pairwise(times), start=first):
            with torch.no_grad(), calling(noise.members, noise.device):
                step = kernel.step(x_t, t, s, noise, memory)
            if not hasattr(step, "memory"):
                raise TypeError(f"`step` returned {type(step).__name__}, not Step(x, x_0, memory)")
            yield k, s, step
            good = per_sample(finite(step.x) & finite(step.x_0), step.x)
            x_t, memory = torch.where(good, step.x, 0.0), step.memory
    except Exception as error:
        where = f"Step {k} of {length}, to sigma = {kernel.noise_level(s):.3g},"
        where = where if k else "Starting the run"
        raise failure(where, error, len(noise.members)) from error


@dataclass
class Run:
    """The run of one batch of samples, and its statistics.

    Attributes:
        kernels: The kernels, one for each attempt.
        seed: The seed of the ensemble.
        callback: Called with a :class:`Snapshot` after every step.
        observe: Called with a :class:`State` after every step.
        evaluations: The network evaluations so far.
        start: When the run began.
        monitor: What tells which samples are plausible; None for nothing.
        costs: The work that each attempt is expected to take for a sample, with its test.
        trace: A snapshot for every step.
        failure: Where all samples of an attempt failed, in words.
        latest: The samples as they stood after the last attempt; None before the first.
        paths: The violations of each sample's clean estimates, step by step, in the attempt
            that is kept.
        current: The same in the attempt that is under way.
        statistics: What kernels say of their beginnings, summed.
        populations: The importance weights that samples were drawn by.
    """

    kernels: Sequence[Method]
    seed: int
    callback: Callable[[Snapshot], None] | None = None
    observe: Callable[[State], None] | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    start: float = field(default_factory=time.perf_counter)
    monitor: Monitor | None = None
    costs: Sequence[float] = ()
    trace: list[Snapshot] = field(default_factory=list)
    failure: str = ""
    latest: Result | None = None
    paths: dict[int, list[float]] = field(default_factory=dict)
    current: dict[int, list[float]] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)
    populations: list[Weights] = field(default_factory=list)

    @property
    def problem(self) -> Problem:
        """The problem of the last kernel, which says what is feasible."""
        return self.kernels[-1].bound_to

    def sample(self, ids: list[int]) -> Result:
        """Samples the ensemble's samples `ids` attempt by attempt; warns of nothing."""
        meter, costs = meters.current(), self.costs or [0.0] * len(self.kernels)
        expected = min(len(ids) * costs[0], meter.left)
        with meter.part(expected=expected), counted(self.evaluations):
            return self._sample(ids, costs)

    def _sample(self, ids: list[int], costs: Sequence[float]) -> Result:
        problem = self.problem
        x_0 = torch.full((len(ids), *problem.shape), torch.nan, **problem.place)
        c = torch.full((len(ids),), torch.inf, **problem.place)
        feasible = torch.zeros_like(c, dtype=torch.bool)
        odd = torch.full_like(c, torch.inf)
        for attempt, kernel in enumerate(self.kernels):
            rows = (~feasible | (odd > 1)).nonzero().squeeze(1)
            if attempt and not rows.numel():
                break
            size = len(rows) if kernel.shares else problem.batch_size or len(rows)
            for part in rows.split(size):
                members = [ids[i] for i in part.tolist()]
                found = self._attempt(kernel, members, attempt)
                c_found, good = self._assess(found, members)
                odd_found = self._oddness(found, members)
                closer = c_found < c[part]
                better = torch.where(feasible[part], good & (odd_found < odd[part]), good | closer)
                for row in part[better].tolist():
                    self.paths[ids[row]] = self.current[ids[row]]
                kept = part[better]
                x_0[kept], odd[kept] = found[better], odd_found[better]
                c[kept], feasible[kept] = c_found[better], good[better]
                self.latest = self._result(x_0, c, feasible, odd, ids)
            left = int((~feasible | (odd > 1)).sum())
            share = left / len(rows)  # and of these as many again
            ahead = sum(share**k * cost for k, cost in enumerate(costs[attempt + 1 :]))
            meters.current().expect(left * ahead)
        result = self._result(x_0, c, feasible, odd, ids)
        constraint = problem.constraint
        if constraint is not None and len(constraint.parts) > 1:
            good = finite(x_0)
            x = torch.where(per_sample(good, x_0), x_0, 0.0)
            (ratio,) = self._by_parts(lambda some: (constraint.ratio(x[some]),), ids)
            result.relative = torch.where(good, ratio, torch.inf)
        return result

    def _oddness(self, x_0: Tensor, ids: list[int]) -> Tensor:
        """Returns how implausible samples are, with shape (B): at most 1 for plausible ones. It is
        zero for all without a monitor, and NaN for those that the monitor does not apply to."""
        if self.monitor is None:
            return torch.zeros_like(x_0.flatten(start_dim=1)[:, 0])
        try:
            found = self.monitor.assess(x_0, ids, self.problem.batch_size)
            return found.statistic.to(x_0.dtype)
        except DenoiserError:  # the monitor's samples had other conditions than some of these
            if len(ids) == 1:
                return torch.full_like(x_0.flatten(start_dim=1)[:, 0], torch.nan)
            # each by itself, so that none depends on its batch mates
            alone = [self._oddness(x[None], [i]) for x, i in zip(x_0, ids, strict=True)]
            return torch.cat(alone)
        except Exception as error:
            raise failure("The plausibility check", error, len(ids)) from error

    def _attempt(self, kernel: Method, ids: list[int], attempt: int) -> Tensor:
        """Samples once; what fails comes back as NaN."""
        noise = self.problem.noise(self.seed, ids, attempt)
        failed = torch.zeros(len(ids), dtype=torch.bool, device=noise.device)
        self.current = {i: [] for i in ids}
        steps, length, times = trajectory(kernel, noise), kernel.taken, kernel.times()
        reached, raised = 0, None

        def note(k: int, s: Tensor, x: Tensor, x_0: Tensor) -> None:
            nonlocal reached
            sigma = kernel.noise_level(s)
            some = "1 sample" if len(x) == 1 else f"{len(x):,} samples"
            meters.current().say(
                f"step {k} of {length}, noise level {sigma:.2g}, attempt {attempt + 1}, {some}"
            )
            if k > reached:  # else samples that are tried again have been here
                self._note(length, ids, x_0, failed, attempt, k, sigma)
                if self.observe is not None and not failed.all():
                    with counted(None):
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
            with watching(watch):
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
                sigma = kernel.noise_level(s)
                self.failure = f" by step {k} of {length}, at sigma = {sigma:.3g}"
                return torch.full_like(x_0, torch.nan)

        x_t = torch.where(per_sample(failed, x_t), 0.0, x_t)
        try:
            with torch.no_grad():
                (x_0,) = self._by_parts(
                    lambda some: (kernel.finish(kernel.read(x_t[some], x_0[some], s)),), ids
                )
        except Exception as error:
            raise failure("The output after the last step", error, len(ids)) from error
        return torch.where(per_sample(failed | ~finite(x_0), x_0), torch.nan, x_0)

    def _note(
        self,
        length: int,
        ids: list[int],
        x_0: Tensor,
        failed: Tensor,
        attempt: int,
        step: int,
        sigma: float,
    ) -> None:
        """Keeps the statistics of a step."""
        c, feasible = self._assess(x_0, ids)
        known = c.new_full((1,), math.nan)
        if self.problem.constraint is not None:
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
            with counted(None):
                self.callback(snapshot)

    def _assess(self, x_0: Tensor, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Returns the violation of each sample, and whether it is feasible; see :func:`assess`."""
        c, good = self._by_parts(lambda some: assess(self.problem.constraint, x_0[some]), ids)
        return c, good

    def _by_parts(
        self, function: Callable[[slice], tuple[Tensor, ...]], ids: list[int]
    ) -> tuple[Tensor, ...]:
        """Returns what a function of rows returns for all samples, of which no more are evaluated
        at a time than may go through the denoiser."""
        found, size = [], self.problem.batch_size or len(ids)
        for first in range(0, len(ids), size):
            some = slice(first, first + size)
            with calling(ids[some], self.problem.device):
                found.append(function(some))
        return tuple(map(torch.cat, zip(*found, strict=True)))

    def _result(
        self, x_0: Tensor, c: Tensor, feasible: Tensor, odd: Tensor, ids: list[int]
    ) -> Result:
        constraint = self.problem.constraint
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
            method=describe(self.kernels),
            statistics=dict(self.statistics),
            populations=list(self.populations),
            oddness=None if self.monitor is None else odd.clone(),
            chi_square=self._fit(x_0, ids),
        )

    @torch.no_grad()
    def _fit(self, x_0: Tensor, ids: list[int]) -> dict[str, Tensor]:
        """Returns how samples fit each observation with noise."""
        found, good = {}, finite(x_0)
        for name, part in noisy_parts(self.problem.constraint).items():
            x = torch.where(per_sample(good, x_0), x_0, 0.0)
            (r,) = self._by_parts(lambda some, x=x, part=part: (part.residual(x[some]),), ids)
            found[name] = torch.where(good, r.square().mean(dim=1), torch.nan)
        return found


def assess(constraint: Constraint | None, x_0: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the violation of each sample and whether it is feasible, both with shape (B).

    They are infinite and False where a sample is not finite, and zero and True where there is no
    constraint.
    """
    good = finite(x_0)
    if constraint is None:
        c, feasible = torch.zeros_like(good, dtype=x_0.dtype), good
    else:
        c, feasible = constraint.assess(torch.where(per_sample(good, x_0), x_0, 0.0))
    return torch.where(good & c.isfinite(), c, torch.inf), good & feasible
