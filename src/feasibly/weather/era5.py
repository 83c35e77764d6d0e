"""ERA5's variables, by all the names that they go by, and the channels of weather models."""

__all__ = ["FIELDS", "NAMES", "Channel", "Field", "channel", "channels"]

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Field:
    """A variable.

    Attributes:
        short: ECMWF's short name, that of files from the Climate Data Store.
        long: ERA5's long name, that of WeatherBench2's stores.
        standard: CF's standard name.
        units: The units in ERA5, in CF's spelling.
        on_levels: Whether it is given on pressure levels.
    """

    short: str
    long: str
    standard: str
    units: str
    on_levels: bool = False


@dataclass(frozen=True)
class Channel:
    """A variable, on a pressure level in hPa if it is given on levels."""

    field: Field
    level: int | None = None

    @property
    def name(self) -> str:
        return self.field.short + ("" if self.level is None else str(self.level))


FIELDS = (
    Field("t2m", "2m_temperature", "air_temperature", "K"),
    Field("d2m", "2m_dewpoint_temperature", "dew_point_temperature", "K"),
    Field("u10", "10m_u_component_of_wind", "eastward_wind", "m s-1"),
    Field("v10", "10m_v_component_of_wind", "northward_wind", "m s-1"),
    Field("msl", "mean_sea_level_pressure", "air_pressure_at_mean_sea_level", "Pa"),
    Field("sp", "surface_pressure", "surface_air_pressure", "Pa"),
    Field("sst", "sea_surface_temperature", "sea_surface_temperature", "K"),
    Field("tp", "total_precipitation", "lwe_thickness_of_precipitation_amount", "m"),
    Field("t", "temperature", "air_temperature", "K", True),
    Field("u", "u_component_of_wind", "eastward_wind", "m s-1", True),
    Field("v", "v_component_of_wind", "northward_wind", "m s-1", True),
    Field("w", "vertical_velocity", "lagrangian_tendency_of_air_pressure", "Pa s-1", True),
    Field("z", "geopotential", "geopotential", "m2 s-2", True),
    Field("q", "specific_humidity", "specific_humidity", "1", True),
)
"""The variables that are known by name."""

GRIB = {"2t": "t2m", "2d": "d2m", "10u": "u10", "10v": "v10"}
"""Short names that begin with a digit in GRIB."""

NAMES: dict[str, Field] = {name: field for field in FIELDS for name in (field.short, field.long)}
NAMES |= {name: NAMES[short] for name, short in GRIB.items()}
"""The variables by their names."""


def channel(name: str) -> Channel:
    """Returns the channel of a name such as `t2m`, `2m_temperature` or `z500`.

    Raises:
        ValueError: If the variable is unknown, or its level is missing or one too many.
    """
    levelled = re.fullmatch(r"([a-z_]+?)_?(\d+)", name)
    if name not in NAMES and levelled and levelled[1] in NAMES:
        found = Channel(NAMES[levelled[1]], int(levelled[2]))
    elif name in NAMES:
        found = Channel(NAMES[name])
    else:
        known = ", ".join(f"{field.short} ({field.long})" for field in FIELDS)
        raise ValueError(f"There is no variable {name!r}; known are {known}.")
    if found.field.on_levels == (found.level is None):
        wrong = "needs a pressure level" if found.field.on_levels else "is not on levels"
        raise ValueError(f"{name!r}: {found.field.long} {wrong}; channels are t2m or z500.")
    return found


def channels(names: Sequence[str], levels: Sequence[int] = ()) -> tuple[Channel, ...]:
    """Returns the channels of names: one of each channel's, and one on every level, in the order
    given, of each variable's on pressure levels."""
    found: list[Channel] = []
    for name in names:
        if name in NAMES and NAMES[name].on_levels and levels:
            found += [Channel(NAMES[name], level) for level in levels]
        else:
            found.append(channel(name))
    return tuple(found)
