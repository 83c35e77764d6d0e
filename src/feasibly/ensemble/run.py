"""An ensemble in a store: sampled by this process, together with others, or by an executor."""

__all__ = ["run"]

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..arguments import typed, whole
from ..checks.probe import Probe, probe
from ..errors import CalibrationWarning, InfeasibleWarning, SamplingError, advise
from ..machine import check_room, is_exhausted
from ..messages import TRIED, advice, counts, describe
from ..network import Evaluations, own_mode
from ..policy import Plan
from ..progress import current, shown
from ..randomness import MemberNoise
from ..result import Snapshot
from ..run import dry_run
from . import memory
from .manifest import LIMITS, POPULATION, Config, Layout, fingerprint
from .memory import Footprint, Pace
from .store import Store
from .summary import Summary, some
from .worker import Task, Worker

POLL = 0.5
"""The seconds between two looks at the tasks of an executor."""

PENDING = 256
"""The number of tasks that an executor is given at a time: each of them carries the network."""


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
    rank: int = 0,
    workers: int = 1,
    sharing: int = 1,
    executor: Any = None,
    callback: Callable[[Snapshot], None] | None = None,
    progress: bool | None = None,
    planned: Callable[[Footprint, int], None] | None = None,
) -> Summary:
    r"""Samples those members of an ensemble that its store lacks; returns when all are there.

    Any number of processes may run this at once, with the same arguments and the same store, each
    with its rank; without ranks they draw the same samples twice. With an executor, one process
    calls it, and others do the work. A sample is the same whoever draws it, and in whatever batch,
    up to the rounding of the network in batches of different sizes.
    Projections amplify it to relative differences of :math:`10^{-4}` in single precision; in
    double precision they are far below :math:`10^{-5}`. A network that runs one sample at a time,
    as in `Chunked(denoiser, 1)`, rounds alike in every batch.

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
        rank: The number of this process among those that began together, from 0 on. Process 0
            reads the store first, so that members which failed or are damaged are sampled again.
        workers: The number of processes that began together. Each samples its own share first, and
            then what the others have not finished, in case they have stopped.
        sharing: How many of them run on this machine, by which `auto` divides its memory. On GPUs
            it is divided by the number of GPUs that this process sees first; so give 1 where a
            process sees only a GPU of its own. Under Slurm's --gpus-per-task that is known.
        executor: An executor of `concurrent.futures`, loky, Dask, mpi4py or submitit, which
            samples populations, or chunks, as tasks; None to sample in this process. The plan is
            pickled for each task, and the workers must see the store by the same path.
        callback: Called with a :class:`Snapshot` after every step of every chunk; not by an
            executor.
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

    Example:
        >>> method = feasibly.samplers.PostHoc(steps=8)
        >>> plan = feasibly.plan(denoiser, circle, (2,), method=method, monitor=False)
        >>> feasibly.ensemble.run(plan, folder / "run.zarr", 2, batch_size=4).counted
        2
        >>> feasibly.ensemble.run(plan, folder / "run.zarr", 6, batch_size=4).counted  # four more
        6
    """
    count = functools.partial(whole, of="run")
    members, seed = count("n", n, 1, LIMITS["members"]), count("seed", seed, 0)
    for name, value in (("workers", workers), ("sharing", sharing)):
        count(name, value, 1)
    count("rank", rank, 0, workers - 1)
    if executor is not None and (isinstance(executor, type) or not hasattr(executor, "submit")):
        raise ValueError(
            "run(executor=...) takes an object with a method submit, such as "
            f"concurrent.futures.ProcessPoolExecutor(4); got {executor!r:.80}."
        )
    if executor is not None and (callback is not None or workers > 1):
        raise ValueError("An executor brings workers of its own; leave out callback and workers.")
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
        if rank == 0:
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
        task = Task(prepared, costs, plan.monitor, store.path.absolute(), pace, rank, workers)
        worker = task.worker(taken, callback)
        try:
            if executor is None:
                worker.work()
            else:
                spread(executor, task, worker)
        except BaseException as error:
            # what stopped the run, a full disk or one that is gone, may stop this as well
            with contextlib.suppress(OSError):
                missing = store.missing()
                lost = sorted(set(worker.current) & set(missing))
                again = "repeat the same call to resume the run."
                if config.source:
                    again = (
                        f"`python -m feasibly resume {path}` resumes the run (with --denoiser and "
                        "--constraint, if they are your own)."
                    )
                error.add_note(
                    (f"Lost before they were finished: {some(lost)}. " if lost else "")
                    + f"{members - len(missing)} of {members} samples are finished and kept; "
                    + again
                )
                worker.complain()
                Summary.read(store).write()
            raise
    summary = Summary.read(store).write()
    # of a method that does not end on the constraint, some infeasible members are no news
    if summary.infeasible and last.enforces and (last.lands or not summary.feasible):
        why = advice(last, *_missed(summary, problem.device), none=not summary.feasible)
        advise(f"{summary.violations()} {why}", InfeasibleWarning)
    for words in (*summary.warnings, *summary.doubts()):
        advise(words, CalibrationWarning)
    return summary


def spread(executor: Any, task: Task, worker: Worker) -> None:
    """Has all members that the store lacks sampled by an executor; returns when they are.

    Raises:
        SamplingError: If a task fails. Then the others have been finished.
    """
    missing, taken, failed = worker.missing(), worker.taken, None
    waiting, pending, left = worker.parts(missing), [], len(missing)
    worker.report(left)
    try:
        while waiting or pending:
            try:
                while waiting and len(pending) < PENDING:
                    pending.append(executor.submit(task, waiting[0], taken))
                    waiting, taken = waiting[1:], Evaluations()
            except Exception as error:
                failed, waiting = failed or error, []
            for one in [one for one in pending if one.done()]:
                pending.remove(one)
                try:
                    one.result()
                except Exception as error:
                    failed = failed or error
            time.sleep(POLL)
            before, left = left, len(worker.missing())
            current().advance(task.costs[0] * (before - left))
            worker.report(left)
    except BaseException:
        for one in pending:
            one.cancel()
        raise
    if not (left := len(worker.missing())):  # a task that failed may have been done again
        return
    name = type(executor).__name__
    if failed is None:
        raise SamplingError(
            f"All tasks of {name} ended, and {left} samples are not in {worker.store.path}: its "
            "workers must see that folder by the same path."
        )
    if isinstance(failed, SamplingError):
        raise failed
    advice = ""
    if "an't pickle" in str(failed) and find_spec("cloudpickle") is None:
        advice = (
            " Denoiser and constraint are sent by pickle, which finds only what a module defines. "
            "With `pip install cloudpickle`, lambdas and functions of a notebook can be sent too."
        )
    raise SamplingError(
        f"Tasks of {name} failed ({type(failed).__name__}: {failed}). What was finished is kept; "
        f"call again, with a new executor if this one is broken.{advice}"
    ) from failed


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
