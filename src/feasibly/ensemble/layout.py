"""What the axes of a sample are: names, coordinates, units."""

__all__ = ["Coordinate", "Layout"]

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

RESERVED = {"member", "violation", "feasible", "finished", "forward", "backward", "seconds"}


@dataclass(frozen=True)
class Coordinate:
    """An axis of a sample.

    Attributes:
        name: Its name, such as `time`.
        values: The coordinate of each point; None for 0, 1, 2, ...
        units: Their units, as the CF conventions write them, such as `h`, `m s-1` or `hours since
            2026-01-01`.
        long_name: What it is, in words for a plot.
    """

    name: str
    values: Sequence[float] | None = None
    units: str = "1"
    long_name: str = ""


@dataclass(frozen=True)
class Layout:
    """What a sample is: a variable of a store, with named axes.

    Attributes:
        axes: The axes of one sample, in order.
        name: The name of the variable.
        units: The units of its values.
        long_name: What it is, in words for a plot.
    """

    axes: tuple[Coordinate, ...]
    name: str = "samples"
    units: str = "1"
    long_name: str = "sample"

    @classmethod
    def default(cls, shape: Sequence[int]) -> "Layout":
        """Names the axes by their number."""
        return cls(tuple(Coordinate(f"axis_{k}") for k in range(len(shape))))

    def check(self, shape: Sequence[int]) -> None:
        """Refuses a layout that does not fit samples of a shape.

        Raises:
            ValueError: If names are no names or taken, or numbers of axes or points differ.
        """
        names = [self.name, *(axis.name for axis in self.axes)]
        if any(not name.isidentifier() or name in RESERVED for name in names) or len(
            set(names)
        ) < len(names):
            raise ValueError(
                f"A layout's names must be different words, and none of {sorted(RESERVED)}, got "
                f"{names}; rename the variable or an axis."
            )
        for units in (self.units, *(axis.units for axis in self.axes)):
            if "since" in units and not re.search(r"since \d+-\d+-\d+", units):
                raise ValueError(
                    f"The units {units!r} name no date after `since`, without which xarray cannot "
                    "open the store; write one, or the unit alone, as `h`."
                )
        if len(self.axes) != len(shape):
            raise ValueError(
                f"The layout names {len(self.axes)} axes, {names[1:]}, but samples have shape "
                f"{tuple(shape)}; give one Coordinate an axis."
            )
        for axis, size in zip(self.axes, shape, strict=True):
            if axis.values is not None and len(axis.values) != size:
                raise ValueError(
                    f"Axis {axis.name!r} has {len(axis.values)} coordinates for {size} points."
                )
            if axis.values is not None and not all(math.isfinite(v) for v in axis.values):
                raise ValueError(f"Axis {axis.name!r} has coordinates that are not finite.")
