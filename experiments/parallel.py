"""Runs a study in several processes, each with settings of its own."""

__all__ = ["run", "split"]

import multiprocessing
from collections.abc import Sequence
from itertools import pairwise

import torch

from . import run as runner
from . import studies

Setting = tuple[str, int]
"""A prior and the seed of a constraint."""


def split(priors: Sequence[str], constraints: range, jobs: int) -> list[list[Setting]]:
    """Shares settings out, in runs that keep a prior together where they can."""
    settings = [(prior, k) for prior in priors for k in constraints]
    ends = [round(i * len(settings) / jobs) for i in range(jobs + 1)]
    parts = [settings[a:b] for a, b in pairwise(ends)]
    return [part for part in parts if part]


def run(
    study: str,
    priors: Sequence[str],
    constraints: range,
    jobs: int,
    threads: int,
    members: int,
    seed: int,
    pool: int,
    only: Sequence[str],
) -> None:
    """Runs a study in `jobs` processes of `threads` threads. Each appends its records by itself,
    so a run that is stopped keeps what it has, and the same command goes on from there.

    Raises:
        ValueError: If a process fails, after all of them have ended.
    """
    parts = split(priors, constraints, jobs)
    rest = (threads, members, seed, pool, list(only))
    if len(parts) == 1:
        work(study, parts[0], *rest)
        return
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(study, part, *rest)) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = sum(worker.exitcode != 0 for worker in workers)
    if failed:
        raise ValueError(f"{failed} of {len(workers)} processes failed; their errors are above.")


def work(
    study: str,
    settings: Sequence[Setting],
    threads: int,
    members: int,
    seed: int,
    pool: int,
    only: Sequence[str],
) -> None:
    """Runs a study on some settings."""
    torch.set_num_threads(threads)
    for prior in dict.fromkeys(prior for prior, _ in settings):
        seeds = [k for name, k in settings if name == prior]
        fields = range(seeds[0], seeds[-1] + 1)
        runner.run(studies.find()[study], [prior], members, seed, fields, pool, only)
