"""Is the default right where the exact distribution is known, or does it say that it is not?

Each problem is sampled once by the default, with no option set, and once by each candidate that
applies to it. A third of the problems is held out: it is run with `--held-out`, once, when the
policy is chosen.

The study `inside` asks whether samples inside of inequalities are distributed as they should be,
near the boundary too. Run it with `--observations inequalities --members 4096`.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from feasibly.samplers import ECI, METHODS, PCFM

from .. import figures, tables
from ..records import DEFAULT, TRUTH, Record, grouped
from ..samplers import Make, default, library, only, ppr
from ..study import Comparison, Study
from ..tables import TEXT, Columns, quantiles

CANDIDATES: Mapping[str, Make] = {
    name: partial(library, method=METHODS[name])
    for name in ("calibrated", "rejection", "ppr-tuned")
}
"""What the default may choose from."""

LEARNED = "learned"
"""The family whose denoisers have errors."""

PARTS: Mapping[str, Callable[[Record], bool]] = {
    "all exact denoisers": lambda row: True,
    "development": lambda row: not row["held_out"],
    "held-out": lambda row: row["held_out"],
}
"""The rows of several families, of problems that can be met."""

COLUMNS: Columns = {
    "family": ("problems", TEXT),
    "feasible": ("feasible, least", "{:.1%}"),
    "sliced": ("sliced, median / 90 %", "{}"),
    "std": ("std / exact, least to most", "{}"),
    "regret": ("regret, median / 90 %", "{}"),
    "evaluations": ("evaluations", "{}"),
    "silent": ("undetected failures", "{}"),
}
"""*Sliced* is the sliced Wasserstein distance to the truth over that of two exact sample sets,
*regret* the default's over the best candidate's."""

HEAT: Columns = {
    "case": ("denoiser, schedule", TEXT),
    "label": ("method", TEXT),
    "mmse": ("MMSE", "{:.1e}"),
    "decay": ("decay, 3.00 ± 1.15 exactly", "{}"),
    "p": ("p that it is uniform", "{:.2g}"),
    "off": ("distance to a solution", "{:.3f}"),
    "evaluations": ("evaluations", "{}"),
}
"""Medians over the ensembles, and the mean of the decays."""


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the table's rows: the default on each family, on all problems with exact denoisers,
    on those of development, and on the held-out ones.

    Problems without an exact distribution count as undetected failures if no run warned.
    """
    mine = [row for row in records if row["label"] == DEFAULT]
    best = _best([row for row in records if row["label"] not in (DEFAULT, TRUTH)])
    found = [_row(name, group, best) for (name,), group in grouped(mine, "family").items()]
    attainable = [row for row in mine if row["attainable"] and row["family"] != LEARNED]
    for name, belongs in PARTS.items():
        if group := [row for row in attainable if belongs(row)]:
            found.append(_row(name, group, best))
    return found


def _best(records: Sequence[Record]) -> dict[str, float]:
    """The least distance of the candidates on each problem, of those with the most feasible
    members but for one in a hundred."""
    found = {}
    for (name,), group in grouped([r for r in records if "ratio" in r], "posterior").items():
        most = max(row["feasible"] for row in group)
        found[name] = min(row["ratio"] for row in group if row["feasible"] >= most - 0.01)
    return found


def _row(name: str, group: Sequence[Record], best: Mapping[str, float]) -> Record:
    scored = [row for row in group if "ratio" in row]
    regret = [row["ratio"] / best[row["posterior"]] for row in scored if row["posterior"] in best]
    row: Record = {
        "family": f"{name} ({len(group)})",
        "feasible": min(row["feasible"] for row in group),
        "silent": sum(row["silent"] for row in group),
    }
    if scored:
        std = [row["std"] for row in scored]
        row["sliced"] = quantiles([row["ratio"] for row in scored])
        row["std"] = f"{min(std):.2f} to {max(std):.2f}"
    if regret:
        row["regret"] = quantiles(regret)
    if counted := [row for row in group if "member_forward" in row]:
        row["evaluations"] = evaluations(counted)
    return row


def limits(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of the problems that users found to be hard, one a problem."""
    mine = [row for row in records if row["label"] == DEFAULT and row["family"] == "limits"]
    return [
        row | {"told": "yes" if row["said"] else "", "evaluations": evaluations([row])}
        for row in mine
    ]


LIMITS: Columns = {
    "posterior": ("problem", TEXT),
    "ratio": ("sliced", "{:.2f}"),
    "std": ("std / exact", "{:.2f}"),
    "mean_error": ("mean error", "{:.2f}"),
    "weight_error": ("weight error", "{:.2f}"),
    "told": ("warned", TEXT),
    "evaluations": ("evaluations", TEXT),
}


def heat(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of each case of the heat equation."""
    found = []
    for (case, label), group in grouped(records, "case", "label").items():
        row: Record = {"case": case, "label": label}
        if scored := [row for row in group if "nu" in row]:
            row |= {k: statistics.median(r[k] for r in scored) for k in ("mmse", "p", "off")}
            decay = (statistics.fmean(r[k] for r in scored) for k in ("nu", "nu_std"))
            row["decay"] = "{:.2f} ± {:.2f}".format(*decay)
        if counted := [row for row in group if "member_forward" in row]:
            row["evaluations"] = evaluations(counted)
        found.append(row)
    return found


def evaluations(records: Sequence[Record]) -> str:
    """Returns the median evaluations of a member, forward + backward."""
    costs = [
        statistics.median(row[key] for row in records)
        for key in ("member_forward", "member_backward")
    ]
    return "{:.0f} + {:.0f}".format(*costs)


STUDY = Study(
    name="defaults",
    question="Is the default right where the exact distribution is known, or does it say so?",
    on={
        "exact": Comparison(
            {DEFAULT: default, **CANDIDATES},
            COLUMNS,
            {"": figures.defaults},
            only={"calibrated": ("equalities",), "rejection": ("few equalities",)},
            rows=rows,
        ),
        "heat": Comparison(
            {
                DEFAULT: default,
                "calibrated": CANDIDATES["calibrated"],
                "PPR": ppr,
                "ECI, fixed noise": only(ECI, steps=100),
                "ECI, noise resampled every 5": only(ECI, steps=200, resample=5),
                "PCFM": only(PCFM, steps=100),
            },
            HEAT,
            only=dict.fromkeys(
                ("PPR", "ECI, fixed noise", "ECI, noise resampled every 5", "PCFM"),
                ("learned, flow",),
            ),
            rows=heat,
        ),
        "curves": Comparison({DEFAULT: default, **CANDIDATES}, tables.COLUMNS["data2d"]),
    },
)


def inside(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of the study of inequalities, one a problem."""
    mine = [row for row in records if row["label"] == DEFAULT]
    return [row | {"evaluations": evaluations([row])} for row in mine]


INSIDE = Study(
    name="inside",
    question="Are samples inside of inequalities distributed as they should be?",
    on={
        "exact": Comparison(
            {DEFAULT: default},
            {
                "posterior": ("problem", TEXT),
                "feasible": ("feasible", "{:.1%}"),
                "tv": ("total variation", "{:.3f}"),
                "std": ("std / exact", "{:.2f}"),
                "near": ("at the boundary", "{:.2%}"),
                "near_exact": ("exactly", "{:.2%}"),
                "evaluations": ("evaluations", "{}"),
            },
            only={DEFAULT: ("inequalities",)},
            rows=inside,
        ),
    },
)
