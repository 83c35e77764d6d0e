"""How near to the exact distribution does each method come for its evaluations?

Each method is run on the same problems with several budgets: its number of steps, or the default's
number of particles. A forward pass counts 1, a backward pass 2.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from feasibly.policy import Plan
from feasibly.samplers import DPS, ECI, MMPS, PCFM, SMC, CalibratedPPR, Method

from .. import figures
from ..benches.exact import ExactCase
from ..benches.exact_problems import PROBLEMS
from ..records import DEFAULT, Record, grouped
from ..samplers import Make, default, only, ppr
from ..study import Measurement
from ..tables import TEXT, Columns

MEMBERS = 512

CASES: Mapping[str, tuple[str, str]] = {
    "Data2D, a wave": ("wave-board-vp", "particles"),
    "30 dimensions, 2 values": ("clusters-30d-8k-2r-all-loglogit", "particles"),
    "64 dimensions, 16 values": ("regimes-64d-3k-16r-0error-edm", "particles"),
    "a field, 26 values": ("field-16x16-0.1known-l1-vp", "steps"),
    "heat, 16 initial values": ("heat-16-initial-flow", "steps"),
    "a learned field, 16 values": ("learned-field-16known", "steps"),
}
"""The name of each problem in the study `defaults`, and the option that sets the default's budget
on it."""

BUDGETS: Mapping[str, Sequence[int]] = {"particles": (2, 4, 16, 64), "steps": (5, 9, 18, 36, 72)}
"""The default's budgets, beside what it takes if no option is set."""

BUDGETED: Mapping[str, type[Method]] = {"particles": SMC, "steps": CalibratedPPR}
"""What the default takes where an option sets its budget."""

METHODS: Mapping[str, tuple[Callable[..., Plan], Sequence[int]]] = {
    "PPR": (ppr, (8, 16, 32, 64, 128)),
    "PCFM": (only(PCFM), (8, 32, 128, 512)),
    "ECI": (only(ECI), (8, 32, 128, 512)),
    "MMPS": (only(MMPS, output="projected"), (8, 32, 128)),
    "DPS": (only(DPS, output="projected"), (32, 128, 512)),
}
"""How to make each other method, and its numbers of steps."""


def settings() -> list[dict]:
    """Returns what to measure: each problem with each method and budget. None is what the library
    takes by itself."""
    found = []
    for case, (_, option) in CASES.items():
        mine = [(DEFAULT, None), *((DEFAULT, n) for n in BUDGETS[option])]
        others = [(label, n) for label, (_, budgets) in METHODS.items() for n in budgets]
        found += [{"case": case, "label": label, "budget": n} for label, n in (*mine, *others)]
    return found


def measure(setting: dict) -> list[Record]:
    """Samples a problem once by a method with a budget, and scores the ensemble."""
    name, option = CASES[setting["case"]]
    label, budget = setting["label"], setting["budget"]
    if label == DEFAULT:
        make: Make = default
        if budget is not None:
            method = BUDGETED[option](**{option: budget})
            make = partial(default, method=method, monitor=True)
    else:
        make = partial(METHODS[label][0], steps=budget)
    case = ExactCase(PROBLEMS[name])
    return [{"members": MEMBERS} | case.score(case.plan(make), MEMBERS, seed=0)]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: of each problem the default, and of each other method
    the budget with which it is nearest."""
    found = []
    scored = [row | {"work": _work(row)} for row in records if "ratio" in row]
    for (_, label), group in grouped(scored, "case", "label").items():
        if label == DEFAULT:
            group = [row for row in group if row["budget"] is None]
        found.append(min(group, key=lambda row: row["ratio"]))
    return found


def _work(record: Record) -> float:
    return record["member_forward"] + 2 * record["member_backward"]


def _figure(records: Sequence[Record]) -> figures.Figure:
    return figures.work([row | {"work": _work(row)} for row in records if "ratio" in row])


COLUMNS: Columns = {
    "case": ("problem", TEXT),
    "label": ("method", TEXT),
    "budget": ("steps", "{}"),
    "work": ("work", "{:.0f}"),
    "feasible": ("feasible", "{:.1%}"),
    "ratio": ("distance", "{:.2f}"),
    "std": ("std / exact", "{:.2f}"),
}
"""*Distance* is the sliced Wasserstein distance to the truth over that of two exact sample sets,
as in the study `defaults`."""

MEASUREMENT = Measurement(
    name="work",
    question="How near to the exact distribution does each method come for its evaluations?",
    problem="exact",
    settings=settings(),
    measure=measure,
    rows=rows,
    columns=COLUMNS,
    figures={"": _figure},
)
