"""Simulated data for training: `python -m experiments data NAME`."""

__all__ = ["FRESH", "ks", "weather", "weather_day"]

from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.progress import Progress
from torch import Tensor

from feasibly.problems import ks_solver, shallow_water
from feasibly.problems.weather import FRESH

from . import netcdf

BLOCK = ks_solver.BLOCK


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

    def block(i: int) -> Tensor:
        return ks_solver.simulate(i, seed, size)

    _refuse_fresh(seed)
    shape = (trajectories, size, size)
    _write(path, shape, np.float32, f"{shape} {seed} ", BLOCK, block)


def weather(path: Path, members: int, hours: int, resolution: str, seed: int) -> None:
    """Writes the simulated weather of a small planet as one `.npy` file, block by block.

    It is resumed and determined as :func:`ks` is.

    Arguments:
        path: The file to write, in half precision, with shape (members, hours, 3, 32, 64):
            geopotential without its mean (which is conserved, and would cost it three digits) in
            m²/s², eastward and northward wind in m/s.
        members: The number of members.
        hours: The hours of each.
        resolution: The truncation of the solver.
        seed: The seed.

    Raises:
        ValueError: If the file is there already, or the seed is that of fresh data.
    """
    planet = shallow_water.Planet()

    def block(i: int) -> Tensor:
        fields = shallow_water.simulate(i, seed, hours, resolution, planet)
        fields[:, :, 0] -= planet.geopotential
        return fields

    _refuse_fresh(seed)
    shape = (members, hours, 3, shallow_water.LATITUDES, 2 * shallow_water.LATITUDES)
    header = f"{shape} {resolution} {planet} {seed} "
    _write(path, shape, np.float16, header, shallow_water.BLOCK, block)


def weather_day(path: Path) -> None:
    """Writes one day of fresh weather as a netCDF file: the sample that the package ships."""
    day = shallow_water.simulate(0, FRESH, hours=24)[0]
    netcdf.write(
        path, day, source=f"feasibly.problems.shallow_water, T31, {shallow_water.Planet()}"
    )


def _refuse_fresh(seed: int) -> None:
    if seed == FRESH:
        raise ValueError(
            f"Seed {FRESH} is kept for data that priors are measured on; take another."
        )


def _write(
    path: Path,
    shape: tuple[int, ...],
    dtype: type,
    header: str,
    size: int,
    simulate: Callable[[int], Tensor],
) -> None:
    """Writes blocks of `size` entries; the header tells what an unfinished file was to hold."""
    if path.exists():
        raise ValueError(
            f"There are data at {path} already; remove them, or choose another --out."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part, done = path.with_suffix(".part"), path.with_suffix(".done")
    start = 0
    if part.exists() and done.exists() and done.read_text().startswith(header):
        start = int(done.read_text().removeprefix(header))
    mode = "r+" if start else "w+"
    array = np.lib.format.open_memmap(part, mode=mode, dtype=dtype, shape=shape)
    with Progress() as progress:
        task = progress.add_task(str(path), total=shape[0], completed=start)
        for first in range(start, shape[0], size):
            block = simulate(first // size)
            last = min(first + size, shape[0])
            array[first:last] = block[: last - first].numpy()
            array.flush()
            done.write_text(f"{header}{last}")
            progress.update(task, completed=last)
    part.replace(path)
    done.unlink()
