"""What the demos share: samplers run one after another, and a table of what they did."""

__all__ = ["run_all", "show"]

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..progress import LiveProgress
from ..result import Result
from ..samplers import Sampler


def run_all(
    name: str,
    samplers: Mapping[str, Sampler],
    members: int,
    shape: tuple[int, ...],
    seed: int,
    out: Path,
    console: Console,
) -> dict[str, Result]:
    """Draws the same members by each sampler, with progress, and saves every result as
    `NAME_LABEL.safetensors` in `out` as soon as it is there."""
    results = {}
    for label, sampler in samplers.items():
        with LiveProgress(f"{name}, {label}", console) as progress:
            results[label] = sampler.sample(members, shape, seed=seed, callback=progress)
        results[label].save(out / f"{name}_{label}.safetensors")
    return results


def show(rows: Sequence[Mapping[str, str]], title: str, console: Console) -> None:
    """Prints rows with the same columns as a table."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
