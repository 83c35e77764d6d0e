"""How do samplers do on solutions of Burgers' equation and of reaction and diffusion?

The tasks are those of Physics-Constrained Flow Matching, on finite data with an exact denoiser
(:mod:`experiments.tasks.solutions`). Other authors' code runs from a checkout, see
:mod:`experiments.peers`. ECI takes the given values alone, since mass is not linear in them.

References:
    | Physics-Constrained Flow Matching (Utkarsh et al., 2025), https://arxiv.org/abs/2506.04171
    | Gradient-Free Generation for Hard-Constrained Systems (Cheng et al., 2025)
    | https://arxiv.org/abs/2412.01786
"""

__all__ = ["COLUMNS", "LABELS", "MEASUREMENT", "OURS", "measure", "rows"]

import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Generator, Tensor

import feasibly
from feasibly.errors import SamplingError
from feasibly.network import Evaluations, Network

from .. import peers
from ..records import DEFAULT, TRUTH, Record, grouped
from ..study import Measurement
from ..tables import TEXT, Columns
from ..tasks.solutions import TASKS, Task

MEMBERS, SEEDS = 64, 3

OURS: Mapping[str, str] = {DEFAULT: "auto", "PPR": "ppr", "PCFM": "pcfm", "ECI": "eci"}
"""For each label the method, with no option set."""

THEIRS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "PCFM's own": ("PCFM", {"steps": 100, "guided": False}),
    "ECI's own, 5 mixes": ("ECI-sampling", {"steps": 200, "mix": 5, "resample": 0}),
}
LABELS = (*OURS, *THEIRS, TRUTH)


@lru_cache(maxsize=1)
def _task(name: str) -> Task:
    return TASKS[name]()


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples one ensemble, and scores it."""
    task, label, seed = _task(setting["task"]), setting["label"], setting["seed"]
    if label == TRUTH:
        return [task.about(task.sample(MEMBERS, Generator().manual_seed(seed)))]
    taken, made_by = Evaluations(), ""
    start = time.perf_counter()
    if label in OURS:
        constraint = task.constraint.parts[0] if label == "ECI" else task.constraint
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = feasibly.sample(
                    task.denoiser,
                    constraint,
                    MEMBERS,
                    task.shape,
                    method=OURS[label],
                    seed=seed,
                )
        except SamplingError as error:
            return [{"error": str(error), "seconds": time.perf_counter() - start}]
        x, taken = result.samples, result.evaluations
    else:
        name, settings = THEIRS[label]
        x = _theirs(name, settings, Network(task.denoiser, taken), task, seed)
        made_by = peers.commit(name)
    return [
        task.about(x)
        | {
            "evaluations": (taken.member_forward + taken.member_backward) / MEMBERS,
            "seconds": time.perf_counter() - start,
            "commit": made_by,
        }
    ]


def _theirs(
    name: str, settings: Mapping[str, Any], network: Network, task: Task, seed: int
) -> Tensor:
    """Samples by a peer's code, with shape (N, nx, nt)."""
    v = peers.velocity(network)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name == "ECI-sampling":
            value = task.atoms[0].float()
            return peers.eci(v, value, task.known, MEMBERS, **settings)

        def residual(u: Tensor) -> Tensor:
            return task.constraint.residual(u.reshape(1, *task.shape))[0]

        return peers.pcfm(v, torch.randn(MEMBERS, *task.shape), residual, **settings)


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table in order: means over seeds, and the least p-value. A label
    that failed once says so, and has no scores."""
    found = []
    for (task, label), group in grouped(records, "task", "label").items():
        if any("error" in one for one in group):
            found.append({"task": task, "label": label, "errors": "failed"})
            continue
        row: Record = {"task": task, "label": label, "p": min(one["p"] for one in group)}
        row["errors"] = ", ".join(
            f"{statistics.fmean(one[name] for one in group):.0e}" for name in ("given", "law")
        )
        for name in ("mmse", "smse", "evaluations"):
            values = [one[name] for one in group if name in one]
            row |= {name: statistics.fmean(values)} if values else {}
        found.append(row)
    tasks = [row["task"] for row in found]
    return sorted(found, key=lambda row: (tasks.index(row["task"]), LABELS.index(row["label"])))


COLUMNS: Columns = {
    "task": ("task", TEXT),
    "label": ("method", TEXT),
    "mmse": ("MMSE", "{:.1e}"),
    "smse": ("SMSE", "{:.1e}"),
    "p": ("free parameters, least p", "{:.1g}"),
    "errors": ("errors: values, mass", TEXT),
    "evaluations": ("evaluations a member", "{:.0f}"),
}

MEASUREMENT = Measurement(
    name="solutions",
    question="How do samplers do on solutions of two equations, other authors' own code included?",
    problem="solutions",
    settings=[
        {"task": task, "label": label, "seed": seed, "members": MEMBERS}
        for seed in range(SEEDS)
        for task in TASKS
        for label in LABELS
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
