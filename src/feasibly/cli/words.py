"""Shapes as commands read them, and text as they print it."""

__all__ = ["Screen", "Shape", "make_folder"]

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.text import Text
from tyro.constructors import PrimitiveConstructorSpec

from ..errors import safe
from ..files import remedy


class Screen(Console):
    """A console to which text of any origin is text, and never a command or a style."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(safe(text), **options)

    def say(self, text: str) -> None:
        """Prints a text, whose lines are as long as they are."""
        self.print(text, soft_wrap=True)


def make_folder(out: Path) -> None:
    """Makes the folder of a command's files.

    Raises:
        ValueError: If it cannot be made, or written to.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ValueError(
            f"--out {out} cannot be used as a folder to write to ({error.strerror}); "
            f"{remedy(error)}."
        ) from error


def shape_of(texts: Sequence[str]) -> tuple[int, ...]:
    """Reads a shape, as `64 32` or `64,32`.

    Raises:
        ValueError: If there is something else than numbers from 1, or nothing.
    """
    parts = [part for text in texts for part in text.split(",")]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        given = " ".join(texts) or "none"
        raise ValueError(
            f"a shape is one or more positive whole numbers, such as 64 32, got {given}"
        )
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
