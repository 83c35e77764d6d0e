"""Are members the same however they are sampled, does memory stay, and what do two processes gain?
`python -m experiments.ensembles {identical, memory, throughput} --help`."""

import json
import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from feasibly import Chunked, ensemble, plan, priors
from feasibly.cli.load import load_constraint
from feasibly.minimizers import WarmLBFGS
from feasibly.problems.ks import KS
from feasibly.samplers import Sampler
from feasibly.sampling import run

from .records import RESULTS, versions

Problem = Literal["data2d", "ks"]


@dataclass(frozen=True)
class Setting:
    """What is sampled.

    Attributes:
        dtype: The precision of the network and of the samples.
    """

    problem: Problem = "data2d"
    steps: int = 32
    iterations: int = 4
    dtype: Literal["float32", "float64"] = "float32"
    one_by_one: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (2,) if self.problem == "data2d" else (64, 64)

    def attempts(self) -> tuple[Sampler, ...]:
        """Makes the samplers."""
        torch.set_num_threads(1)
        dtype = getattr(torch, self.dtype)
        if self.problem == "data2d":
            denoiser, constraint = priors.load("checkerboard"), load_constraint("0")
            attempts, options = None, {"steps": self.steps}
        else:
            problem = KS("sine-3")
            y = torch.linspace(0, 20, 64, dtype=dtype).sin().expand(problem.shape)
            denoiser, constraint = problem.denoiser, problem.constraint(y)
            attempts = 1
            options = {"steps": self.steps, "minimize": WarmLBFGS(self.iterations)}
        chosen = plan(
            self.wrap(denoiser.to(dtype)),
            constraint,
            self.shape,
            attempts=attempts,
            options=options,
            dtype=dtype,
        )
        return chosen.attempts

    def wrap(self, denoiser: Any) -> Any:
        """The denoiser, or the denoiser one by one."""
        return Chunked(denoiser, 1, recompute=False) if self.one_by_one else denoiser

    def fill(self, store: Path, members: int, chunk: int, processes: int) -> float:
        """Fills a store by several processes; returns the seconds from their common start."""
        context = multiprocessing.get_context("spawn")
        ready = context.Barrier(processes + 1)
        task = (self, store, members, chunk, processes, ready)
        crew = [context.Process(target=_work, args=task) for _ in range(processes)]
        for process in crew:
            process.start()
        ready.wait()
        start = time.perf_counter()
        for process in crew:
            process.join()
        seconds = time.perf_counter() - start
        if any(process.exitcode for process in crew):
            raise RuntimeError(f"A process ended with {[p.exitcode for p in crew]}.")
        return seconds


def _work(
    setting: Setting, store: Path, members: int, chunk: int, processes: int, ready: Any
) -> None:
    attempts, dtype = setting.attempts(), getattr(torch, setting.dtype)
    run(attempts, 1, setting.shape, dtype=dtype)  # what this loads is no part of the work
    ready.wait()
    ensemble.run(
        attempts, store, members, setting.shape, chunk=chunk, workers=processes, dtype=dtype
    )


def values(store: Path) -> torch.Tensor:
    """The members of a store, with shape (members, *)."""
    made = ensemble.Store(store)
    return torch.stack([torch.from_numpy(made.get(i)) for i in range(made.config.members)])


@dataclass(frozen=True)
class Identical:
    """Sample the same members by 1, 2 and 4 processes, and in chunks of 1, 3 and 16."""

    setting: Setting = Setting()
    members: int = 32

    def run(self, folder: Path) -> list[dict[str, Any]]:
        cases = [(1, 16), (2, 16), (4, 16), (1, 1), (1, 3)]
        found = []
        for processes, chunk in cases:
            store = folder / f"{processes}-{chunk}.zarr"
            self.setting.fill(store, self.members, chunk, processes)
            found.append((processes, chunk, values(store)))
        first = found[0][2]
        scale = first.flatten(1).norm(dim=1)
        rows = []
        for processes, chunk, samples in found:
            error = (samples - first).flatten(1).norm(dim=1) / scale
            row = {
                "processes": processes,
                "chunk": chunk,
                "within_1e-5": int((error <= 1e-5).sum()),
            }
            rows.append(row | {"median": error.median().item(), "largest": error.max().item()})
        return rows


@dataclass(frozen=True)
class Memory:
    """Measure the peak memory of a process by the number of members that it samples."""

    setting: Setting = Setting(steps=4, iterations=2)
    members: tuple[int, ...] = (64, 1024)
    chunk: int = 16

    def run(self, folder: Path) -> list[dict[str, Any]]:
        rows = []
        for count in self.members:
            store = folder / f"{count}.zarr"
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            work = context.Process(
                target=_peak, args=(self.setting, store, count, self.chunk, there)
            )
            work.start()
            rows.append({"members": count, "chunk": self.chunk, "peak_mb": here.recv()})
            work.join()
        return rows


def _peak(setting: Setting, store: Path, members: int, chunk: int, answer: Any) -> None:
    import resource

    ensemble.run(setting.attempts(), store, members, setting.shape, chunk=chunk)
    answer.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


@dataclass(frozen=True)
class Throughput:
    """Sample the same members by one process and by two."""

    setting: Setting = Setting("ks", steps=8)
    members: int = 48
    chunk: int = 2

    def run(self, folder: Path) -> list[dict[str, Any]]:
        rows = []
        for processes in (1, 2):
            store = folder / f"{processes}.zarr"
            seconds = self.setting.fill(store, self.members, self.chunk, processes)
            rows.append({"processes": processes, "seconds": round(seconds, 2)})
        return [row | {"speedup": round(rows[0]["seconds"] / row["seconds"], 3)} for row in rows]


COMMANDS = {"identical": Identical, "memory": Memory, "throughput": Throughput}


def main() -> None:
    command = tyro.extras.subcommand_cli_from_dict(  # ty: ignore[no-matching-overload]
        COMMANDS, description=__doc__
    )
    name = type(command).__name__.lower()
    path = RESULTS / "ensemble" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = command.run(Path(folder))
    common = {"measurement": repr(command), "versions": versions()}
    with path.open("a") as file:
        for row in rows:
            print(row)
            file.write(json.dumps(common | row) + "\n")


if __name__ == "__main__":
    main()
