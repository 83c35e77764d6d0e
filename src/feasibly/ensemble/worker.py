"""The work of one process on the members of a run."""

__all__ = ["Task", "Worker"]

import math
import pickle
import random
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import SamplingError
from ..files import remedy
from ..machine import is_exhausted
from ..messages import complaints
from ..monitor import Monitor
from ..network import Evaluations, own_mode
from ..progress import current
from ..result import DIAGNOSTICS, Result, Snapshot, Weights
from ..run import Run
from ..samplers import Method
from ..samplers.smc import FEWEST
from .memory import Pace
from .store import Record, Store

LARGEST = 1e30
"""The largest number of a record: infinity is none that JSON knows."""


@dataclass(frozen=True)
class Task:
    """The sampling of some members into a store, which an executor may do elsewhere.

    Attributes:
        kernels: The kernels, one for each attempt, as prepared.
        costs: The work that each attempt is expected to take for a member.
        monitor: What tells which samples are plausible.
        path: The store.
        pace: How many members to sample at a time.
        rank: The number of this process among those that began together.
        workers: How many began together.
    """

    kernels: Sequence[Method]
    costs: Sequence[float]
    monitor: Monitor | None
    path: Path
    pace: Pace
    rank: int = 0
    workers: int = 1

    def worker(
        self,
        taken: Evaluations,
        callback: Callable[[Snapshot], None] | None = None,
        only: Sequence[int] | None = None,
    ) -> "Worker":
        """Returns what samples members, after so many evaluations: only some, or all."""
        return Worker(self, Store(self.path), replace(self.pace), callback, taken, only)

    @own_mode()
    def __call__(self, only: Sequence[int], taken: Evaluations) -> None:
        """Samples those members that the store lacks."""
        try:
            self.worker(taken, None, only).work()
        except Exception as error:
            vars(error).pop("partial", None)  # samples, which need not be sent
            raise

    def __reduce__(self) -> Any:
        """Sends functions of a notebook and lambdas as well, if cloudpickle is installed."""
        with suppress(ImportError):
            dumped = import_module("cloudpickle").dumps(vars(self))
            return _received, (dumped,)
        return super().__reduce__()

    def checkpoint(self, *arguments: Any) -> Any:
        """Returns what submitit starts again after a job was preempted."""
        return import_module("submitit.helpers").DelayedSubmission(self, *arguments)


class Overtaken(Exception):
    """Others have finished what this process was sampling as well."""


def _received(dumped: bytes) -> Task:
    """Returns a task of a process that this one works for."""
    return Task(**pickle.loads(dumped))


@dataclass
class Worker:
    """Samples members until none is missing."""

    task: Task
    store: Store
    pace: Pace
    callback: Callable[[Snapshot], None] | None
    taken: Evaluations  # by the preparation
    only: Sequence[int] | None = None  # the members that it samples; None for all
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    current: tuple[int, ...] = ()
    spare: bool = False  # whether others may be sampling the current members
    begun: float = 0.0  # the work that had been done before the first chunk
    made: int = 0  # members that this process has sampled
    paths: dict[int, list[float]] = field(default_factory=dict)  # violations by member and step
    statistics: dict[str, float] = field(default_factory=dict)  # of samplers, summed over chunks

    def work(self) -> None:
        """Samples chunk after chunk: those of this process, and then those of others."""
        self.begun = current().done
        # one that joins a run that others have begun begins anywhere
        alone = self.only is None and self.task.workers == 1
        joins = alone and len(self.missing()) < self.store.config.members
        chance = random.Random(self.name)
        try:
            while missing := self.missing():
                self.report(len(missing))
                own = [] if joins else self.parts(missing, self.task.rank, self.task.workers)
                self.current = tuple(own[0] if own else chance.choice(self.parts(missing)))
                self.spare = not own
                self.advance()
            self.complain()
        except OSError as error:
            raise SamplingError(
                f"The store {self.store.path} cannot be written ({error}); {remedy(error)}."
            ) from error

    def missing(self) -> list[int]:
        """Returns the members that are to be sampled and that the store lacks."""
        missing = self.store.missing()
        return missing if self.only is None else sorted(set(missing) & set(self.only))

    def parts(self, missing: Sequence[int], rank: int = 0, workers: int = 1) -> list[list[int]]:
        """Returns missing members as they are sampled together, by population or chunk: those of
        one of several processes, or all."""
        if self.shares:
            left, populations = set(missing), self.store.manifest.populations()
            lacking = [[i for i in members if i in left] for members in populations]
            return [some for some in lacking[rank::workers] if some]
        own = [i for i in missing if i % workers == rank]
        return [own[k : k + self.pace.chunk] for k in range(0, len(own), self.pace.chunk)]

    @property
    def shares(self) -> bool:
        """Whether samples share weights."""
        return any(sampler.shares for sampler in self.task.kernels)

    @property
    def together(self) -> list[int]:
        """The members to sample: the current ones, with all that share weights with them."""
        if not self.shares:
            return list(self.current)
        populations = self.store.manifest.populations()
        return list(next(members for members in populations if self.current[0] in members))

    def complain(self) -> None:
        """Keeps what samplers warn of, given what this process has sampled."""
        for sentence in complaints(self.task.kernels, self.statistics):
            self.store.warn(sentence)

    def advance(self) -> None:
        """Samples the current members and keeps them."""
        try:
            result = self.sample()
            if _is_spoilt(result):
                # Once more with the same noise: what spoilt a number may have passed, and the
                # sampler's later attempts, from fresh noise, must not take its place.
                result = self.sample()
        except Overtaken:
            result = None
        except BaseException as error:
            left = self.rescue(getattr(error, "partial", None))
            if not is_exhausted(error):
                raise
            size = self.pace.chunk if self.shares else len(left)
            if size == 1:
                what, fix = f"Sample {left[0]} alone does", "a method without gradients"
                if self.shares:
                    what = f"A population of {len(self.together)} samples, one at a time, does"
                    if len(self.together) // 2 >= FEWEST:
                        fix = f"a new store with population={len(self.together) // 2}"
                raise SamplingError(
                    f"{what} not fit into memory: {error.__cause__ or error}. Use a larger "
                    f"machine, fewer processes on it, or {fix}."
                ) from error
            self.pace.most = max(1, size // 2)
            result = None
        if result is not None:  # outside of the `except`, which would keep the tensors alive
            self.pace.learn(len(result.members), result.seconds)
            for name, number in result.statistics.items():
                self.statistics[name] = self.statistics.get(name, 0.0) + number
            own = set(self.current)
            self.keep(result, [k for k, i in enumerate(result.members) if i in own])
            self.made += len(own)
        self.current = ()

    def report(self, missing: int) -> None:
        """Says how much work is left to this process, if the others are as fast."""
        meter, members = current(), self.store.config.members
        each = (meter.done - self.begun) / self.made if self.made else self.task.costs[0]
        done = f"sampling, {members - missing:,} of {members:,} finished"
        meter.expect(each * missing / self.task.workers, done)

    def sample(self) -> Result:
        """Samples the current members, and takes down their violations by step. What it raises
        has an attribute `partial`: the members as they were after the last attempt, or None."""
        size = self.pace.chunk
        kernels = {
            id(one): replace(one, problem=one.bound_to.but(batch_size=size))
            for one in self.task.kernels
        }
        made = Run(
            [kernels[id(one)] for one in self.task.kernels],
            self.store.config.seed,
            self.seen,
            evaluations=self.taken,
            monitor=self.task.monitor,
            costs=self.task.costs,
        )
        self.paths, self.taken = made.paths, Evaluations()  # the first chunk's alone
        try:
            return made.sample(self.together)
        except BaseException as error:
            error.partial = made.latest  # ty: ignore[missing-attribute]
            raise

    def seen(self, step: Snapshot) -> None:
        """Calls the user's callback; stops what others have finished in the meantime."""
        if self.callback is not None:
            self.callback(step)
        if self.spare and all(map(self.store.has, self.current)):
            raise Overtaken

    def rescue(self, partial: Result | None) -> list[int]:
        """Keeps what is final of a chunk that was stopped: the members that no later attempt would
        have sampled again. Returns the others."""
        if partial is None or _is_spoilt(partial):
            return list(self.current)
        rows = partial.settled.nonzero().flatten().tolist()
        self.keep(partial, [row for row in rows if partial.members[row] in self.current])
        missing = set(self.store.missing())
        return [i for i in self.current if i in missing]

    def keep(self, result: Result, rows: Sequence[int]) -> None:
        """Keeps members, one after the other. A stop waits for the rest of them: they
        are finished, and quickly written."""
        try:
            self.write(result, rows)
        except KeyboardInterrupt:
            missing = set(self.store.missing())
            self.write(result, [row for row in rows if result.members[row] in missing])
            raise

    def write(self, result: Result, rows: Sequence[int]) -> None:
        """Writes members into the store, each as soon as the one before it is there."""
        size, calls = len(result.members), result.evaluations
        samples = result.samples.cpu().numpy()
        finite, feasible = result.finite.tolist(), result.feasible.tolist()
        violation = result.violation.tolist()
        odd = [None] * size
        if result.oddness is not None:
            odd = result.oddness.clamp(max=LARGEST).tolist()
            odd = [None if math.isnan(v) else v for v in odd]
        # a store of an older version does not have it
        known = list(result.chi_square.values())[: len(self.store.manifest.observations)]
        fit = [part.clamp(max=LARGEST).tolist() for part in known]
        drop = self.store.config.infeasible == "drop"
        weights = {i: one for one in result.populations for i in one.members}
        for row in rows:
            member = result.members[row]
            bad = not (finite[row] and math.isfinite(violation[row]))
            state = "failed" if bad else "dropped" if drop and not feasible[row] else "finished"
            record = Record(
                member=member,
                state=state,
                violation=None if bad else violation[row],
                feasible=feasible[row] and not bad,
                checksum=0,
                forward=calls.member_forward / size,
                backward=calls.member_backward / size,
                seconds=result.seconds / size,
                worker=self.name,
                path=tuple(brief(v) for v in self.paths.get(member, ())),
                oddness=None if bad else odd[row],
                chi_square=tuple(None if math.isnan(v[row]) else v[row] for v in fit),
                **_diagnostics(weights.get(member)),
            )
            self.store.put(record, samples[row])


def _diagnostics(weights: Weights | None) -> dict[str, float | None]:
    """Returns what a record keeps of the importance weights of a population."""
    if weights is None:
        return {}
    known = {name: getattr(weights, name) for name in DIAGNOSTICS}
    return {name: max(-LARGEST, min(value, LARGEST)) for name, value in known.items()}


def _is_spoilt(result: Result) -> bool:
    """Whether a member became non-finite on its way."""
    return any(step.failed for step in result.trace) or not bool(result.finite.all())


def brief(violation: float) -> float | None:
    """A violation on the way, as a record keeps it: six digits, None if it is not finite."""
    return float(f"{violation:.6g}") if math.isfinite(violation) else None
