"""Are samples the same however they are sampled, does memory stay, what do two processes gain, and
do executors lose anything when a worker is killed?
`python -m experiments.ensembles {identical, memory, throughput, executors}`; the last one needs
`pip install loky distributed`."""

import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from feasibly import ensemble, plan, priors
from feasibly.cli.load import load_constraint
from feasibly.minimizers import WarmLBFGS
from feasibly.policy import Plan
from feasibly.problems.ks import KS
from feasibly.run import run
from feasibly.samplers import SMC, PostHoc, TunedPPR

from .records import append, versions

Rows = list[dict[str, Any]]
Task = tuple[Any, ...]  # the arguments of `posed`


def posed(problem: str, steps: int, dtype: torch.dtype = torch.float32) -> Plan:
    """Plans with fewer steps than a use would have: the checkerboard in a random field's level
    set, trajectories of Kuramoto-Sivashinsky projected onto an observed frame, or those with three
    frames observed by their sine."""
    torch.set_num_threads(1)
    if problem == "data2d":
        parts = priors.load("checkerboard").to(dtype), load_constraint("0"), (2,)
        return plan(*parts, method=SMC(steps=steps), dtype=dtype)
    if problem == "frames":
        ks = KS("linear-1")
        y = torch.linspace(0, 20, 64).sin().expand(ks.shape)
        return plan(ks.denoiser, ks.constraint(y), ks.shape, method=PostHoc(steps=steps))
    ks = KS("sine-3")
    y = torch.linspace(0, 20, 64).sin().expand(ks.shape)
    method = TunedPPR(steps=steps, minimize=WarmLBFGS(4))
    return plan(ks.denoiser, ks.constraint(y), ks.shape, attempts=1, method=method)


def fill(store: Path, task: Task, members: int, chunk: int, processes: int) -> float:
    """Fills a store by several processes; returns the seconds from their common start."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes + 1)
    work = (task, store, members, chunk, processes, ready)
    crew = [context.Process(target=_work, args=(rank, *work)) for rank in range(processes)]
    for process in crew:
        process.start()
    ready.wait()
    start = time.perf_counter()
    for process in crew:
        process.join()
    if any(process.exitcode for process in crew):
        raise RuntimeError(f"A process ended with {[p.exitcode for p in crew]}.")
    return time.perf_counter() - start


def _work(
    rank: int, task: Task, store: Path, members: int, chunk: int, processes: int, ready: Any
) -> None:
    chosen = posed(*task)
    run(chosen.kernels, 1)  # what this loads is no part of the work
    ready.wait()
    ensemble.run(chosen, store, members, batch_size=chunk, rank=rank, workers=processes)


def identical(folder: Path, members: int = 32, task: Task = ("data2d", 32)) -> Rows:
    """Samples the same members by 1, 2 and 4 processes, and in chunks of 1, 3 and 16."""
    rows, first = [], None
    for processes, chunk in [(1, 16), (2, 16), (4, 16), (1, 1), (1, 3)]:
        store = folder / f"{processes}-{chunk}.zarr"
        fill(store, task, members, chunk, processes)
        made = ensemble.Store(store)
        x = torch.stack([torch.from_numpy(made.get(i)) for i in range(members)]).flatten(1)
        first = x if first is None else first
        error = (x - first).norm(dim=1) / first.norm(dim=1)
        row = {"processes": processes, "chunk": chunk, "within_1e-5": int((error <= 1e-5).sum())}
        rows.append(row | {"median": error.median().item(), "largest": error.max().item()})
    return rows


def memory(folder: Path, members: Sequence[int] = (64, 1024), chunk: int = 16) -> Rows:
    """Measures the peak memory of a process by the number of members that it samples."""
    rows, context = [], multiprocessing.get_context("spawn")
    for count in members:
        here, there = context.Pipe()
        task = (folder / f"{count}.zarr", count, chunk, there)
        work = context.Process(target=_peak, args=task)
        work.start()
        rows.append({"members": count, "chunk": chunk, "peak_mb": here.recv()})
        work.join()
    return rows


def _peak(store: Path, members: int, chunk: int, answer: Any) -> None:
    ensemble.run(posed("data2d", 4), store, members, batch_size=chunk)
    answer.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def throughput(folder: Path, members: int = 48, task: Task = ("ks", 8)) -> Rows:
    """Samples the same members by one process and by two."""
    seconds = {n: fill(folder / f"{n}.zarr", task, members, 2, n) for n in (1, 2)}
    return [
        {"processes": n, "seconds": round(s, 2), "speedup": round(seconds[1] / s, 3)}
        for n, s in seconds.items()
    ]


def _processes(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))


@contextmanager
def _loky(workers: int) -> Generator[Any]:
    import loky

    executor = loky.get_reusable_executor(max_workers=workers)
    yield executor
    executor.shutdown()


@contextmanager
def _dask(workers: int) -> Generator[Any]:
    import distributed

    settings = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        pids = list(client.run(os.getpid).values())
        executor = client.get_executor()
        executor.kill = lambda: os.kill(pids[0], signal.SIGKILL)
        yield executor


def executors(
    folder: Path, members: int = 128, workers: int = 2, task: Task = ("frames", 8)
) -> Rows:
    """Samples the same members by processes, loky and Dask, of which a worker is then killed."""
    crews: dict[str, Callable[[int], Any]] = {
        "processes": _processes,
        "loky": _loky,
        "Dask": _dask,
        "Dask, a worker killed": _dask,
    }
    chosen, first, rows = posed(*task), None, []
    for name, crew in crews.items():
        store, start = folder / f"{name}.zarr", time.perf_counter()
        with crew(workers) as executor:
            if "killed" in name:
                work = (store, members // 4, executor.kill)
                threading.Thread(target=_later, args=work, daemon=True).start()
            made = ensemble.run(chosen, store, members, batch_size=16, executor=executor)
        seconds = time.perf_counter() - start
        x = torch.stack([torch.from_numpy(made.store.get(i)) for i in range(members)]).flatten(1)
        first = x if first is None else first
        error = ((x - first).norm(dim=1) / first.norm(dim=1)).max().item()
        row = {"executor": name, "workers": workers, "seconds": round(seconds, 1)}
        rows.append(row | {"finished": made.counted, "largest difference": error})
    return rows


def _later(store: Path, members: int, action: Callable[[], None]) -> None:
    """Does something once a store has so many members."""
    while not store.exists() or len(os.listdir(ensemble.Store(store).records)) < members:
        time.sleep(0.1)
    action()


if __name__ == "__main__":
    name = sys.argv[1]
    with tempfile.TemporaryDirectory() as place:
        found = {f.__name__: f for f in (identical, memory, throughput, executors)}[name](
            Path(place)
        )
    append(name, "ensemble", [{"measurement": name, "versions": versions()} | r for r in found])
    print("\n".join(map(json.dumps, found)))
