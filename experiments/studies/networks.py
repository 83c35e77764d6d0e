"""Does the default work with every architecture, and what does it take?

The networks are those of the zoo, whose samples are known. Each takes turns with the plain
convolution in one process. Seconds are those of the processor.
"""

import time
from collections.abc import Sequence
from typing import Any

import feasibly

from .. import zoo
from ..records import Record
from ..samplers import quiet
from ..study import Measurement
from ..tables import TEXT, Columns

BASE = "convolution"
PROBLEM = "4 linear"
MEMBERS = 16


def taken(denoiser: Any, constraint: Any) -> tuple[feasibly.Result, float]:
    """Returns an ensemble, and the seconds that it takes."""
    start = time.process_time()
    return quiet(denoiser, constraint, MEMBERS, zoo.SHAPE), time.process_time() - start


def measure(setting: dict) -> list[Record]:
    """Samples with one network, and then with the plain convolution."""
    constraint, answer = zoo.problem(PROBLEM)
    base, denoiser = zoo.denoiser(BASE), zoo.denoiser(setting["network"])
    result, seconds = taken(denoiser, constraint)
    apart, spread = zoo.wrong(result.samples, answer)
    return [
        {
            "feasible": result.feasible.double().mean().item(),
            "apart": apart,
            "spread": spread,
            "seconds": seconds,
            "base": taken(base, constraint)[1],
            "evaluations": result.evaluations.member_forward / MEMBERS,
        }
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table, in the zoo's order."""
    known = {record["network"]: record for record in records}
    return [
        known[name] | {"ratio": known[name]["seconds"] / known[name]["base"]}
        for name in zoo.ZOO
        if name in known
    ]


COLUMNS: Columns = {
    "network": ("architecture", TEXT),
    "feasible": ("feasible", "{:.0%}"),
    "spread": ("spread / exact", "{:.2f}"),
    "seconds": ("seconds", "{:.1f}"),
    "ratio": ("of the convolution's", "{:.1f}"),
}

MEASUREMENT = Measurement(
    name="networks",
    question="Does the default work with every architecture, and what does it take?",
    problem="exact",
    settings=[{"network": name} for name in zoo.ZOO],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
