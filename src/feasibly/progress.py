"""Live progress of a run in the terminal."""

__all__ = ["LiveProgress"]

import math

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .result import Snapshot


class LiveProgress:
    """A callback that shows the latest snapshot: a live table on a terminal, elsewhere a plain
    line for every quarter of the first attempt, and one for each attempt after it.

    Use it as a context manager, and pass it as `callback`.

    Arguments:
        title: What is running.
        console: Where to print; None for standard output.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title = title
        self.console = console or Console()
        self.live = Live(console=self.console, refresh_per_second=8, transient=True)

    def __enter__(self) -> "LiveProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.live.stop()

    def __call__(self, snapshot: Snapshot) -> None:
        if self.console.is_terminal:
            self.live.update(self._table(snapshot))
        elif self._due(snapshot):
            cells = " | ".join(f"{k} {v}" for k, v in self._cells(snapshot).items())
            self.console.print(f"{self.title}: {cells}", highlight=False, soft_wrap=True)

    @staticmethod
    def _due(snapshot: Snapshot) -> bool:
        if snapshot.step == snapshot.steps:
            return True
        return snapshot.attempt == 0 and snapshot.step % max(1, snapshot.steps // 4) == 0

    def _table(self, snapshot: Snapshot) -> Table:
        cells = self._cells(snapshot)
        table = Table(*cells, title=self.title)
        table.add_row(*cells.values())
        return table

    @staticmethod
    def _cells(s: Snapshot) -> dict[str, str]:
        left = f"{s.seconds_left:.0f} s" if math.isfinite(s.seconds_left) else "?"
        attempt = f"{s.attempt + 1} ({s.members} members)"
        cells = {
            "attempt": attempt,
            "step": f"{s.step}/{s.steps}",
            "sigma": f"{s.sigma:.3g}",
            "evaluations (forward, backward)": f"{s.forward}, {s.backward}",
            "violation (median, worst)": f"{s.median:.2g}, {s.worst:.2g}",
            "feasible": f"{s.feasible:.1%}",
            "left": left,
        }
        return cells | ({"failed": str(s.failed)} if s.failed else {})
