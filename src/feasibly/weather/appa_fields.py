"""The fields that Appa decodes: their channels, their units, and where the sea is."""

__all__ = ["LEVELS", "AppaFields"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ConstraintError, DenoiserError
from .era5 import channels

SURFACE = ("t2m", "u10", "v10", "msl", "sst", "tp")
ON_LEVELS = ("t", "u", "v", "z", "q")
LEVELS = {
    71: (50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000),
    191: (
        *(1, 2, 3, 5, 7, 10, 20, 30, 50, 70, *range(100, 251, 25), *range(300, 751, 50)),
        *range(775, 1001, 25),
    ),
}
"""The pressure levels in hPa, by the number of channels."""


class AppaFields:
    """The fields that Appa decodes, which are standardised by channel.

    Units and the sea are read from the stores of the released folder `data/`, when asked for.

    Arguments:
        count: The number of channels.
        grid: The number of rows and columns.
        data: The folder of the stores.

    Raises:
        DenoiserError: If that is no number of channels that is known.
    """

    def __init__(self, count: int, grid: tuple[int, ...], data: Path) -> None:
        if count not in LEVELS:
            raise DenoiserError(
                f"The autoencoder has {count} channels; known are {[*LEVELS]}, for 13 and 37 "
                "levels."
            )
        self.grid, self.data, self.levels = grid, data, LEVELS[count]
        self.channels = (*channels(SURFACE), *channels(ON_LEVELS, self.levels))

    @property
    def names(self) -> tuple[str, ...]:
        """The channels' names: `t2m`, ..., `z500`, ..."""
        return tuple(channel.name for channel in self.channels)

    def index(self, names: Sequence[str] | None) -> list[int]:
        """Returns the positions of channels, by their names; of all, for None.

        Raises:
            ConstraintError: If there are no such channels.
        """
        wanted = self.channels if names is None else channels(names)
        lacking = [c.name for c in wanted if c not in self.channels]
        if lacking:
            raise ConstraintError(
                f"Appa has no {', '.join(lacking)}; its channels are {', '.join(SURFACE)}, and "
                f"{', '.join(ON_LEVELS)} on {', '.join(map(str, self.levels))} hPa."
            )
        return [self.channels.index(c) for c in wanted]

    def standardise(self, fields: Tensor, names: Sequence[str] | None = None) -> Tensor:
        """Standardises fields in ERA5's units, with shape (*, channels, rows, columns).

        Raises:
            DenoiserError: If the folder's statistics cannot be read.
        """
        mean, std = self._statistics(names, fields)
        return (fields - mean) / std

    def physical(self, fields: Tensor, names: Sequence[str] | None = None) -> Tensor:
        """Returns standardised fields in ERA5's units; the inverse of :meth:`standardise`."""
        mean, std = self._statistics(names, fields)
        return fields * std + mean

    @property
    def sea(self) -> Tensor:
        """Where the sea's temperature is one, with shape (rows, columns).

        Raises:
            DenoiserError: If the folder's masks cannot be read.
        """
        held = self._store("masks")["sea_surface_temperature_mask"].values
        return torch.from_numpy(held.astype(bool)).reshape(self.grid)

    def _statistics(self, names: Sequence[str] | None, like: Tensor) -> list[Tensor]:
        data = self._store("stats")
        wanted = [self.channels[k] for k in self.index(names)]
        found = []
        for kind in ("mean", "std"):
            of_kind = data.sel(statistic=kind)
            fields = [
                of_kind[c.field.long].sel({} if c.level is None else {"level": c.level})
                for c in wanted
            ]
            found.append(torch.tensor([float(f) for f in fields]).double()[:, None, None].to(like))
        return found

    def _store(self, kind: str) -> Any:
        found = sorted(self.data.glob(f"{kind}_era5*.zarr"))
        if len(found) != 1:
            raise DenoiserError(
                f"{self.data} must hold one store {kind}_era5_*.zarr, and has "
                f"{[path.name for path in found] or 'none'}. Without it give standardised fields, "
                "and not a number where the sea's temperature is not observed."
            )
        try:
            import xarray

            return xarray.open_zarr(found[0], chunks=None)
        except ImportError as error:
            raise DenoiserError(
                f"{found[0]} is read by xarray and zarr, of which one cannot be imported "
                f"({error}); `pip install feasibly[weather]` brings them."
            ) from error
