"""Simulated data for training: `python -m experiments data NAME`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.progress import Progress
from torch import Tensor

from feasibly.problems import ks_solver, shallow_water
from feasibly.problems.weather import FRESH

BLOCK = ks_solver.BLOCK
NAMES = {
    "geopotential": ("geopotential", "m2 s-2"),
    "u_component_of_wind": ("eastward_wind", "m s-1"),
    "v_component_of_wind": ("northward_wind", "m s-1"),
}
"""The variables of a day, ERA5's names, each with CF's standard name and units."""


def ks(path: Path, trajectories: int, size: int = 128, seed: int = 0) -> None:
    """Writes simulated Kuramoto-Sivashinsky trajectories as one `.npy` file, block by block.

    A file that was left unfinished is taken up where it was left; the content is a function of
    the arguments alone. It is in physical units and single precision, with shape
    (trajectories, size, size).

    Raises:
        ValueError: If the file is there already, or the seed is that of fresh data.
    """
    shape = (trajectories, size, size)
    simulate = lambda i: ks_solver.simulate(i, seed, size)  # noqa: E731
    _write(path, shape, np.float32, f"{shape}", seed, BLOCK, simulate)


def weather(
    path: Path, members: int, hours: int = 384, resolution: str = "T31", seed: int = 0
) -> None:
    """Writes the simulated weather of a small planet as one `.npy` file, block by block.

    It is resumed and determined as :func:`ks` is, in half precision, with shape
    (members, hours, 3, 32, 64): geopotential without its mean (which is conserved, and would cost
    it three digits) in m²/s², eastward and northward wind in m/s.

    Raises:
        ValueError: If the file is there already, or the seed is that of fresh data.
    """
    planet = shallow_water.Planet()

    def simulate(i: int) -> Tensor:
        fields = shallow_water.simulate(i, seed, hours, resolution, planet)
        fields[:, :, 0] -= planet.geopotential
        return fields

    shape = (members, hours, 3, shallow_water.LATITUDES, 2 * shallow_water.LATITUDES)
    header = f"{shape} {resolution} {planet}"
    _write(path, shape, np.float16, header, seed, shallow_water.BLOCK, simulate)


def _write(
    path: Path,
    shape: tuple[int, ...],
    dtype: type,
    header: str,
    seed: int,
    size: int,
    simulate: Callable[[int], Tensor],
) -> None:
    """Writes blocks of `size` entries; the header tells what an unfinished file was to hold."""
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
    start, header = 0, f"{header} {seed} "
    if part.exists() and done.exists() and done.read_text().startswith(header):
        start = int(done.read_text().removeprefix(header))
    mode = "r+" if start else "w+"
    array = np.lib.format.open_memmap(part, mode=mode, dtype=dtype, shape=shape)
    with Progress() as progress:
        task = progress.add_task(str(path), total=shape[0], completed=start)
        for first in range(start, shape[0], size):
            last = min(first + size, shape[0])
            array[first:last] = simulate(first // size)[: last - first].numpy()
            array.flush()
            done.write_text(f"{header}{last}")
            progress.update(task, completed=last)
    part.replace(path)
    done.unlink()


def weather_day(path: Path) -> None:
    """Writes one day of fresh weather as a netCDF file: the sample that the package ships."""
    day = shallow_water.simulate(0, FRESH, hours=24)[0]
    netcdf(path, day, source=f"feasibly.problems.shallow_water, T31, {shallow_water.Planet()}")


def netcdf(path: Path, fields: Tensor, source: str) -> None:
    """Writes hourly fields as netCDF-3 by CF's conventions, at once, packed to 16 bits: to
    1/65,000 of each variable's range.

    Arguments:
        fields: Geopotential and wind in SI units on cell-centred latitudes, with shape
            (hours, 3, nlat, nlon).
    """
    import xarray

    hours, _, nlat, nlon = fields.shape
    axes = {
        "time": (np.arange(hours, dtype=float), "hours since 2000-01-01 00:00:00", "T"),
        "latitude": ((np.arange(nlat) + 0.5) * 180 / nlat - 90, "degrees_north", "Y"),
        "longitude": (np.arange(nlon) * 360 / nlon, "degrees_east", "X"),
    }
    day = xarray.Dataset(
        coords={
            name: (name, values, {"standard_name": name, "units": units, "axis": axis})
            for name, (values, units, axis) in axes.items()
        },
        attrs={
            "Conventions": "CF-1.8",
            "title": "A day of weather on a small planet of rotating shallow water",
            "source": source,
        },
    )
    day.time.attrs["calendar"] = "standard"
    packing = {}
    for (name, (standard_name, units)), field in zip(
        NAMES.items(), fields.double().unbind(1), strict=True
    ):
        low, high = field.min().item(), field.max().item()
        day[name] = tuple(axes), field, {"standard_name": standard_name, "units": units}
        scale = {"scale_factor": (high - low) / 65_000, "add_offset": (high + low) / 2}
        packing[name] = {"dtype": "int16", "_FillValue": None, **scale}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    day.to_netcdf(part, engine="scipy", encoding=packing)
    part.replace(path)
