"""The work of one process on the members of a run."""

__all__ = ["run"]

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ..checks.probe import probe
from ..constraints import Constraint
from ..errors import SamplingError
from ..network import Evaluations, device_of
from ..result import Result, Snapshot
from ..samplers import Sampler
from ..sampling import Run, describe, dry_run
from . import memory
from .manifest import Config, Layout, fingerprint
from .memory import Footprint
from .queue import Claims
from .store import Record, Store
from .summary import Summary, some


def run(
    attempts: Sampler | Sequence[Sampler],
    path: Path | str,
    members: int,
    shape: Sequence[int],
    *,
    seed: int = 0,
    chunk: int | Literal["auto"] = "auto",
    infeasible: Literal["keep", "retry", "drop"] = "keep",
    layout: Layout | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    source: Mapping[str, str | tuple[str, ...]] | None = None,
    workers: int = 1,
    sharing: int = 1,
    repair: bool = True,
    callback: Callable[[Snapshot], None] | None = None,
    progress: Callable[[int], None] | None = None,
    planned: Callable[[Footprint, int], None] | None = None,
) -> Summary:
    r"""Draws those members of an ensemble that its store lacks; returns when all are there.

    Any number of processes may run this at once, with the same arguments and the same store. A
    member is the same whoever draws it, and in whatever chunk, up to the rounding of the network
    in batches of different sizes, which projections amplify: to relative differences of
    :math:`10^{-4}` in single precision. In double precision they are far below
    :math:`10^{-5}`; a network that runs one member at a time, as in `Chunked(denoiser, 1)`,
    rounds alike in every chunk, and what is left is the rounding of the constraint.

    Arguments:
        attempts: The samplers, one for each attempt at a member, such as
            `feasibly.plan(...).attempts`; or one sampler.
        path: The store, a folder that is made if it is not there.
        members: The number of members of the ensemble.
        shape: The shape of one sample.
        seed: The seed of the ensemble.
        chunk: How many members to draw at a time; `auto` takes as many as fit into half of the
            free memory, by :func:`estimate`. A chunk that does not fit is halved.
        infeasible: What happens to members that end infeasible, after the sampler's own retries,
            which are made whatever is said here: `keep` counts them, `retry` keeps them too and
            does not count them, `drop` does not even keep them.
        layout: The names, coordinates and units of a sample; None for axes by number.
        dtype: The type of the samples.
        device: Where to sample; None for where the denoiser's parameters are.
        source: What a command needs to start the run again; see :class:`Config`.
        workers: The number of processes on this run, by which chunks near its end are kept small.
        sharing: How many of them run on this machine, by which `auto` divides its memory. On GPUs
            it is divided by the number of GPUs that this process sees first; so give 1 where a
            process sees only a GPU of its own. Under Slurm's --gpus-per-task that is known.
        repair: Whether to read the store first, and draw again what failed or is damaged. Of
            several processes that start together one is enough.
        callback: Called with a :class:`Snapshot` after every step of every chunk.
        progress: Called with the number of members that have been drawn, after every chunk.
        planned: Called by `auto`, before the first member, with the :class:`Footprint` and the
            chunk.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is.
        StoreError: If the store cannot be used, or belongs to another run.
        SamplingError: If a step fails or a member cannot be written. Whatever is raised, the
            members that were finished stay in the store, and a note says which were not.
    """
    if chunk != "auto" and (not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"run(chunk=...) must be 'auto' or at least 1, got {chunk!r}.")
    if min(workers, sharing) < 1:
        raise ValueError(
            f"run(workers=..., sharing=...) must be at least 1, got {workers}, {sharing}."
        )
    attempts = [attempts] if isinstance(attempts, Sampler) else list(attempts)
    if infeasible == "retry" and len(attempts) < 2:
        raise ValueError("run(infeasible='retry') needs several attempts, such as [sampler] * 4.")
    constraint, denoiser = attempts[-1].constraint, attempts[-1].denoiser.denoiser
    config = Config(
        method=" ".join(describe(attempts).split()),
        weights=fingerprint(denoiser),
        tolerance=finite_or_none(constraint),
        seed=seed,
        members=members,
        shape=tuple(shape),
        dtype=str(dtype).removeprefix("torch."),
        infeasible=infeasible,
        source=dict(source or {}),
    )
    device = torch.device(device or device_of(denoiser))
    size = 1 if chunk == "auto" else chunk
    prepared = dry_run(attempts, config.shape, dtype, device, 0, size, Evaluations())
    found = probe(denoiser, constraint, members, config.shape, dtype, device)
    store = Store.create(path, config, layout, found, denoiser)
    if repair:
        store.repair()
    if chunk == "auto":
        footprint, chunk = plan(prepared, store, device, sharing)
        if planned is not None:
            planned(footprint, chunk)
    with Claims(store.claims) as claims:
        worker = Worker(prepared, store, claims, device, chunk, workers, callback, progress)
        try:
            worker.work()
        except BaseException as error:
            # what stopped the run, a full disk or one that is gone, may stop this as well
            with contextlib.suppress(OSError):
                claims.release(worker.current)
                missing = store.missing()
                lost = sorted(set(worker.current) & set(missing))
                error.add_note(
                    (f"Dropped in the middle: {some(lost)}. " if lost else "")
                    + f"{members - len(missing)} of {members} members are drawn and kept; "
                    f"`python -m feasibly resume {path}` goes on (with --denoiser and "
                    "--constraint, if they are yours)."
                )
                Summary.read(store).write()
            raise
    return Summary.read(store).write()


def plan(
    attempts: Sequence[Sampler], store: Store, device: torch.device, sharing: int
) -> tuple[Footprint, int]:
    """Returns what members take, and how many to draw at a time."""
    config = store.config
    dtype = getattr(torch, config.dtype)
    footprint = memory.estimate(
        attempts, config.shape, members=config.members, dtype=dtype, device=device
    )
    if device.type == "cuda":
        sharing = 1 if _own_gpu() else math.ceil(sharing / torch.cuda.device_count())
    return footprint, memory.fitting(footprint, memory.room(device), sharing)


def _own_gpu() -> bool:
    """Whether Slurm gave this process GPUs that no other process sees."""
    told = os.environ.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]  # 1, or a100:1
    return told.isdecimal() and 1 <= torch.cuda.device_count() <= int(told)


@dataclass
class Worker:
    """Draws members until none is missing."""

    attempts: Sequence[Sampler]
    store: Store
    claims: Claims
    device: torch.device
    chunk: int
    workers: int
    callback: Callable[[Snapshot], None] | None
    progress: Callable[[int], None] | None
    current: tuple[int, ...] = ()

    def work(self) -> None:
        """Takes free members, chunk after chunk; waits for those that others are drawing, in case
        they stop."""
        try:
            while missing := self.store.missing():
                # at the end of a run, a large chunk would leave nothing for the others
                fair = math.ceil(len(missing) / self.workers)
                taken = self.claims.take(missing, min(self.chunk, fair))
                # another may have finished one since the list was made, and freed its claim
                still = set(self.store.missing()) if taken else set()
                self.claims.release(i for i in taken if i not in still)
                self.current = tuple(i for i in taken if i in still)
                if self.current:
                    self.advance()
                elif not taken:
                    self.claims.stop.wait(min(1.0, self.claims.beat / 10))
            self.claims.clear()
        except OSError as error:
            raise SamplingError(
                f"The store {self.store.path} cannot be written ({error}); make room, or let this "
                "user write there."
            ) from error

    def advance(self) -> None:
        """Draws the current members and keeps them."""
        try:
            result, paths = self.draw()
            if any(step.failed for step in result.trace) or not result.finite.all():
                # Once more with the same noise: what spoilt a number may have passed, and the
                # sampler's own retries, from fresh noise, must not take its place.
                result, paths = self.draw()
        except (SamplingError, MemoryError, RuntimeError) as error:
            if not memory.is_exhausted(error):
                raise
            if len(self.current) == 1:
                raise SamplingError(
                    f"Member {self.current[0]} alone does not fit into memory: "
                    f"{error.__cause__ or error}. Use a larger machine, fewer processes on it, or "
                    "a method without gradients."
                ) from error
            self.chunk = len(self.current) // 2
            result, paths = None, {}
        if result is not None:  # outside of the `except`, which would keep the tensors alive
            self.keep(result, paths)
        self.claims.release(self.current)
        self.current = ()

    def draw(self) -> tuple[Result, dict[int, list[float]]]:
        """Draws the current members; returns them, and their violations by step."""
        config = self.store.config
        part = Run(
            config.seed, config.shape, getattr(torch, config.dtype), self.device, self.callback
        )
        return part.sample(self.attempts, list(self.current)), part.paths

    def keep(self, result: Result, paths: Mapping[int, Sequence[float]]) -> None:
        """Writes members into the store, each as soon as the one before it is there."""
        size, calls = len(result.members), result.evaluations
        samples = result.samples.cpu().numpy()
        finite, feasible = result.finite.tolist(), result.feasible.tolist()
        violation = result.violation.tolist()
        drop = self.store.config.infeasible == "drop"
        for row, member in enumerate(result.members):
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
                path=tuple(brief(v) for v in paths.get(member, ())),
            )
            self.store.put(record, samples[row])
        if self.progress is not None:
            self.progress(self.store.config.members - len(self.store.missing()))


def finite_or_none(constraint: Constraint | None) -> float | None:
    """Returns the tolerance of a constraint; None without one, or for infinity."""
    tolerance = math.inf if constraint is None else constraint.tolerance
    return None if math.isinf(tolerance) else float(tolerance)


def brief(violation: float) -> float | None:
    """A violation on the way, as a record keeps it: six digits, None if it is not finite."""
    return float(f"{violation:.6g}") if math.isfinite(violation) else None
