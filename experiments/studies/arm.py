"""Does a robot arm reach its places exactly, clear of obstacles, and still move like the data?

The paths and the tasks are of :mod:`experiments.tasks.arm`. All errors are computed anew in double
precision, from the samples alone.
"""

import time
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from feasibly.errors import SamplingError
from feasibly.metrics import sliced_wasserstein, weight_error
from feasibly.samplers import DPS, Ancestral, Method

from .. import peers
from ..figures import arms
from ..records import DEFAULT, PRIOR, TRUTH, Record, grouped, pack
from ..samplers import cost, quiet
from ..study import Measurement
from ..tables import TEXT
from ..tasks.arm import (
    EXACT,
    MIDDLE,
    SHAPE,
    TASKS,
    ArmPrior,
    constraint,
    depth,
    hand,
    modes,
    paths,
    prior,
)

MEMBERS, DRAWN, NEAR = 256, 24, 0.04

METHODS: dict[str, str | Method] = {
    DEFAULT: "auto",
    "PPR": "ppr-tuned",
    "HDC": "hdc",
    "post-hoc projection": "post-hoc",
    "DPS": DPS(zeta=0.01 * EXACT),
    PRIOR: Ancestral(),
}
"""For each label the method, with no option set. DPS takes the best of six strengths, by the
hand's distance from the goal; residuals of the constraint are 1 at `EXACT`."""


@lru_cache(maxsize=1)
def _prior() -> ArmPrior:
    return prior()


def comparable(task: str) -> tuple[Tensor, Tensor]:
    """Returns the paths to train on and those held out that a task is about: those that pass
    within 4 cm of its waypoint."""
    place = TASKS[task]().get(MIDDLE)
    if place is None:
        return paths()
    train, held_out = (q[(hand(q[:, MIDDLE]) - place).norm(dim=1) < NEAR] for q in paths())
    return train, held_out


def about(task: str, q: Tensor) -> Record:
    """Returns the scores of sampled paths, with shape (N, 20, 7)."""
    q = q.double()
    train, held_out = comparable(task)
    equality, _ = constraint(task).parts
    error = equality.violation(q).sqrt()
    reached, clear = error <= EXACT, (depth(q) <= EXACT).all(dim=1)

    def moves(order: int) -> float:
        size = (x.diff(n=order, dim=1).square().mean().sqrt() for x in (q, held_out))
        return (next(size) / next(size)).item()

    def nearest(x: Tensor) -> float:
        apart = torch.cdist(x.flatten(start_dim=1), paths()[0].flatten(start_dim=1))
        return apart.amin(dim=1).median().item()

    floor = sliced_wasserstein(train, held_out)
    ways = torch.bincount(modes(q), minlength=5)
    return {
        "reached": reached.double().mean().item(),
        "clear": clear.double().mean().item(),
        "both": (reached & clear).double().mean().item(),
        "error": error.median().item(),
        "speed": moves(1),
        "jerk": moves(3),
        "sliced": sliced_wasserstein(q, held_out) / floor,
        "ways": ways.tolist(),
        "weights": weight_error(modes(q), torch.cat([modes(train), modes(held_out)]), 5),
        "nearest": nearest(q) / nearest(paths()[1]),
        "picture": pack(q[:DRAWN]),
    }


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples one ensemble of a task, and scores it. Data to train on score as the truth."""
    task, label, members = setting["task"], setting["label"], setting["members"]
    if label == TRUTH:
        return [about(task, comparable(task)[0])]
    start = time.perf_counter()
    try:
        result = quiet(
            _prior(), constraint(task), members, SHAPE, method=METHODS[label], seed=setting["seed"]
        )
    except SamplingError as error:
        return [{"failed": str(error), "seconds": time.perf_counter() - start}]
    plausible = result.plausible
    return [
        about(task, result.samples)
        | cost(result.evaluations, members, start)
        | {
            "plausible": None if plausible is None else plausible.double().mean().item(),
            "warnings": result.warnings,
            "sampler": str(result).splitlines()[0],
        }
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of the table, in the order of tasks and labels."""
    order = [*METHODS, TRUTH]
    found = [row for row in records if "failed" not in row]
    found.sort(key=lambda row: (list(TASKS).index(row["task"]), order.index(row["label"])))
    named = []
    for (task,), group in grouped(found, "task").items():
        for row in group:
            label = "training paths" if row["label"] == TRUTH else row["label"]
            label = f"**{label}**" if label == DEFAULT else label
            named.append(row | {"task": task, "label": label})
    return named


MEASUREMENT = Measurement(
    name="arm",
    question="Does an arm reach its places exactly, clear of obstacles, and move like the data?",
    problem="arm",
    settings=[
        {"task": task, "label": label, "seed": 0, "members": MEMBERS}
        for task in TASKS
        for label in (*METHODS, TRUTH)
    ],
    measure=measure,
    rows=rows,
    columns={
        "task": ("task", TEXT),
        "label": ("method", TEXT),
        "both": ("feasible", "{:.0%}"),
        "plausible": ("plausible", "{:.0%}"),
        "jerk": ("jerk", "{:.2f}"),
        "weights": ("error of weights", "{:.2f}"),
        "evaluations": ("evaluations", "{:.0f}"),
    },
    figures={"": arms},
)
