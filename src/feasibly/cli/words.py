"""Shapes as commands read them."""

__all__ = ["Shape"]

from collections.abc import Sequence
from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec


def shape_of(texts: Sequence[str]) -> tuple[int, ...]:
    """Reads a shape, as `64 32` or `64,32`.

    Raises:
        ValueError: If there is something else than numbers from 1, or nothing.
    """
    parts = [part for text in texts for part in text.split(",")]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        given = " ".join(texts) or "none"
        raise ValueError(f"a shape is one or more numbers from 1, such as 64 32, got {given}")
    return tuple(map(int, parts))


Shape = Annotated[
    tuple[int, ...],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="N [N ...]",
        instance_from_str=shape_of,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda shape: [str(n) for n in shape],
    ),
]
"""The shape of a sample, as an argument of a command."""
