"""Does the test of members by the prior alone find those off the data, and no others? On priors
in the plane under a circle, whose support is known, and on KS, where post-hoc projection tears
trajectories.

The members are those of post-hoc projection and of the default. False alarms are counted among
fresh unconditional samples, for several references.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

import feasibly
from feasibly import priors
from feasibly.constraints import Constraint, Equality
from feasibly.monitor import Monitor
from feasibly.network import Evaluations, counted
from feasibly.oracles import Checkerboard as CheckerboardOracle
from feasibly.problem import Problem
from feasibly.problems.data2d import DISTRIBUTIONS
from feasibly.problems.ks import KS
from feasibly.run import run
from feasibly.samplers import Ancestral, PostHoc
from feasibly.schedules import LogLogit
from feasibly.survey import Survey

from ..records import Record, averages, grouped
from ..study import Measurement

EXACT = "exact checkerboard"
SHARED = 64  # the members of a run that share a reference, for its cost


class Case(NamedTuple):
    """A prior, a constraint, and what is on the data's support.

    Attributes:
        shape: The shape of one sample.
    """

    denoiser: Any
    constraint: Constraint
    shape: tuple[int, ...]
    on: Any


def case(prior: str) -> Case:
    """Returns the case of a name."""
    if prior == "ks":
        problem = KS("sine-3")
        constraint = problem.constraint(problem.reference(0))
        return Case(problem.denoiser, constraint, problem.shape, problem.in_support)
    circle = Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-8)
    exact = prior == EXACT
    denoiser = CheckerboardOracle(4, LogLogit()) if exact else priors.load(prior)
    distribution = DISTRIBUTIONS["checkerboard" if exact else prior]()
    return Case(denoiser, circle, (2,), distribution.in_support)


def auc(low: Tensor, high: Tensor) -> float | None:
    """Returns the share of pairs in which the value of `high` is larger, ties half; None if there
    are no pairs."""
    if not len(low) or not len(high):
        return None
    more = (high[:, None] > low).double() + (high[:, None] == low).double() / 2
    return more.mean().item()


def measure(setting: dict) -> list[Record]:
    """Assesses members by several references."""
    denoiser, constraint, shape, on = case(setting["prior"])
    members, fresh, chunk = setting["members"], setting["fresh"], setting["chunk"]
    problem = Problem(denoiser, constraint, shape, batch_size=chunk)
    projected = run([PostHoc(steps=64).bind(problem)], members).samples
    default = feasibly.sample(denoiser, constraint, members, shape, batch_size=chunk)
    free = problem.but(constraint=None)
    prior = run([Ancestral().bind(free)], fresh, seed=1).samples
    inside = on(projected)
    counts = default.evaluations
    each = (counts.member_forward + counts.member_backward) / members
    found: list[Record] = []
    for seed in range(setting["references"]):
        evaluations = Evaluations()
        with counted(evaluations):
            ref = Monitor.of(Survey.of(free, seed=seed))
        flags: dict[str, Tensor] = {}
        for name, x in {"post_hoc": projected, "default": default.samples, "prior": prior}.items():
            assessed = ref.assess(x, range(len(x)), chunk)
            flags[name] = ~assessed.plausible
            if name == "post_hoc":
                score = auc(assessed.statistic[inside], assessed.statistic[~inside])
        cost = evaluations.member_forward / SHARED + ref.cost
        found.append(
            {
                "reference": seed,
                "limit": ref.limit,
                "auc": score,
                "off": _share(flags["post_hoc"][~inside]),
                "on": _share(flags["post_hoc"][inside]),
                "default": _share(flags["default"]),
                "default_on": on(default.samples).double().mean().item(),
                "false_alarms": _share(flags["prior"]),
                "evaluations": cost,
                "run": each,
            }
        )
    return found


def _share(flags: Tensor) -> float | None:
    return flags.double().mean().item() if len(flags) else None


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the table's rows: the mean over references for each prior."""
    found = []
    keys = ("auc", "off", "on", "default", "false_alarms", "evaluations", "run")
    for (prior,), group in grouped(records, "prior").items():
        mean = averages(group, *keys)
        share = mean["evaluations"] / mean["run"]
        cost = f"{mean['evaluations']:.0f} of {mean['run']:.0f} ({share:.0%})"
        found.append({"prior": prior, **mean, "cost": cost})
    return found


MEASUREMENT = Measurement(
    name="monitor",
    question="Does the prior alone tell which members are off the data?",
    problem="data2d",
    settings=[
        *(
            {"prior": name, "members": 1024, "fresh": 4096, "references": 8, "chunk": 4096}
            for name in (EXACT, "checkerboard", "banana")
        ),
        {"prior": "ks", "members": 8, "fresh": 64, "references": 3, "chunk": 16},
    ],
    measure=measure,
    rows=rows,
    columns={
        "prior": ("prior", "{}"),
        "auc": ("AUC, post-hoc off the data against on it", "{:.3f}"),
        "off": ("implausible: post-hoc off", "{:.1%}"),
        "on": ("post-hoc on", "{:.1%}"),
        "default": ("default", "{:.1%}"),
        "false_alarms": ("unconditional", "{:.2%}"),
        "cost": (f"evaluations a member, {SHARED} share a reference", "{}"),
    },
)
