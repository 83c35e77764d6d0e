"""Progress of long work: one line on a terminal or in a notebook, plain lines elsewhere.

Work is counted in forward evaluations of the network for one sample; a backward one counts as two.
"""

__all__ = ["Progress", "current", "duration", "shown", "work"]

import contextlib
import math
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, TextIO

from .errors import safe

BACKWARD = 2
"""How many forward evaluations a backward one counts as."""

LIVE, LINES = 1 / 8, 60.0
"""The least seconds between two updates of a line, and between two plain lines."""

BAR = 12
"""The width of the bar, in characters."""

SILENT = ("CI", "PYTEST_CURRENT_TEST")
"""The variables of the environment where progress is not shown unless it is asked for."""


def work(forward: float, backward: float) -> float:
    """Returns how many forward evaluations these evaluations count as."""
    return forward + BACKWARD * backward


class Progress:
    """Counts work that is done, and shows how much is left.

    Parts of the work nest, each with an expected end. If a part turns out to be longer or shorter,
    the ends of the parts around it move by as much. So the total is never less than what is done.

    Arguments:
        file: Where to write; None to show nothing.
        clock: Returns the time in seconds.

    Attributes:
        done: The work that is done.
    """

    def __init__(
        self, file: TextIO | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.file, self.clock, self.live = file, clock, _is_interactive(file)
        self.done = 0.0
        self._ends, self._names, self._words = [0.0], [""], ""
        self._start = clock()
        # the end of a stage's first evaluation, the work done then, and seconds for a unit
        self._since, self._before, self._pace = math.nan, 0.0, math.nan
        self._due, self._width = -math.inf, 0

    @property
    def total(self) -> float:
        """The work that is expected in all, as far as it is known."""
        return self._ends[0]

    @property
    def left(self) -> float:
        """The work that is expected to be left in the current part."""
        return self._ends[-1] - self.done

    @property
    def seconds_left(self) -> float:
        """The time left, at the rate of the current stage after its first evaluation, which also
        prepares it; at the rate of the stage before until then, and NaN in the first stage."""
        left = self.total - self.done
        return self._pace * left if left or not self.done else 0.0

    @contextlib.contextmanager
    def part(self, name: str = "", expected: float | None = None) -> Generator[None]:
        """Declares that what is inside is a part of the work.

        Arguments:
            name: What it is, as shown.
            expected: The work that it is expected to take; None for all that is left around it.
        """
        self._ends.append(self._ends[-1] if expected is None else self.done + expected)
        self._ends = [max(self._ends[k:]) for k in range(len(self._ends))]
        self._names.append(name)
        self._words = ""
        if len(self._ends) == 2:  # a stage: others have another rate
            self._since = math.nan
            self._due = -math.inf
        if self.live:  # a plain line waits for the work
            self.draw()
        try:
            yield
        finally:
            self._names.pop()
            self._move(self.done - self._ends[-1])
            self._ends.pop()

    def expect(self, left: float, name: str | None = None) -> None:
        """Says how much work is left in the current part, and what the part is called now."""
        self._move(self.done + left - self._ends[-1])
        if name is not None:
            self._names[-1] = name

    def advance(self, done: float) -> None:
        """Counts work as done."""
        self.done += done
        if math.isnan(self._since):
            self._since, self._before = self.clock(), self.done
        elif self.done > self._before:
            self._pace = (self.clock() - self._since) / (self.done - self._before)
        if self.done > self._ends[-1]:
            self._move(self.done - self._ends[-1])
        self.draw()

    def say(self, words: str) -> None:
        """Says where in the current part the work is."""
        self._words = words
        self.draw()

    def tell(self, sentence: str) -> None:
        """Writes a sentence that stays."""
        self.erase()
        self._write(f"{safe(sentence)}\n")

    def draw(self) -> None:
        """Shows how far the work is, unless that was shown just before."""
        if self.file is None or (now := self.clock()) < self._due:
            return
        self._due = now + (LIVE if self.live else LINES)
        if not self.live:
            self._write(f"{self}\n")
            return
        line = str(self)[: shutil.get_terminal_size().columns - 1]
        self._write(f"\r{line:<{self._width}}")
        self._width = len(line)

    def erase(self) -> None:
        """Takes the line away, before others write or when all is done."""
        if self._width:
            self._write(f"\r{'':<{self._width}}\r")
            self._width, self._due = 0, -math.inf

    def __str__(self) -> str:
        share = self.done / self.total if self.total else 0.0
        times, left = duration(self.clock() - self._start), self.seconds_left
        if not math.isnan(left):
            times = f"{times}, {duration(left)} left"
        where = ", ".join(filter(None, [*self._names, self._words]))
        return f"[{'=' * int(BAR * share):<{BAR}}] {share:4.0%}  {times}  {where}"

    def _move(self, by: float) -> None:
        self._ends = [end + by for end in self._ends]

    def _write(self, text: str) -> None:
        """Writes text. A closed terminal stops no work."""
        if self.file is not None:
            try:
                self.file.write(text)
                self.file.flush()
            except (OSError, ValueError):
                self.file = None


_CURRENT: ContextVar[Progress | None] = ContextVar("progress", default=None)


def current() -> Progress:
    """Returns the progress that is counted now; if there is none, one that shows nothing."""
    return _CURRENT.get() or Progress()


@contextlib.contextmanager
def shown(progress: bool | None = None) -> Generator[Progress]:
    """Shows the progress of what is inside, on standard error; within another such context it is
    that one's, whose choice holds.

    Arguments:
        progress: Whether to show it; None to show it on a terminal or in a notebook, but in no
            test, no log of continuous integration, and only by the first of several processes.
    """
    if (outer := _CURRENT.get()) is not None:
        yield outer
        return
    wanted = _is_wanted() if progress is None else progress
    made = Progress(sys.stderr if wanted else None)
    token = _CURRENT.set(made)
    try:
        yield made
    finally:
        _CURRENT.reset(token)
        made.erase()


def duration(seconds: float) -> str:
    """Returns a time in words."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _is_interactive(file: Any) -> bool:
    """Whether a line can be written over: on a terminal and in a notebook."""
    if type(file).__module__.startswith("ipykernel"):
        return True
    try:
        return file.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _is_wanted() -> bool:
    first = multiprocessing.parent_process() is None and os.environ.get("RANK", "0") == "0"
    return first and not any(map(os.environ.get, SILENT)) and _is_interactive(sys.stderr)
