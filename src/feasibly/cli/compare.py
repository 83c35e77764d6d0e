"""What the demos share: runs one after another, and a table of their scores."""

__all__ = ["POST_HOC", "listed", "run_all", "show", "written"]

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from ..errors import InfeasibleWarning
from ..progress import shown
from ..report import Report
from ..result import Result
from ..run import State, run
from ..samplers import Method
from .words import Screen

POST_HOC = "post-hoc projection"


def run_all(
    name: str,
    methods: Mapping[str, Sequence[Method]],
    members: int,
    seed: int,
    out: Path,
    observe: Callable[[State], None] | None = None,
) -> dict[str, Result]:
    """Samples the same members by each method's attempts, with progress, and saves every result
    as `NAME_LABEL.safetensors` in `out` as soon as it is there. `observe` is called after each
    step."""
    results = {}
    for label, attempts in methods.items():
        with shown(True) as meter, meter.part(f"{name}, {label}"), warnings.catch_warnings():
            warnings.simplefilter("ignore", InfeasibleWarning)  # the table has the share
            results[label] = run(attempts, members, seed=seed, observe=observe)
        results[label].save(out / f"{name}_{label}.safetensors".replace(" ", "-"))
    return results


def show(rows: Sequence[Mapping[str, str]], title: str, console: Screen) -> None:
    """Prints rows with the same columns as a table, a column for each row: so it fits a narrow
    terminal."""
    first, *measures = rows[0]
    table = Table("", *(row[first] for row in rows), title=title)
    for name in measures:
        table.add_row(name, *(row[name] for row in rows))
    console.print(table)


def listed(rows: Sequence[Mapping[str, str]], title: str | None, console: Screen) -> None:
    """Prints rows with the same columns as a table."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*row.values())
    console.print(table)


def written(report: Report, out: Path, console: Screen) -> None:
    """Writes the report into `out`, and prints where it is."""
    path = out / "report.html"
    report.write(path)
    console.say(f"Report: {path}")
