"""Simulated data for training: `python -m experiments data NAME`."""

__all__ = ["FRESH", "ks"]

from pathlib import Path

import numpy as np
from rich.progress import Progress

from feasibly.problems import ks_solver

BLOCK = ks_solver.BLOCK

FRESH = 1
"""The seed of the data that no prior is trained on."""


def ks(path: Path, trajectories: int, size: int, seed: int) -> None:
    """Writes simulated Kuramoto-Sivashinsky trajectories as one `.npy` file, block by block.

    A file that was left unfinished is taken up where it was left; the content is a function of
    the arguments alone.

    Arguments:
        path: The file to write, in physical units and single precision, with shape
            (trajectories, size, size).
        trajectories: The number of trajectories.
        size: The number of frames and of grid points.
        seed: The seed.

    Raises:
        ValueError: If the file is there already, or the seed is that of fresh data.
    """
    if seed == FRESH:
        raise ValueError(
            f"Seed {FRESH} is kept for data that priors are measured on; take another."
        )
    if path.exists():
        raise ValueError(
            f"There are data at {path} already; remove them, or choose another --out."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part, done = path.with_suffix(".part"), path.with_suffix(".done")
    shape = (trajectories, size, size)
    header = f"{shape} {seed} "
    start = 0
    if part.exists() and done.exists() and done.read_text().startswith(header):
        start = int(done.read_text().removeprefix(header))
    mode = "r+" if start else "w+"
    array = np.lib.format.open_memmap(part, mode=mode, dtype=np.float32, shape=shape)
    with Progress() as progress:
        task = progress.add_task(str(path), total=trajectories, completed=start)
        for first in range(start, trajectories, BLOCK):
            block = ks_solver.simulate(first // BLOCK, seed, size)
            last = min(first + BLOCK, trajectories)
            array[first:last] = block[: last - first].numpy()
            array.flush()
            done.write_text(f"{header}{last}")
            progress.update(task, completed=last)
    part.replace(path)
    done.unlink()
