"""Does an audit recommend the right sampler, and find the faults that are there?

The problems have an exact distribution. So the study `defaults` has the true distance of each
candidate, under the constraint as it is given. An audit sees 64 truths of the prior instead.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import feasibly
from feasibly.audits import Candidate, Examination
from feasibly.audits.findings import FEASIBLE
from feasibly.audits.result import difference, recommend
from feasibly.constraints import Constraint
from feasibly.errors import SamplingError
from feasibly.problems.data2d import Data2D
from feasibly.problems.ks import KS
from feasibly.problems.weather import Weather

from .. import records as kept
from ..benches.exact_problems import PROBLEMS as ALL
from ..records import DEFAULT, Record, grouped
from ..study import Measurement
from ..tables import TEXT, Columns, quantiles

EXACT = "exact"
DATA2D = {"truths": 128, "members": 7}
FEWEST = {"truths": 16, "members": 2}
SHIPPED: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("checkerboard", "constraint 0"): DATA2D,
    ("banana", "constraint 0"): DATA2D,
    ("weather", "wind"): FEWEST,
    ("ks", "sine-3"): FEWEST,
}
"""The priors of the package that are audited, each with a constraint. Fields take the fewest
truths and few members, since each member takes a minute."""

FIELDS = {"ks": KS, "weather": Weather}
CHUNK, STORES = 8, Path("runs/audits")
"""How many members of fields to sample at a time, and where to keep them until all are done."""

PROBLEMS: Mapping[str, Sequence[str]] = {
    "two modes": (
        "modes-diagonal-mean2-vp",
        "modes-diagonal-mean1-vp",
        "modes-diagonal-mean0.3-vp",
        "modes-diagonal-mean0-vp",
        "modes-diagonal-mean3-cosine",
        "modes-axis-mean1-edm-scale0.01",
        "modes-axis-mean-1.5-rectified",
    ),
    "spheres": (
        "square-line-vp",
        "sphere-30-vp",
        "sphere-256-cosine",
        "bingham-8-flow",
        "ring-edm",
    ),
    "curves": (
        "circle-gaussian-edm-100",
        "ellipse-gaussian-flow",
        "ellipse-clusters-loglogit",
        "circle-clusters-edm-0.01",
        "cubic-clusters-rectified",
        "hyperbola-gaussian-vp",
    ),
    "Data2D": (
        "circle-board-loglogit",
        "wave-board-vp",
        "cubic-board-cosine",
        "circle-banana-loglogit",
        "wave-banana-edm",
    ),
    "clusters": (
        "clusters-8d-4k-1r-all-vp",
        "clusters-8d-4k-2r-all-edm",
        "clusters-8d-6k-2r-one-cosine",
        "clusters-8d-5k-1r-one-edm-scale0.01",
        "clusters-30d-4k-1r-all-rectified",
        "clusters-30d-8k-2r-all-loglogit",
        "clusters-30d-8k-10r-one-vp",
    ),
    "Gaussian": (
        "gaussian-2d-cond1-1r-0std-vp",
        "gaussian-2d-cond10-1r-3std-edm",
        "gaussian-8d-cond1-2r-1std-cosine",
        "gaussian-8d-cond10-4r-2std-edm-scale0.01",
        "gaussian-8d-cond1000-1r-1std-edm-scale100",
        "gaussian-30d-cond1-12r-3std-cosine",
        "gaussian-30d-cond10-2r-3std-loglogit-scale100",
        "gaussian-30d-cond10-12r-4std-edm",
        "gaussian-30d-cond1000-12r-4std-edm-scale0.01",
        "gaussian-256d-cond10-1r-2std-flow",
    ),
    "fields": (
        "field-16x16-mean4std-l0-rectified",
        "field-16x16-0.3known-l1-edm-scale100",
        "field-16x16-0.1known-l0.5-edm",
        "field-16x16-0.1known-l1-vp",
    ),
}
"""Problems of the study `defaults` by family, without those that are held out. Left out are
inequalities, finite data, what no sample attains, and fields that take long."""

LABELS = {"auto": DEFAULT}
"""The labels of candidates in the study `defaults`, where they differ."""

ORDERS = ("calibrated, ppr-tuned", "ppr-tuned, calibrated")
"""What is recommended if these are the candidates, in this order."""

RIGHT, NEAR = 1.05, 0.3
"""A candidate is right up to this ratio to the best one, or this difference from it. The distance
of 1024 members is itself only known within some 20 %."""

BAD, GOOD = 2.0, 1.2
"""Above and below these distances a candidate is wrong, and right."""

TRUTHS, SEEDS = 64, 4

MORE = 256
"""The truths of one more audit of each problem of `FEW`."""

FEW = ("two modes", "spheres", "curves", "Data2D")
"""The families that have few free directions, but for two problems."""


class Case(NamedTuple):
    """What is audited."""

    denoiser: Any
    constraint: Constraint
    shape: tuple[int, ...]


def case(prior: str, posterior: str) -> Case:
    """Makes a problem of the study `defaults`, or the first constraint of a shipped prior."""
    if prior in FIELDS:
        field = FIELDS[prior](posterior)
        return Case(field.denoiser, field.constraint(field.reference(0)), field.shape)
    if prior != EXACT:
        problem = Data2D(prior)
        return Case(problem.denoiser, problem.constraint(0), problem.shape)
    made = ALL[posterior].make()
    return Case(made.denoiser, made.constraint, made.shape)


def measure(setting: dict) -> list[Record]:
    """Audits the default candidates, and returns a record for each."""
    problem = case(setting["prior"], setting["posterior"])
    size: dict[str, Any] = {key: setting[key] for key in ("truths", "members", "seed")}
    if setting["prior"] in FIELDS:
        name = "-".join(str(setting[key]) for key in ("prior", "posterior", "seed"))
        size |= {"batch_size": CHUNK, "path": STORES / name, "methods": ("auto", "ppr-tuned")}
    try:
        # exact problems were not chosen for the monitor, and their candidates are compared without
        found = feasibly.audit(*problem, monitor=setting["prior"] != EXACT, **size)
    except (SamplingError, ValueError) as error:
        return [{"candidate": "", "chosen": [], "failure": str(error)}]
    ranked = {one.name: one for one in found.candidates}
    chosen = {"all": found.recommended}
    for order in ORDERS:
        one, *_ = recommend([ranked[name] for name in order.split(", ") if name in ranked])
        chosen[order] = one.name if one else ""
    return [
        {
            "candidate": candidate.name,
            "chosen": [order for order, name in chosen.items() if name == candidate.name],
            "gaps": {c.name: _gap(candidate, c) for c in found.candidates if c is not candidate},
            "regret": found.regret,
            "verdict": candidate.verdict,
            "feasible": _number(candidate.feasible),
            "evaluations": _number(candidate.evaluations),
            "seconds": candidate.seconds,
            "failure": candidate.failure,
            **_seen(candidate.examination),
        }
        for candidate in found.candidates
    ]


def _gap(a: Candidate, b: Candidate) -> list[float] | None:
    """The mean difference of two energy scores on the same truths, and its standard error."""
    if a.examination is None or b.examination is None:
        return None
    found = difference(a.examination, b.examination)
    return list(found) if math.isfinite(found.value) else None


def _seen(seen: Examination | None) -> Record:
    if seen is None:
        return {}
    return {
        "spread": list(seen.ratio),
        "energy": list(seen.energy),
        "p": {finding.family: finding.p for finding in seen.findings},
        "found": [finding.family for finding in seen.findings if finding.found],
    }


def _number(value: float) -> float | None:
    return value if value == value else None


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the table's rows: each family, all problems, some by the number of truths, all if
    the default is no candidate, and what always taking one candidate instead would give."""
    truth = {
        (row["posterior"], row["label"]): row
        for row in kept.read("defaults", "exact")
        if "ratio" in row
    }
    families = {name: key for key, names in PROBLEMS.items() for name in names}
    every = [
        row
        | {"family": families[row["posterior"]]}
        | {"true": truth.get((row["posterior"], LABELS.get(row["candidate"], row["candidate"])))}
        for row in records
        if row["prior"] == EXACT
    ]
    mine = [row for row in every if row["truths"] == TRUTHS]
    found = [_row(name, group) for (name,), group in grouped(mine, "family").items()]
    found.append(_row("all", mine))
    for truths in (TRUTHS, MORE):
        if group := [r for r in every if r["family"] in FEW and r["truths"] == truths]:
            row = _row(f"{FEW[0]} to {FEW[-1]}", group)
            found.append(row | {"family": f"{row['family']}, {truths} truths"})
    found.append({"family": "all, always auto", **_always("auto", mine)})
    others = [row for row in mine if row["candidate"] != "auto"]
    for order in ORDERS:
        audited = _judged(others, lambda row, order=order: order in row["chosen"])
        first = order.split(", ")[0]
        found.append({"family": f"without auto, {first} first", **audited})
        found.append({"family": f"without auto, always {first}", **_always(first, others)})
    return found


def _always(name: str, group: Sequence[Record]) -> Record:
    return _judged(group, lambda row: row["candidate"] == name)


def _row(name: str, group: Sequence[Record]) -> Record:
    scored = [(row, row["true"]["ratio"]) for row in group if row["true"]]
    bad = [_faulty(row) for row, ratio in scored if ratio > BAD]
    good = [_faulty(row) for row, ratio in scored if ratio < GOOD]
    cost = [
        sum((row.get("evaluations") or 0) * row["truths"] * row["members"] for row in one)
        for one in _audits(group)
    ]
    return {
        "family": f"{name} ({len({row['posterior'] for row in group})})",
        **_judged(group, lambda row: "all" in row["chosen"]),
        "faults": f"{sum(bad)} of {len(bad)}",
        "alarms": f"{sum(good)} of {len(good)}",
        "evaluations": statistics.median(cost) / 1e6,
    }


def _audits(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each audit."""
    return list(grouped(records, "posterior", "truths", "seed").values())


def _judged(group: Sequence[Record], taken: Callable[[Record], bool]) -> Record:
    """How many of what is taken in each audit are right, by the true distances of it and of the
    best candidate, and its regret."""
    choices = []
    for one in _audits(group):
        known = [row for row in one if row["true"]]
        able = [r["true"]["ratio"] for r in known if r["true"]["feasible"] >= FEASIBLE]
        mine = [row["true"]["ratio"] for row in known if taken(row)]
        if able and mine:
            choices.append((mine[0], min(able)))
    if not choices:
        return {}
    strict = [mine <= RIGHT * best for mine, best in choices]
    loose = [mine <= max(RIGHT * best, best + NEAR) for mine, best in choices]
    return {
        "strict": f"{sum(strict)} of {len(strict)}",
        "loose": f"{sum(loose)} of {len(loose)}",
        "regret": quantiles([mine / best for mine, best in choices]),
    }


def _faulty(row: Record) -> bool:
    return bool(row.get("found") or row["failure"]) or (row.get("feasible") or 0) < FEASIBLE


COLUMNS: Columns = {
    "family": ("problems", TEXT),
    "strict": (f"within {RIGHT - 1:.0%} of the best", "{}"),
    "loose": (f"or within {NEAR} of it", "{}"),
    "regret": ("regret, median / 90 %", "{}"),
    "faults": (f"faults found, of those above {BAD:g}", "{}"),
    "alarms": (f"and of those below {GOOD:g}", "{}"),
    "evaluations": ("evaluations, millions", "{:.2f}"),
}
"""Of the candidate that the audit recommends. Regret is its true distance over the best
candidate's."""


def shipped(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of the table of the shipped priors, a row for each candidate."""
    return [
        row
        | {
            "method": f"{row['prior']}, {row['posterior']}, {row['candidate']}"
            if row["prior"] in FIELDS
            else f"{row['prior']}, {row['candidate']}",
            "energy": "{:.3g} ± {:.2g}".format(*row["energy"]),
            "verdict": re.split(" at this size;|; with this many truths", row["verdict"])[0],
            "truths": f"{row['truths']} x {row['members']}",
        }
        for row in records
        if row["prior"] != EXACT and "spread" in row
    ]


SHIPPED_COLUMNS: Columns = {
    "method": ("prior, method", TEXT),
    "truths": ("truths x members", TEXT),
    "energy": ("energy score", "{}"),
    "feasible": ("feasible", "{:.1%}"),
    "evaluations": ("evaluations", "{:.0f}"),
    "verdict": ("verdict", TEXT),
}


def cases() -> list[dict]:
    """Returns what to audit: each problem by several seeds, some with more truths, and the shipped
    priors."""

    def posed(name: str, truths: int, seed: int) -> dict:
        return {"prior": EXACT, "posterior": name, "truths": truths, "members": 7, "seed": seed}

    names = [name for some in PROBLEMS.values() for name in some]
    first = [posed(name, TRUTHS, 0) for name in names]
    more = [posed(name, MORE, 0) for family in FEW for name in PROBLEMS[family]]
    again = [posed(name, TRUTHS, seed) for seed in range(1, SEEDS) for name in names]
    own = [
        {"prior": one, "posterior": two, **most, "seed": 0} for (one, two), most in SHIPPED.items()
    ]
    return [*first, *more, *again, *own]


MEASUREMENT = Measurement(
    name="audit",
    question="Does an audit recommend the right sampler, and find the faults that are there?",
    problem="exact",
    settings=cases(),
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
