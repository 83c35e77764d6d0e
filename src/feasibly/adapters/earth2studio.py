r"""Data assimilation in the form of earth2studio's `AssimilationModel`.

References:
    | https://github.com/NVIDIA/earth2studio, earth2studio.models.da
"""

__all__ = ["Assimilation"]

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from earth2studio.utils.obs import filter_time_range
from earth2studio.utils.time import normalize_time_tolerance
from earth2studio.utils.type import CoordSystem, FrameSchema
from torch import Tensor, nn

from ..api import sample
from ..constraints import Constraint, Observation
from ..network import along_channels
from ..result import Result
from ..samplers import Method
from ..weather.bilinear import Grid
from ..weather.stations import Stations

WINDOW = np.timedelta64(10, "m")
"""The time around an analysis from which observations count, as in earth2studio's models."""


class Assimilation(nn.Module):
    r"""Samples an ensemble of fields given observations at stations.

    It is an `AssimilationModel` of earth2studio without a state. Its input is a DataFrame with
    the columns `time`, `lat`, `lon`, `variable`, `observation` and, unless `errors` has them,
    `error`, and with `request_time` among its `attrs`, as `earth2studio.data.fetch_dataframe`
    returns it. Its output is a `DataArray` on the CPU with the axes `ensemble`, `time`,
    `variable`, `lat` and `lon`. Each time is analysed from its own observations, so that it has
    the same ensemble alone as next to others; without an observation, that of the prior.

    Of the reports of one place and variable within the window, the nearest in time counts, and as
    one of the time itself. Rows without a value or outside of the grid are left out.

    Arguments:
        denoiser: The denoiser of standardised states of one time, with shape
            :math:`(C, lat, lon)`.
        variables: The names of the :math:`C` variables, such as `t2m`, as in the table.
        lat: The latitudes in degrees, ascending or descending.
        lon: The longitudes in degrees, ascending.
        mean: The mean by which states were standardised: a number, one for each variable, or
            :math:`(C, lat, lon)`.
        std: The standard deviation, likewise.
        errors: For each variable, the standard deviation of the error of rows without one, in the
            units of the variable. An error of zero is of an exact value.
        tolerance: The largest sum of squares of the misfits of exact values, in squared units;
            None if no value is exact.
        time_tolerance: The window around a time: a `timedelta` on both sides, or two of them.
        members: The number of ensemble members.
        method: The method; see :func:`feasibly.sample`. A time without an observation takes
            `auto`.
        seed: The seed, which with a time determines its noise.

    Attributes:
        results: The :class:`feasibly.Result` of each time of the last call.

    Raises:
        ConstraintError: In use, if the table cannot be used; see
            :class:`feasibly.weather.Stations`.
        ValueError: If a standard deviation is not positive; in use, if columns or `request_time`
            are missing.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        denoiser: Any,
        variables: Sequence[str],
        lat: np.ndarray | Sequence[float],
        lon: np.ndarray | Sequence[float],
        *,
        mean: Any = 0.0,
        std: Any = 1.0,
        errors: Mapping[str, float] | None = None,
        tolerance: float | None = None,
        time_tolerance: Any = WINDOW,
        members: int = 16,
        method: str | Method = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.denoiser, self.method, self.members, self.seed = denoiser, method, members, seed
        self.variables, self.lat, self.lon = list(variables), np.asarray(lat), np.asarray(lon)
        self.grid = Grid(torch.as_tensor(self.lat), torch.as_tensor(self.lon))
        like = torch.zeros(1, len(self.variables), *self.grid.shape, dtype=torch.float64)
        self.register_buffer("mean", along_channels(mean, like))
        self.register_buffer("std", along_channels(std, like))
        if not (self.std > 0).all():
            raise ValueError(f"Assimilation(std=...) must be positive, got {self.std.min():.3g}.")
        self.errors, self.tolerance = errors, tolerance
        self.window = normalize_time_tolerance(time_tolerance)
        self.results: list[Result] = []

    def init_coords(self) -> None:
        """Returns None: there is no state."""

    def input_coords(self) -> tuple[FrameSchema]:
        """Returns the columns of the observations."""
        numbers = ["lat", "lon", "observation"] + ["error"] * (self.errors is None)
        columns = {"time": np.empty(0, "datetime64[ns]")}
        columns |= {name: np.empty(0, np.float32) for name in numbers}
        return (FrameSchema(columns | {"variable": np.array(self.variables, dtype=str)}),)

    def output_coords(
        self, input_coords: tuple[FrameSchema, ...], request_time: np.ndarray, **attrs: Any
    ) -> tuple[CoordSystem]:
        """Returns the coordinates of the ensemble at the times `request_time`."""
        coords = {"ensemble": np.arange(self.members), "time": request_time}
        coords |= {"variable": np.array(self.variables, dtype=str)}
        return (CoordSystem(coords | {"lat": self.lat, "lon": self.lon}),)

    def __call__(self, obs: Any) -> Any:
        """Returns the ensemble given observations, as an `xarray.DataArray`."""
        import xarray

        times = getattr(obs, "attrs", {}).get("request_time")
        if times is None:
            raise ValueError(
                "Assimilation takes a DataFrame with the times to analyse among its attrs, as "
                'obs.attrs["request_time"] = numpy.array([...]), also if it has no rows; '
                "earth2studio.data.fetch_dataframe sets them."
            )
        lacking = [name for name in self.input_coords()[0] if name not in obs.columns]
        if lacking:
            raise ValueError(
                f"Assimilation: the observations have no column {', '.join(lacking)}; rename "
                "theirs, or give errors=... for each variable if errors are lacking."
            )
        table = obs.to_pandas() if hasattr(obs, "to_pandas") else obs  # of cudf
        moments = np.atleast_1d(np.asarray(times, "datetime64[ns]"))
        (coords,) = self.output_coords(self.input_coords(), moments)
        self.results = [self._analysis(table, moment) for moment in moments]
        fields = [(one.samples * self.std + self.mean).float().cpu() for one in self.results]
        return xarray.DataArray(torch.stack(fields, dim=1).numpy(), dict(coords), list(coords))

    def create_generator(self) -> Generator[Any, Any, None]:
        """Yields the ensemble for observations that are sent, after a first None."""
        obs = yield None
        while True:
            obs = yield self(obs)

    def _analysis(self, table: Any, moment: np.datetime64) -> Result:
        """Samples one time."""
        constraint = self._constraint(table, moment)
        entropy = self.seed, int(moment.astype(np.int64)) % 2**64
        return sample(
            self.denoiser,
            constraint,
            self.members,
            (len(self.variables), *self.grid.shape),
            method="auto" if constraint is None else self.method,
            seed=int(np.random.SeedSequence(entropy).generate_state(1)[0]),
            device=self.mean.device,
        )

    def _constraint(self, table: Any, moment: np.datetime64) -> Constraint | None:
        """Returns the observations of one time, on standardised states; None for none."""
        rows = filter_time_range(table, moment, self.window)
        lat, lon = (rows[name].to_numpy(np.float64) for name in ("lat", "lon"))
        rows = rows[rows["observation"].notna() & ~self.grid.outside(lat, lon)]
        if not len(rows):
            return None
        order = (rows["time"] - moment).abs().argsort(kind="stable")
        rows = rows.iloc[order].drop_duplicates(["lat", "lon", "variable"])
        names = [name for name in ("lat", "lon", "variable", "error") if name in rows]
        stations = Stations(
            rows[names].assign(time=moment, value=rows["observation"]),
            variables=self.variables,
            times=[moment],
            latitude=torch.as_tensor(self.lat),
            longitude=torch.as_tensor(self.lon),
            errors=self.errors,
        )
        # the mean is taken off first, since fields in their units are rounded
        y = stations.y - stations(self.mean[None, None])[0].cpu()
        exact = bool((stations.errors == 0).any())
        observation = Observation(
            lambda x: stations((x * self.std.to(x))[:, None]),
            y,
            self.tolerance if exact else None,
            noise=stations.errors,
        )
        observation.linear = True
        return observation
