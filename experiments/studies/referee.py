"""How near does any sampler come to the exact distribution, on problems that it was not tuned on?

The problems are those of `defaults` that are held out, with an exact denoiser, and with
equalities only, so that most methods apply. Other samplers enter by
`python -m experiments enter FILE`.
"""

import inspect
import math
import runpy
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import feasibly
from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.network import Evaluations, Network, counted

from .. import peers
from ..benches import exact_problems
from ..benches.exact import ExactCase
from ..records import DEFAULT, TRUTH, Record, grouped, known, path_of
from ..samplers import cost
from ..study import Measurement
from ..tables import TEXT, Columns

WORST = 100.0
"""The distance that counts where a sampler fails or refuses, and the largest that counts."""

NEAR = 1.5
"""The distance up to which an ensemble counts as near the truth."""


class Counted:
    """A denoiser as entries see it: a callable (x_t, t) with a schedule, whose evaluations are
    counted. It is no :class:`Network`, of which a run of ours would take the denoiser."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.taken, self.schedule = Evaluations(), denoiser.schedule
        self._network = Network(denoiser)

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        with counted(self.taken):
            return self._network(x_t, t).contiguous()  # as torch's optimizers need it


Entry = Callable[[Counted, Constraint, int, tuple[int, ...], int], Tensor]
"""Samples, from a denoiser, a constraint, the number of members, the shape of one, and a seed. The
result has shape (members, *). A sampler refuses a problem by a `ValueError`."""


def ours(method: str) -> Entry:
    """Returns the entry of one of our methods, with no option set."""

    def sample(denoiser: Counted, constraint: Constraint, *how: Any) -> Tensor:
        *size, seed = how
        chosen: dict[str, Any] = {"method": method, "monitor": method == "auto", "seed": seed}
        return feasibly.sample(denoiser, constraint, *size, **chosen).samples

    return sample


def theirs(sampler: Callable[..., Tensor], **settings: Any) -> Entry:
    """Returns the entry of a sampler of azula."""

    def sample(denoiser: Counted, constraint: Constraint, *how: Any) -> Tensor:
        *size, seed = how
        torch.manual_seed(seed)
        return sampler(denoiser, constraint, *size, **settings)

    return sample


LBFGS = partial(torch.optim.LBFGS, line_search_fn="strong_wolfe")

ENTRIES: Mapping[str, Entry] = {
    DEFAULT: ours("auto"),
    "PPR": ours("ppr-tuned"),
    "MMPS": ours("mmps"),
    "HDC": ours("hdc"),
    "DPS": ours("dps"),
    "PCFM": ours("pcfm"),
    "post-hoc projection": ours("post-hoc"),
    "azula's PPR, its defaults": theirs(peers.azula_ppr),
    "azula's PPR, L-BFGS": theirs(peers.azula_ppr, optimizer=LBFGS),
    "azula's MMPS": theirs(peers.azula_mmps, iterations=8),
    "azula's DPS": theirs(peers.azula_dps),
    "azula's JFPS": theirs(peers.azula_jfps, iterations=8),
    "azula's DiffPIR": theirs(peers.azula_diffpir, iterations=8),
    "azula's PGDM": theirs(peers.azula_pgdm),
    "azula's TDS": theirs(peers.azula_tds, steps=256),
}
"""Ours by default settings. azula's own code runs with its defaults but for the optimizer that is
named, the iterations of the solver (one is its default) and the steps of TDS (64). Its PPR runs
from a checkout, and all else from its release."""


PROBLEMS = (
    "gaussian-2d-cond1-1r-5std-vp",
    "gaussian-8d-cond10-2r-5std-flow",
    "gaussian-30d-cond1-1r-5std-vp",
    "gaussian-30d-cond1-4r-0std-rectified",
    "gaussian-30d-cond1000-1r-0std-vp",
    "gaussian-30d-cond1000-4r-3std-loglogit",
    "modes-diagonal-mean4-edm-scale100",
    "modes-axis-mean0-vp",
    "modes-axis-mean0.3-flow",
    "clusters-8d-8k-4r-all-flow",
    "clusters-30d-6k-4r-all-edm-scale100",
    "clusters-30d-5k-10r-all-edm",
    "data-64n-30d-4r-32kept-edm",
    "circle-gaussian-vp",
    "circle-far-gaussian-cosine",
    "parabola-gaussian-edm",
    "hyperbola-3-widths-loglogit",
    "circle-2-widths-edm",
    "ellipse-board-edm",
    "ellipse-banana-vp",
    "parabola-banana-flow",
    "sphere-8-offset-edm",
    "sphere-30-large-edm-0.01",
    "field-16x16-0.05known-l2-cosine",
    "field-16x16-mean3std-l0.5-vp",
    "field-64x64-mean3std-l0.2-edm-scale0.01",
    "field-16x16-still-l0.5-edm",
    "heat-32-initial-loglogit",
    "heat-16-value-edm",
    "heat-32-energy-rectified",
)
"""The names of the problems, which stay, so that scores can be compared."""

RARE = tuple(
    name for name, problem in exact_problems.PROBLEMS.items() if problem.family == "rare modes"
)
"""Problems whose rare mode is what the constraint favours."""

ON_RARE = (DEFAULT, "PPR", "MMPS", "azula's MMPS", "azula's TDS", "azula's JFPS", TRUTH)


@peers.optional
def measure(setting: dict, entries: Mapping[str, Entry] = ENTRIES) -> list[Record]:
    """Samples one problem, and scores it."""
    label = setting["label"]
    case = ExactCase(exact_problems.PROBLEMS[setting["posterior"]])
    members = case.problem.members
    if label == TRUTH:
        return [case.truth(members) or {}]
    denoiser = Counted(case.denoiser)
    start = time.perf_counter()
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = entries[label](denoiser, case.constraint, members, case.shape, 0)
        found: Record = case.judged(torch.as_tensor(x), members)
    except peers.Missing:
        raise
    except Exception as error:  # of whatever kind: one problem must not end the others
        found = {"feasible": 0.0, "error": f"{type(error).__name__}: {error}"}
        print(f"{label} failed. {found['error']}")
    commit = ""
    if label.startswith("azula"):
        commit = peers.commit("azula") if "PPR" in label else peers.release("azula")
    return [found | cost(denoiser.taken, members, start) | {"commit": commit}]


def score(records: Sequence[Record]) -> float:
    """Returns the geometric mean over problems of the distance to the truth, in units of that of
    two exact sample sets, from 1 to :data:`WORST`."""
    distances = [min(max(row.get("ratio", WORST), 1.0), WORST) for row in records]
    return math.exp(statistics.fmean(math.log(distance) for distance in distances))


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table, the best score first, of samplers that have run on all
    problems."""
    return _ranked(records, PROBLEMS)


def _ranked(records: Sequence[Record], problems: Sequence[str]) -> list[Record]:
    found = []
    for (label,), group in grouped(records, "label").items():
        if {row["posterior"] for row in group} != set(problems):
            continue
        errors = [one["weight_error"] for one in group if "weight_error" in one]
        row: Record = {
            "label": label,
            "score": score(group),
            "near": f"{sum(one.get('ratio', WORST) <= NEAR for one in group)} of {len(group)}",
            "weight_error": statistics.median(errors) if errors else None,
            "worst": max(errors, default=None),
            "failed": sum("ratio" not in one for one in group),
            "feasible": statistics.fmean(one["feasible"] for one in group),
        }
        if all("evaluations" in one for one in group):
            row["evaluations"] = statistics.median(one["evaluations"] for one in group)
        found.append(row)
    return sorted(found, key=lambda row: row["score"])


def sampler_of(file: Path) -> Entry:
    """Returns the function `sample` of a Python file.

    Raises:
        ValueError: If there is no such file, or no such function in it, or it has other arguments.
    """
    call = "`sample(denoiser, constraint, members, shape, seed)`"
    if not file.is_file():
        raise ValueError(f"There is no file {file}; name one that defines `sample`.")
    found = runpy.run_path(str(file)).get("sample")
    if not callable(found):
        raise ValueError(f"{file} defines no function {call}.")
    try:
        inspect.signature(found).bind(*range(5))
    except TypeError as error:
        raise ValueError(f"{file} is called as {call}, and cannot be: {error}.") from error
    return found


def entered(label: str, sampler: Entry, code: str) -> Measurement:
    """Returns the measurement of one more sampler.

    Raises:
        ValueError: If the label is one of :data:`ENTRIES`, or the truth's, or has results of other
            code.
    """
    if label in (*ENTRIES, TRUTH):
        raise ValueError(f"There is a sampler {label!r} already; choose another --name.")
    where = MEASUREMENT.name, MEASUREMENT.problem
    if any(row["label"] == label and row.get("code") != code for row in known(*where)):
        raise ValueError(
            f"{label!r} has results of another version of the file. Choose another --name, or "
            f"remove its lines from {path_of(*where)}."
        )

    def numbered(setting: dict) -> list[Record]:
        name = setting["posterior"]
        print(f"Problem {PROBLEMS.index(name) + 1} of {len(PROBLEMS)}: {name}", flush=True)
        return [found | {"code": code} for found in measure(setting, {label: sampler})]

    return replace(
        MEASUREMENT,
        settings=[{"label": label, "posterior": name} for name in PROBLEMS],
        measure=numbered,
    )


COLUMNS: Columns = {
    "label": ("sampler", TEXT),
    "score": ("score", "{:.2f}"),
    "near": (f"within {NEAR:g}", TEXT),
    "failed": ("refused or failed", "{}"),
    "feasible": ("feasible", "{:.1%}"),
    "evaluations": ("evaluations, median", "{:.0f}"),
}


MEASUREMENT = Measurement(
    name="referee",
    question="How near does any sampler come to the exact distribution, on held-out problems?",
    problem="exact",
    settings=[
        {"label": label, "posterior": name} for label in (*ENTRIES, TRUTH) for name in PROBLEMS
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)


def rare(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table, the best first, of samplers that have run on all problems."""
    return _ranked(records, RARE)


ON_RARE_MODES = Measurement(
    name="rare",
    question="Does a rare mode that the constraint favours keep its weight?",
    problem="exact",
    settings=[{"label": label, "posterior": name} for label in ON_RARE for name in RARE],
    measure=measure,
    rows=rare,
    columns={
        "label": ("sampler", TEXT),
        "score": ("score", "{:.2f}"),
        "weight_error": ("weight error, median", "{:.3f}"),
        "worst": ("largest", "{:.3f}"),
    }
    | {key: COLUMNS[key] for key in ("failed", "feasible", "evaluations")},
)
