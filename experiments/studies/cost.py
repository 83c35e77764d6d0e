"""Where does the default spend its evaluations, and how much of the time is outside the networks?

A forward pass counts 1, a backward pass 2. Each is assigned to what the library was doing when it
called the network, and to the noise level. It is for the CPU, where backward passes run in the
thread of the caller.
"""

import inspect
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feasibly.constraints import Decoded
from feasibly.linalg import square_root
from feasibly.minimizers import Minimizer
from feasibly.monitor import Monitor
from feasibly.network import Network, counted, watched
from feasibly.run import Run
from feasibly.samplers import moments
from feasibly.survey import Survey

from ..records import Record
from ..samplers import quiet
from ..study import Measurement
from ..tables import TEXT, Columns
from .audit import EXACT, case

SURVEY, TEST, AGAIN, PREDICTION = "survey", "test", "later attempts", "prediction"
PURPOSES: Mapping[Any, str] = {
    inspect.unwrap(function).__code__: what
    for function, what in (
        (Survey.of, SURVEY),
        (Monitor.of, SURVEY),
        (Monitor.assess, TEST),
        (Minimizer.__call__, "projection"),
        (square_root, "covariance"),
        (moments.toward, "solve"),
    )
}
"""What the library is doing inside of each function. The innermost counts."""

ATTEMPT = inspect.unwrap(Run._attempt).__code__
LOWEST = 1e-99  # noise levels are counted from this to its inverse


class Ledger:
    """A denoiser that writes down what it is called for."""

    def __init__(self, denoiser: Any) -> None:
        self.network, self.schedule = Network(denoiser), denoiser.schedule
        self.work: Counter[tuple[str, int]] = Counter()

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = self.schedule(t)
        level = (sigma / alpha).double().mean().clamp(LOWEST, 1 / LOWEST)
        decade = math.floor(level.log10())
        self.work[purpose(), decade] += len(x_t)
        with counted(None):  # the run counts this ledger
            x_0 = self.network(x_t, t)
        if x_0.requires_grad:

            def backward(_: Tensor) -> None:
                self.work[purpose(), decade] += 2 * len(x_t)

            x_0 = x_0.view_as(x_0)
            x_0.register_hook(backward)
        return x_0

    def by_purpose(self, members: int) -> dict[str, dict[str, float]]:
        """Returns the work of a member by purpose, and in it by decade."""
        found: dict[str, dict[str, float]] = {}
        for (what, decade), number in sorted(self.work.items()):
            found.setdefault(what, {})[str(decade)] = number / members
        return found


def purpose() -> str:
    """Returns what the library is doing, from the functions that are under way."""
    frame, found = sys._getframe(1), ""
    while frame is not None:
        code = frame.f_code
        if not found and code in PURPOSES:
            found = PURPOSES[code]
        if code is ATTEMPT:
            return AGAIN if frame.f_locals["attempt"] else found or PREDICTION
        frame = frame.f_back
    return found or TEST  # the tests before a run


class Clock:
    """A decoder whose passes are timed, forward and backward."""

    def __init__(self, decode: Callable[[Tensor], Tensor]) -> None:
        self.decode, self.seconds = decode, 0.0

    def __call__(self, z: Tensor) -> Tensor:
        inner, start = z.clone(), time.perf_counter()
        x = self.decode(inner)
        self._add(time.perf_counter() - start)
        return watched(inner, x, lambda: None, self._add)

    def _add(self, seconds: float) -> None:
        self.seconds += seconds


MADE: Mapping[str, tuple[str, str, int]] = {
    "Data2D, a wave": (EXACT, "wave-board-vp", 1024),
    "30 dimensions, 2 values": (EXACT, "clusters-30d-8k-2r-all-loglogit", 1024),
    "a field, 26 values": (EXACT, "field-16x16-0.1known-l1-vp", 1024),
    "heat, 32 initial values": (EXACT, "heat-32-initial-vp", 512),
    "a learned field, 16 values": (EXACT, "learned-field-16known", 256),
    "weather, state": ("weather", "state", 8),
    "weather, wind": ("weather", "wind", 8),
    "KS, sine-3": ("ks", "sine-3", 8),
}
"""The prior and the posterior of each problem, as audits name them, and the number of members.
Eight members bear a large part of the 64 unconditional samples."""


def measure(setting: dict) -> list[Record]:
    """Runs the default once with a ledger, and once without for the time."""
    *names, members = MADE[setting["case"]]
    posed = case(*names)
    ledger = Ledger(posed.denoiser)
    constraint, clock = posed.constraint, None
    if isinstance(constraint, Decoded):
        clock = Clock(constraint.decode)
        constraint = Decoded(constraint.constraint, clock, constraint.encode)
    quiet(ledger, posed.constraint, members, posed.shape)
    start = time.perf_counter()
    result = quiet(posed.denoiser, constraint, members, posed.shape)
    seconds = time.perf_counter() - start
    return [
        {
            "members": members,
            "work": ledger.by_purpose(members),
            "seconds": seconds,
            "network_seconds": result.evaluations.seconds,
            "decoder_seconds": clock.seconds if clock else 0.0,
            "threads": torch.get_num_threads(),
        }
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: the work of a member by purpose, and the share of the time
    that is spent outside of the network and the decoder."""
    found = []
    for record in records:
        work = {what: sum(levels.values()) for what, levels in record["work"].items()}
        found.append(
            {
                "case": f"{record['case']} ({record['members']})",
                "work": sum(work.values()),
                "tests": work.get(SURVEY, 0.0) + work.get(TEST, 0.0),
                "prediction": work.get(PREDICTION, 0.0),
                "rest": sum(work.get(what, 0.0) for what in ("covariance", "solve", "projection")),
                "again": work.get(AGAIN, 0.0),
                "outside": 1
                - (record["network_seconds"] + record["decoder_seconds"]) / record["seconds"],
            }
        )
    return found


COLUMNS: Columns = {
    "case": ("problem (members)", TEXT),
    "work": ("work", "{:.0f}"),
    "tests": ("unconditional samples, tests", "{:.0f}"),
    "prediction": ("predictions, weights", "{:.0f}"),
    "rest": ("covariance, solver, projection", "{:.0f}"),
    "again": ("later attempts", "{:.0f}"),
    "outside": ("time outside of the networks", "{:.0%}"),
}

MEASUREMENT = Measurement(
    name="cost",
    question="Where does the default spend its evaluations?",
    problem="exact",
    settings=[{"case": name} for name in MADE],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
