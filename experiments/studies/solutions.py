"""How do samplers do on solutions of equations, other authors' own code included?

`peers` has the heat equation: the initial state is given, and it implies the mass at all times.
PCFM is given the mass too, and so is the default on the learned flow. The decay is free, and
uniform on [1, 5]. `solutions` has Burgers' equation and reaction and diffusion, on finite data
with an exact denoiser, see :mod:`experiments.tasks.solutions`. ECI takes the given values alone
there, since mass is not linear in them. All are tasks of Physics-Constrained Flow Matching.
Other authors' code runs from a checkout, see :mod:`experiments.peers`.

References:
    | Physics-Constrained Flow Matching (Utkarsh et al., 2025), https://arxiv.org/abs/2506.04171
    | Gradient-Free Generation for Hard-Constrained Systems (Cheng et al., 2025)
    | https://arxiv.org/abs/2412.01786
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Generator, Tensor

from feasibly.errors import SamplingError
from feasibly.network import Evaluations, Network, counted

from .. import peers
from ..benches.heat import HeatBench, HeatCase
from ..records import DEFAULT, TRUTH, Record, averages, grouped
from ..samplers import cost, quiet
from ..study import Measurement
from ..tables import TEXT, Columns
from ..tasks.solutions import TASKS, Task

MEMBERS, SEEDS = 64, 3
CASES = ("exact, flow", "learned, flow")

OURS: Mapping[str, str] = {DEFAULT: "auto", "PPR": "ppr-tuned", "PCFM": "pcfm", "ECI": "eci"}
"""For each label the method, with no option set."""

THEIRS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "PCFM's own": ("PCFM", {"steps": 100, "guided": False}),
    "PCFM's own, relaxed correction": ("PCFM", {"steps": 100, "guided": True}),
    "ECI's own, 5 mixes": ("ECI-sampling", {"steps": 200, "mix": 5, "resample": 0}),
    "ECI's own, noise resampled every 5": (
        "ECI-sampling",
        {"steps": 200, "mix": 1, "resample": 5},
    ),
}
"""For each label whose code it is, and its settings: those of their examples and defaults."""

ON_HEAT = (DEFAULT, *THEIRS, TRUTH)
ON_TASKS = (*OURS, "PCFM's own", "ECI's own, 5 mixes", TRUTH)


@peers.optional
def measure_heat(setting: dict) -> list[Record]:
    """Samples one ensemble of the heat equation, and scores it."""
    case = HeatBench().case({"case": setting["case"], "number": setting["seed"]})
    reference = case.reference
    n = len(reference)
    known = torch.zeros_like(reference, dtype=torch.bool)
    known[:, 0] = True

    def residual() -> Callable[[Tensor], Tensor]:
        x, t = torch.linspace(0, 2 * math.pi * (n - 1) / n, n), torch.linspace(0, 1, n)
        posed = peers.load("PCFM", "constraints").Residuals(reference[None], x, t, nx=n, nt=n)
        return posed.full_residual_heat

    def about(x: Tensor) -> Record:
        x = x.double()
        return case.about(x) | {
            "initial": (x[:, :, 0] - reference[:, 0]).square().mean().sqrt().item(),
            "mass": x.mean(dim=1).square().mean().sqrt().item(),
        }

    return _measured(setting, case, case.posterior.sample, about, residual, reference, known)


@lru_cache(maxsize=1)
def _task(name: str) -> Task:
    return TASKS[name]()


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples one ensemble of a task, and scores it."""
    task = _task(setting["task"])

    def residual() -> Callable[[Tensor], Tensor]:
        return lambda u: task.constraint.residual(u.reshape(1, *task.shape))[0]

    value = task.atoms[0].float()
    return _measured(setting, task, task.sample, task.about, residual, value, task.known)


def _measured(
    setting: dict,
    case: Task | HeatCase,
    exact: Callable[[int, Generator], Tensor],
    about: Callable[[Tensor], Record],
    residual: Callable[[], Callable[[Tensor], Tensor]],
    value: Tensor,
    known: Tensor,
) -> list[Record]:
    """Samples by the label of a setting, and scores. Peers take residuals, or given values."""
    label, seed, made_by = setting["label"], setting["seed"], ""
    if label == TRUTH:
        return [about(exact(MEMBERS, Generator().manual_seed(seed)))]
    start, taken = time.perf_counter(), Evaluations()
    if label in OURS:
        constraint = case.constraint
        if label == "ECI":
            constraint = constraint.parts[0]
        problem = case.denoiser, constraint, MEMBERS, case.shape
        try:
            result = quiet(*problem, method=OURS[label], seed=seed)
        except SamplingError as error:
            return [{"error": str(error), "seconds": time.perf_counter() - start}]
        x, taken = result.samples, result.evaluations
    else:
        name, settings = THEIRS[label]
        v, made_by = peers.velocity(Network(case.denoiser)), peers.commit(name)
        with torch.random.fork_rng(), counted(taken):
            torch.manual_seed(seed)
            if name == "ECI-sampling":
                x = peers.eci(v, value, known, MEMBERS, **settings)
            else:
                x = peers.pcfm(v, torch.randn(MEMBERS, *case.shape), residual(), **settings)
    return [about(x) | cost(taken, MEMBERS, start) | {"commit": made_by}]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of both tables in order: means over seeds, and the least p-value. A label
    that failed once says so, and has no scores."""
    found = []
    for one in records:
        one.setdefault("task", one.get("case"))
    for (task, label), group in grouped(records, "task", "label").items():
        row: Record = {"task": task, "label": label}
        found.append(row)
        if any("error" in one for one in group):
            row["errors"] = "failed"
            continue
        row["p"] = min(one["p"] for one in group)
        row |= averages(group, "mmse", "smse", "evaluations", "initial")
        if errors := averages(group, "given", "law"):
            row["errors"] = ", ".join(f"{value:.0e}" for value in errors.values())
    tasks = list(dict.fromkeys(row["task"] for row in found))
    order = [*OURS, *THEIRS, TRUTH]
    return sorted(found, key=lambda row: (tasks.index(row["task"]), order.index(row["label"])))


SCORES: Columns = {
    "label": ("method", TEXT),
    "mmse": ("MMSE", "{:.1e}"),
    "smse": ("SMSE", "{:.1e}"),
}
LAST: Columns = {"evaluations": ("evaluations a member", "{:.0f}")}

MEASUREMENTS = (
    Measurement(
        name="peers",
        question="How do other authors' samplers do on the heat equation, beside the default?",
        problem="heat",
        settings=[
            {"case": case, "label": label, "seed": seed, "members": MEMBERS}
            for case in CASES
            for label in ON_HEAT
            for seed in range(SEEDS)
        ],
        measure=measure_heat,
        rows=rows,
        columns={"task": ("flow", TEXT)}
        | SCORES
        | {
            "p": ("decay is uniform, least p of 3", "{:.1g}"),
            "initial": ("error of the initial state", "{:.0e}"),
        }
        | LAST,
    ),
    Measurement(
        name="solutions",
        question="How do samplers do on solutions of two equations, others' own code included?",
        problem="solutions",
        settings=[
            {"task": task, "label": label, "seed": seed, "members": MEMBERS}
            for seed in range(SEEDS)
            for task in TASKS
            for label in ON_TASKS
        ],
        measure=measure,
        rows=rows,
        columns={"task": ("task", TEXT)}
        | SCORES
        | {
            "p": ("free parameters, least p", "{:.1g}"),
            "errors": ("errors: values, mass", TEXT),
        }
        | LAST,
    ),
)
