"""`python -m feasibly sample --out NAME.zarr`, `resume` and `report`: ensembles in a store."""

__all__ = ["fill", "report", "resume", "stopping"]

import contextlib
import math
import os
import signal
import warnings
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

from .. import figures, problems
from ..ensemble import Footprint, Layout, Record, Store, Summary, run
from ..errors import CalibrationWarning, InfeasibleWarning, StoreError, several
from ..machine import check_room, size
from ..progress import shown
from ..report import Report
from . import page as pages
from .job import Job
from .load import load_object
from .words import Screen

POINTS, FEW = 1000, 4
"""The most members that a page draws, if they are points in the plane, and else."""

LARGEST = 2**24
"""The most elements of a sample that a page draws."""


def fill(
    job: Job,
    out: Path,
    members: int,
    shape: tuple[int, ...],
    seed: int,
    batch_size: int | Literal["auto"],
    infeasible: str,
    layout: str | None = None,
) -> int:
    """Samples what a store lacks, as one of the processes of a launcher or alone; returns the exit
    status."""
    policy, found, retries = infeasible.partition(":")
    if (policy == "retry") != bool(found) or policy not in ("keep", "retry", "drop"):
        raise ValueError(
            f"--infeasible takes keep, retry:N (such as retry:3) or drop, got {infeasible!r}."
        )
    if found:
        if not retries.isdecimal():
            raise ValueError(f"--infeasible retry:N takes a number of retries, got {retries!r}.")
        again = f"attempts={1 + int(retries)}"
        job = Job(job.denoiser, job.constraint, job.method, (*job.options, again))
    axes: Any = None  # those of a store that is there are known
    if layout is not None:
        axes = load_object(layout)
    elif not out.exists():
        axes = problems.layout(job.denoiser, shape)
    if not isinstance(axes, (Layout, type(None))):
        raise ValueError(f"{layout!r} returned {type(axes).__name__}; it must return a Layout.")
    rank, local, world, sharing = place()
    if torch.cuda.is_available():  # before the user's function asks for a device
        torch.cuda.set_device(local % torch.cuda.device_count())
    console = Screen(quiet=rank > 0)
    with stopping(), shown(rank == 0) as meter, warnings.catch_warnings():
        for kind in (InfeasibleWarning, CalibrationWarning):  # which the summary prints
            warnings.simplefilter("ignore", kind)

        def planned(footprint: Footprint, together: int) -> None:
            meter.erase()
            console.say(expected(footprint, together))

        check_room(shape, torch.float32, torch.device("cpu"))
        chosen = job.build(shape)
        meter.tell(chosen.estimate(members))
        for sentence in chosen.remarks:
            console.say(sentence)
        summary = run(
            chosen,
            out,
            members,
            seed=seed,
            batch_size=batch_size,
            infeasible=policy,
            layout=axes,
            source=asdict(job),
            rank=rank,
            workers=world,
            sharing=sharing,
            planned=planned,
        )
    return conclude(summary, console)


def resume(
    store: tyro.conf.Positional[Path],
    denoiser: str | None = None,
    constraint: str | None = None,
    batch_size: int | Literal["auto"] | None = None,
) -> int:
    """Resume a run that was stopped: draw the samples that are missing in its store.

    Samples that failed, or whose files are damaged, are drawn again. Exits with 0 if all samples
    count and at least one is feasible, otherwise with 1.

    Arguments:
        store: The store, as given to `sample --out`.
        denoiser: The denoiser, repeated if it is not a shipped prior: for safety, feasibly does
            not run code named in the store.
        constraint: The constraint, repeated if it is not a number.
        batch_size: How many samples to draw at a time; by default as when the run was started.
    """
    manifest = Store(store).manifest
    config = manifest.config
    if batch_size is None:
        batch_size = manifest.chunk or "auto"
    if not config.source:
        raise ValueError(
            f"{store} was created by feasibly.ensemble.run and not by a command; repeat that call "
            "to resume it."
        )
    job = Job.stored(config.source, denoiser, constraint)
    infeasible = config.infeasible
    if infeasible == "retry":  # its number is among the job's options
        *options, last = job.options
        job = Job(job.denoiser, job.constraint, job.method, tuple(options))
        infeasible = f"retry:{int(last.removeprefix('attempts=')) - 1}"
    return fill(job, store, config.members, config.shape, config.seed, batch_size, infeasible)


def report(store: tyro.conf.Positional[Path], out: Path | None = None) -> int:
    """Report the progress of a run, and write a page about it.

    Exits with 0 if all samples count and at least one is feasible, otherwise with 1.

    Arguments:
        store: The store, as given to `sample --out`.
        out: The page to write; by default NAME.html next to the store.
    """
    console = Screen()
    summary = Summary.read(Store(store))
    manifest = summary.store.manifest
    page = Report(f"feasibly: {store.name}")
    page.code(str(summary))
    page.code(manifest.config.method)
    about = {"started": manifest.created, "commit": manifest.commit or "none"}
    page.table([about | dict(manifest.versions)])
    pages.pictures(page, few(summary))
    known = [r.violation for r in summary.records if r.violation is not None]
    tolerance = manifest.config.tolerance
    if known and tolerance is not None:
        pages.illustrate(
            page,
            lambda: figures.histogram({"members": torch.tensor(known)}, tolerance),
            "Violation of the samples.",
        )
        page.table(steps(summary.records))
    pages.fits(page, {name: torch.from_numpy(fit) for name, fit in summary.fits().items()})
    if summary.records:
        page.table([row(record) for record in summary.records])
    out = out or store.with_suffix(".html")
    status = conclude(summary, console)
    page.write(out)
    console.say(f"Report: {out}")
    return status


def few(summary: Summary) -> torch.Tensor:
    """Returns members to draw, with shape (B, *): the first that are finished. There are none of
    samples that take long to read."""
    shape, found = summary.store.config.shape, []
    count = POINTS if shape == (2,) else FEW
    for member in summary.state("finished")[:count] if math.prod(shape) <= LARGEST else []:
        with contextlib.suppress(StoreError, OSError):  # changed since it was written
            found.append(torch.from_numpy(summary.store.get(member)))
    return torch.stack(found) if found else torch.empty(0, *shape)


def row(record: Any) -> dict[str, str]:
    """A member's row in the report."""
    return {
        "member": str(record.member),
        "state": record.state,
        "violation": "-" if record.violation is None else f"{record.violation:.3g}",
        "feasible": "yes" if record.feasible else "no",
        "forward": f"{record.forward:.0f}",
        "backward": f"{record.backward:.0f}",
        "seconds": f"{record.seconds:.2f}",
    }


def steps(records: Sequence[Record]) -> list[dict[str, str]]:
    """The table of the violations along the way, at some eight steps."""
    table, last = [], max((len(r.path) for r in records), default=0)
    for step in np.linspace(1, last, min(8, last)).round().astype(int).tolist():
        reached = [r.path[step - 1] for r in records if len(r.path) >= step]
        known = [v for v in reached if v is not None]
        values = np.quantile(known, [0.5, 0.95, 1]) if known else [np.nan] * 3
        words = (f"{value:.3g}" for value in values)
        names = ("violation: median", "95 %", "worst")
        table.append({"step": str(step), **dict(zip(names, words, strict=True))})
    return table


def conclude(summary: Summary, console: Screen) -> int:
    """Prints the summary of a run; returns the exit status."""
    console.say(str(summary))
    console.say(f"Store: {summary.store.path}")
    return int(summary.is_short or not summary.feasible)


def expected(footprint: Footprint, chunk: int) -> str:
    """What the first chunk of a run is expected to take, in words."""
    seconds = max(1, round(footprint.seconds(chunk)))
    parts = (footprint.of(chunk), footprint.member, footprint.fixed)
    together, each, besides = map(size, parts)
    return (
        f"{several(chunk, 'sample')} at a time, which takes about {seconds} s and at most "
        f"{together} of memory: {each} each and {besides} in addition, and the weights."
    )


def place() -> tuple[int, int, int, int]:
    """Returns this process's rank, its rank on its machine, the number of processes, and that on
    its machine, as torchrun or srun set them; 0, 0, 1 and 1 if neither started it."""

    def number(*names: str, default: int) -> int:
        texts = (os.environ.get(name, "") for name in names)
        return next((int(text) for text in texts if text.isdecimal()), default)

    world = max(1, number("WORLD_SIZE", "SLURM_NTASKS", default=1))
    return (
        number("RANK", "SLURM_PROCID", default=0),
        number("LOCAL_RANK", "SLURM_LOCALID", default=0),
        world,
        max(1, number("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", default=world)),
    )


@contextlib.contextmanager
def stopping() -> Generator[None]:
    """Has SIGTERM, by which launchers and schedulers stop a process, stop it as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
