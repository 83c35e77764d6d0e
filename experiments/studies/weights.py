"""Do samples converge to the exact distribution with more particles?

Each problem whose values are weighted is sampled with several numbers of particles and three
seeds. Of the rare modes a third is held out, as in the study `defaults`.
"""

from collections.abc import Sequence
from functools import partial
from statistics import fmean, median

from feasibly.samplers import SMC

from .. import figures
from ..benches.exact import ExactCase
from ..benches.exact_problems import PROBLEMS
from ..records import Record
from ..samplers import Make, default
from ..study import Measurement
from ..tables import TEXT, Columns

PARTICLES = (1, 2, 4, 8, 16)
"""How many a trajectory begins with. The library takes 2, and more where weights vary."""

SEEDS = 3
ANY = 10.0
RARE = "rare modes"

OTHERS = (
    "modes-axis-mean-1.5-rectified",
    "clusters-8d-4k-2r-all-edm",
    "clusters-30d-4k-1r-all-rectified",
    "circle-clusters-edm-0.01",
    "hyperbola-2-widths-cosine",
    "circle-1.5-offset-widths-vp",
    "circle-board-loglogit",
    "wave-banana-edm",
    "bingham-8-flow",
    "ring-edm",
)
"""Problems of other families, none of them held out."""


def settings() -> list[dict]:
    """Returns what to measure."""
    rare = [name for name, problem in PROBLEMS.items() if problem.family == RARE]
    return [
        {"posterior": name, "particles": number}
        for name in (*rare, *OTHERS)
        for number in (None, *PARTICLES)
    ]


def measure(setting: dict) -> list[Record]:
    """Samples a problem with a number of particles and several seeds, and scores each ensemble."""
    problem = PROBLEMS[setting["posterior"]]
    case = ExactCase(problem)
    number = setting["particles"]
    # a large error, so that no particles are added
    make: Make = default
    if number is not None:
        make = partial(default, method=SMC(particles=number, error=ANY), monitor=True)
    plan = case.plan(make)
    return [
        {"family": problem.family, "members": problem.members, "seed": seed}
        | case.score(plan, problem.members, seed)
        for seed in range(SEEDS)
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: of the rare modes, and of the others, each number."""
    found, records = [], [row for row in records if "ratio" in row]
    groups = {
        f"{RARE}, development": lambda row: row["family"] == RARE and not row["held_out"],
        f"{RARE}, held-out": lambda row: row["family"] == RARE and row["held_out"],
        "other problems": lambda row: row["family"] != RARE,
    }
    for name, belongs in groups.items():
        for number in (None, *PARTICLES):
            group = [row for row in records if belongs(row) and row["particles"] == number]
            wrong = [row["weight_error"] for row in group if "weight_error" in row]
            if group:
                found.append(
                    {
                        "problems": name,
                        "particles": number,
                        "weight_error": fmean(wrong),
                        "worst": max(wrong),
                        "ratio": median(row["ratio"] for row in group),
                        "evaluations": median(map(_evaluations, group)),
                        "warned": fmean(row["said"] for row in group),
                    }
                )
    return found


def _evaluations(record: Record) -> float:
    return record["member_forward"] + record["member_backward"]


def _figure(records: Sequence[Record]) -> figures.Figure:
    return figures.convergence(
        [row | {"evaluations": _evaluations(row)} for row in records if "ratio" in row],
        PARTICLES,
    )


COLUMNS: Columns = {
    "problems": ("problems", TEXT),
    "particles": ("particles", "{}"),
    "weight_error": ("weight error, mean", "{:.3f}"),
    "worst": ("worst", "{:.3f}"),
    "ratio": ("distance, median", "{:.2f}"),
    "evaluations": ("evaluations, median", "{:.0f}"),
    "warned": ("warned", "{:.0%}"),
}
"""*Distance* is the sliced Wasserstein distance to exact samples over that between two exact sets.
Without a number of particles no option was set."""

MEASUREMENT = Measurement(
    name="weights",
    question="Do samples converge to the exact distribution with more particles?",
    problem="exact",
    settings=settings(),
    measure=measure,
    rows=rows,
    columns=COLUMNS,
    figures={"": _figure},
)
