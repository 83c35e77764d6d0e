"""The work of one process on the members of a run."""

__all__ = ["run"]

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..arguments import typed, whole
from ..checks.probe import Probe, probe
from ..errors import CalibrationWarning, InfeasibleWarning, SamplingError, advise
from ..files import remedy
from ..machine import check_room, is_exhausted
from ..messages import TRIED, advice, complaints, counts, describe
from ..monitor import Monitor
from ..network import Evaluations, own_mode
from ..policy import Plan
from ..progress import current, shown
from ..randomness import MemberNoise
from ..result import DIAGNOSTICS, Result, Snapshot, Weights
from ..run import Run, dry_run
from ..samplers import Method
from ..samplers.smc import FEWEST
from . import memory
from .manifest import LIMITS, POPULATION, Config, Layout, fingerprint
from .memory import Footprint, Pace
from .queue import Claims
from .store import Record, Store
from .summary import Summary, some

LARGEST = 1e30
"""The largest number of a record: infinity is none that JSON knows."""


@typed
@own_mode()
def run(
    plan: Plan,
    path: Path | str,
    n: int,
    *,
    seed: int = 0,
    batch_size: int | Literal["auto"] = "auto",
    infeasible: Literal["keep", "retry", "drop"] = "keep",
    population: int = POPULATION,
    layout: Layout | None = None,
    source: Mapping[str, str | tuple[str, ...]] | None = None,
    workers: int = 1,
    sharing: int = 1,
    repair: bool = True,
    callback: Callable[[Snapshot], None] | None = None,
    progress: bool | None = None,
    planned: Callable[[Footprint, int], None] | None = None,
) -> Summary:
    r"""Samples those members of an ensemble that its store lacks; returns when all are there.

    Any number of processes may run this at once, with the same arguments and the same store. A
    member is the same whoever samples it, and in whatever chunk, up to the rounding of the network
    in batches of different sizes, which projections amplify: to relative differences of
    :math:`10^{-4}` in single precision. In double precision they are far below
    :math:`10^{-5}`; a network that runs one member at a time, as in `Chunked(denoiser, 1)`,
    rounds alike in every chunk, and what is left is the rounding of the constraint.

    Arguments:
        plan: What :func:`feasibly.plan` returns: the kernels, one for each attempt at a sample,
            the monitor, and remarks, which the store keeps with its warnings.
        path: The store, a folder that is made if it is not there.
        n: The number of samples of the ensemble. If the store was made for fewer, it grows: its
            samples stay, and the others are sampled.
        seed: The seed of the ensemble.
        batch_size: How many members to sample at a time. They are finished at the same time, so
            a stop loses what a chunk has taken. `auto` takes as many as fit into half of the free
            memory, at most 1024, and as are expected to take a minute, or half as long again as
            one member alone, if that is longer. It plans the first chunk by :func:`estimate`,
            and the next by the time of the last. A chunk that does not fit is halved.
        infeasible: What happens to members that end infeasible, after the sampler's own attempts,
            which are made whatever is said here: `keep` counts them, `retry` keeps them too and
            does not count them, `drop` does not even keep them.
        population: How many members share importance weights, where a sampler has them. They are
            sampled together, and a stop loses what they have taken. Fewer suit a slow network.
        layout: The names, coordinates and units of a sample; None for axes by number.
        source: What a command needs to start the run again; see :class:`Config`.
        workers: The number of processes on this run, by which chunks near its end are kept small.
        sharing: How many of them run on this machine, by which `auto` divides its memory. On GPUs
            it is divided by the number of GPUs that this process sees first; so give 1 where a
            process sees only a GPU of its own. Under Slurm's --gpus-per-task that is known.
        repair: Whether to read the store first, and sample again what failed or is damaged. Of
            several processes that start together one is enough.
        callback: Called with a :class:`Snapshot` after every step of every chunk.
        progress: Whether to show on standard error how far this process is, and how many members
            of the store are finished; None for on a terminal or in a notebook.
        planned: Called by `auto`, before the first member, with the :class:`Footprint` and the
            chunk.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        StoreError: If the store cannot be used, or belongs to another run.
        SamplingError: If a step fails or a member cannot be written. Whatever is raised, the
            members that were finished stay in the store, and a note says which were not.

    Warns:
        InfeasibleWarning: If members of the store are infeasible, whoever sampled them.
        CalibrationWarning: If the sampler warned of something, in this run or an earlier one, or
            if members are implausible.
    """
    count = functools.partial(whole, of="run")
    members, seed = count("n", n, 1, LIMITS["members"]), count("seed", seed, 0)
    for name, value in (("workers", workers), ("sharing", sharing)):
        count(name, value, 1)
    if batch_size != "auto":
        count("batch_size", batch_size, 1)
    if infeasible == "retry" and len(plan.kernels) < 2:
        raise ValueError(
            "run(infeasible='retry') needs several attempts, such as plan(..., attempts=4)."
        )
    last = plan.kernels[-1]
    problem = last.bound_to
    denoiser: Any = problem.denoiser.denoiser
    config = Config(
        method=" ".join(describe(plan.kernels).split()),
        weights=fingerprint(denoiser),
        tolerance=_tolerance(problem.constraint),
        seed=seed,
        members=members,
        shape=problem.shape,
        dtype=str(problem.dtype).removeprefix("torch."),
        infeasible=infeasible,
        population=whole("population", population, 1, LIMITS["members"]),
        source=dict(source or {}),
    )
    check_room(problem.shape, problem.dtype, problem.device)
    with shown(progress) as meter, meter.part("sampling"):
        size, taken = memory.SEVERAL if batch_size == "auto" else batch_size, Evaluations()
        try:
            prepared, costs = dry_run(plan.kernels, 0, size, taken)
        except SamplingError as error:
            if not is_exhausted(error):
                raise
            prepared = None
        if prepared is None:  # outside of the `except`, which would keep the tensors alive
            prepared, costs = dry_run(plan.kernels, 0, 1, taken)
        costs = [cost + (plan.monitor.cost if plan.monitor else 0) for cost in costs]
        place = (problem.shape, problem.dtype, problem.device)

        @functools.cache
        def asked(count: int) -> Probe:
            return probe(denoiser, problem.constraint, count, *place)

        kept = None if batch_size == "auto" else min(batch_size, members)
        like = MemberNoise(0, [0], problem.shape, 0, problem.dtype, problem.device)()
        seen = _observations(problem.constraint, like)
        store = Store.create(path, config, layout, asked, denoiser, kept, seen)
        if repair:
            store.repair()
            if store.rebuild():
                Summary.read(store).write()
        for sentence in plan.remarks:
            store.warn(sentence)
        if batch_size == "auto":
            pace = memory.pace_of(prepared, members, config.population, sharing)
            if planned is not None and pace.footprint is not None:
                planned(pace.footprint, pace.chunk)
        else:
            pace = Pace(batch_size)
        with Claims(store.claims) as claims:
            worker = Worker(
                prepared, store, claims, pace, workers, callback, costs, plan.monitor, taken
            )
            try:
                worker.work()
            except BaseException as error:
                # what stopped the run, a full disk or one that is gone, may stop this as well
                with contextlib.suppress(OSError):
                    claims.release(worker.current)
                    missing = store.missing()
                    lost = sorted(set(worker.current) & set(missing))
                    again = "the same call goes on."
                    if config.source:
                        again = (
                            f"`python -m feasibly resume {path}` goes on (with --denoiser and "
                            "--constraint, if they are yours)."
                        )
                    error.add_note(
                        (f"Lost in the middle: {some(lost)}. " if lost else "")
                        + f"{members - len(missing)} of {members} members are finished and kept; "
                        + again
                    )
                    worker.complain()
                    Summary.read(store).write()
                raise
    summary = Summary.read(store).write()
    # of a method that does not end on the constraint, some infeasible members are no news
    if summary.infeasible and last.enforces and (last.lands or not summary.feasible):
        words = f"{summary.violations()} {advice(last, *_missed(summary, problem.device))}"
        advise(words, InfeasibleWarning)
    for words in (*summary.warnings, *summary.doubts()):
        advise(words, CalibrationWarning)
    return summary


def _missed(summary: Summary, device: torch.device | str) -> tuple[Tensor, list[int]]:
    """Returns a few infeasible members that the store has, and their indices."""
    kept = set(summary.state("finished"))
    ids = [i for i in summary.infeasible if i in kept][:TRIED]
    store = summary.store
    found = np.stack([store.get(i) for i in ids]) if ids else np.empty((0, *store.config.shape))
    return torch.from_numpy(found).to(device), ids


def _tolerance(constraint: Any) -> float | None:
    if constraint is None or math.isinf(constraint.tolerance):
        return None
    return float(constraint.tolerance)


def _observations(constraint: Any, x: Tensor) -> dict[str, int]:
    """Returns the parts that are observed with errors, as a manifest has them, given a state."""
    found = counts(constraint, x, 0)
    return {" ".join(k.split()): found[k] for k in list(found)[: LIMITS["observations"]]}


@dataclass
class Worker:
    """Samples members until none is missing."""

    kernels: Sequence[Method]
    store: Store
    claims: Claims
    pace: Pace
    workers: int
    callback: Callable[[Snapshot], None] | None
    costs: Sequence[float]  # the work that each attempt is expected to take for a member
    monitor: Monitor | None = None
    taken: Evaluations = field(default_factory=Evaluations)  # by the preparation
    current: tuple[int, ...] = ()
    begun: float = 0.0  # the work that had been done before the first chunk
    made: int = 0  # members that this process has sampled
    together: range = range(0)  # the population that the current members belong to
    paths: dict[int, list[float]] = field(default_factory=dict)  # violations by member and step
    statistics: dict[str, float] = field(default_factory=dict)  # of samplers, summed over chunks

    def work(self) -> None:
        """Takes free members, chunk after chunk; waits for those that others are sampling, in case
        they stop."""
        self.begun = current().done
        try:
            while missing := self.store.missing():
                self.report(len(missing))
                # at the end of a run, a large chunk would leave nothing for the others
                fair = math.ceil(len(missing) / self.workers)
                taken = self.take(missing, min(self.pace.chunk, fair))
                # another may have finished one since the list was made, and freed its claim
                still = set(self.store.missing()) if taken else set()
                self.claims.release(i for i in taken if i not in still)
                self.current = tuple(i for i in taken if i in still)
                if self.current:
                    self.advance()
                elif not taken:
                    self.claims.stop.wait(min(1.0, self.claims.beat / 10))
            self.claims.clear()
            self.complain()
        except OSError as error:
            raise SamplingError(
                f"The store {self.store.path} cannot be written ({error}); {remedy(error)}."
            ) from error

    def take(self, missing: Sequence[int], count: int) -> list[int]:
        """Claims members: up to so many, or those of one population that share weights."""
        if not self.shares:
            return self.claims.take(missing, count)
        left = set(missing)
        for members in self.store.manifest.populations():
            lacking = [i for i in members if i in left]
            if lacking and (taken := self.claims.take_together(lacking)):
                self.together = members
                return taken
        return []

    @property
    def shares(self) -> bool:
        """Whether samples share weights."""
        return any(sampler.shares for sampler in self.kernels)

    def complain(self) -> None:
        """Keeps what samplers warn of, given what this process has sampled."""
        for sentence in complaints(self.kernels, self.statistics):
            self.store.warn(sentence)

    def advance(self) -> None:
        """Samples the current members and keeps them."""
        try:
            result = self.sample()
            if _is_spoilt(result):
                # Once more with the same noise: what spoilt a number may have passed, and the
                # sampler's later attempts, from fresh noise, must not take its place.
                result = self.sample()
        except BaseException as error:
            left = self.rescue(getattr(error, "partial", None))
            if not is_exhausted(error):
                raise
            size = self.pace.chunk if self.shares else len(left)
            if size == 1:
                what, fix = f"Member {left[0]} alone does", "a method without gradients"
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
        self.claims.release(self.current)
        self.current = ()

    def report(self, missing: int) -> None:
        """Says how much work is left to this process, if the others are as fast."""
        meter, members = current(), self.store.config.members
        each = (meter.done - self.begun) / self.made if self.made else self.costs[0]
        done = f"sampling, {members - missing:,} of {members:,} finished"
        meter.expect(each * missing / self.workers, done)

    def sample(self) -> Result:
        """Samples the current members, and takes down their violations by step. What it raises
        has an attribute `partial`: the members as they were after the last attempt, or None."""
        size = self.pace.chunk
        kernels = {
            id(one): replace(one, problem=one.bound_to.but(batch_size=size))
            for one in self.kernels
        }
        made = Run(
            [kernels[id(one)] for one in self.kernels],
            self.store.config.seed,
            self.callback,
            evaluations=self.taken,
            monitor=self.monitor,
            costs=self.costs,
        )
        self.paths, self.taken = made.paths, Evaluations()  # the first chunk's alone
        try:
            return made.sample(list(self.together if self.shares else self.current))
        except BaseException as error:
            error.partial = made.latest  # ty: ignore[missing-attribute]
            raise

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
            if not self.claims.owns(member):  # taken over while this process was suspended
                continue
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
                worker=self.claims.worker,
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
