"""Runs a study in several processes, each with settings of its own."""

__all__ = ["run", "split"]

import multiprocessing
from collections.abc import Sequence
from itertools import pairwise

import torch

from . import run as runner
from .benches import Bench
from .records import Record
from .studies import find
from .study import Study


def split(settings: Sequence[Record], jobs: int) -> list[list[Record]]:
    """Shares settings out, in runs that keep a group together where they can."""
    ends = [round(i * len(settings) / jobs) for i in range(jobs + 1)]
    parts = [list(settings[a:b]) for a, b in pairwise(ends)]
    return [part for part in parts if part]


def run(study: Study, bench: Bench, jobs: int, only: Sequence[str]) -> None:
    """Runs a study in `jobs` processes of one thread. Each appends its records by itself, so a run
    that is stopped keeps what it has, and the same command goes on from there.

    Raises:
        ValueError: If a process fails, after all of them have ended.
    """
    parts = split(bench.settings(), jobs)
    if len(parts) == 1:
        work(study.name, bench, parts[0], only)
        return
    context = multiprocessing.get_context("spawn")
    tasks = [(study.name, bench, part, list(only)) for part in parts]
    workers = [context.Process(target=work, args=task) for task in tasks]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = sum(worker.exitcode != 0 for worker in workers)
    if failed:
        raise ValueError(f"{failed} of {len(workers)} processes failed; their errors are above.")


def work(study: str, bench: Bench, settings: Sequence[Record], only: Sequence[str]) -> None:
    """Runs a study, by its name, on some settings."""
    torch.set_num_threads(1)
    found = find(study)
    assert isinstance(found, Study)
    runner.run(found, bench, settings, only)
