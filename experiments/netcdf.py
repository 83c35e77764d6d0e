"""A day of weather as a netCDF-3 file, by CF's conventions and with ERA5's names."""

__all__ = ["write"]

from pathlib import Path

import numpy as np
from torch import Tensor

NAMES = {
    "geopotential": ("geopotential", "m2 s-2"),
    "u_component_of_wind": ("eastward_wind", "m s-1"),
    "v_component_of_wind": ("northward_wind", "m s-1"),
}
"""The variables, each with CF's standard name and units."""


def write(path: Path, fields: Tensor, source: str) -> None:
    """Writes hourly fields, packed to 16 bits: to 1/65,000 of each variable's range.

    Arguments:
        path: The file to write, at once.
        fields: Geopotential and wind in SI units on cell-centred latitudes, with shape
            (hours, 3, nlat, nlon).
        source: What made them.
    """
    from scipy.io import netcdf_file

    hours, _, nlat, nlon = fields.shape
    coordinates = {
        "time": (np.arange(hours), "time", "hours since 2000-01-01 00:00:00", "T"),
        "latitude": ((np.arange(nlat) + 0.5) * 180 / nlat - 90, "latitude", "degrees_north", "Y"),
        "longitude": (np.arange(nlon) * 360 / nlon, "longitude", "degrees_east", "X"),
    }
    part = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with netcdf_file(part, "w") as file:
        file.Conventions = "CF-1.8"
        file.title = "A day of weather on a small planet of rotating shallow water"
        file.source = source
        for name, (values, standard_name, units, axis) in coordinates.items():
            file.createDimension(name, len(values))
            variable = file.createVariable(name, "f8", (name,))
            variable[:] = values
            variable.standard_name, variable.units, variable.axis = standard_name, units, axis
        file.variables["time"].calendar = "standard"
        for (name, (standard_name, units)), field in zip(
            NAMES.items(), fields.double().unbind(1), strict=True
        ):
            low, high = field.min().item(), field.max().item()
            scale, offset = (high - low) / 65_000, (high + low) / 2
            variable = file.createVariable(name, "i2", ("time", "latitude", "longitude"))
            variable[:] = ((field - offset) / scale).round().numpy().astype(np.int16)
            variable.standard_name, variable.units = standard_name, units
            variable.scale_factor, variable.add_offset = scale, offset
    part.replace(path)
