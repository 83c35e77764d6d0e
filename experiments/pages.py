"""The tables of the README and the docs, from records alone."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from feasibly.cli import methods
from feasibly.policy import RULES

from . import paper, records
from .records import BASE, DEFAULT, ROOT, Record
from .studies import MEASUREMENTS, audit, defaults, fidelity, find
from .study import Measurement, Study
from .tables import ALL, TEXT, Columns, means, parts, render

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "pages").glob("*.md")),
]

MARK = re.compile(
    r"(<!-- table: ([\w-]+) (\w+)(?:/([\w/-]+))?(?:; ([^>]*))? -->\n).*?(<!-- end -->)", re.DOTALL
)
MADE = re.compile(r"(<!-- made: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str) -> str:
    """Writes the tables of a page between their marks.

    A mark reads `<!-- table: STUDY PROBLEM -->`, or `<!-- table: STUDY PROBLEM; LABEL; ... -->`
    for some rows only, with `PROBLEM/OBSERVATION` for one kind of observation (of the weather
    `PROBLEM/OBSERVATION/VARIABLE`) or `oracles/POSTERIOR`, or `<!-- made: NAME -->` for what is no
    mean of a comparison, and ends with `<!-- end -->`.

    Raises:
        ValueError: If a mark asks for what there is not.
    """

    def table(match: re.Match[str]) -> str:
        start, study, problem, part, labels, end = match.groups()
        return f"{start}{_means(study, problem, part, labels)}\n{end}"

    def made(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        return f"{start}{MAKERS[name]()}\n{end}"

    return MADE.sub(made, MARK.sub(table, page))


def _means(name: str, problem: str, part: str | None, labels: str | None) -> str:
    study = find(name)
    if not isinstance(study, Study) or problem not in study.on:
        raise ValueError(f"A page asks for {name} on {problem}, which is no comparison.")
    comparison = study.on[problem]
    found = [row for _, rows in parts(records.read(name, problem)) for row in rows]
    if comparison.rows is not None and not part:
        return render(comparison.rows(found), comparison.columns)
    if part:
        found = [row for row in found if part in (row.get("observation"), row.get("posterior"))]
    rows = means(found)
    if labels:
        wanted = [label.strip() for label in labels.split(";")]
        known = {row["label"]: row for row in rows}
        if not set(wanted) <= set(known):
            raise ValueError(
                f"A page asks for rows {sorted(set(wanted) - set(known))} of {name} on {problem}, "
                f"which has {list(known)}; run the study or change the mark."
            )
        rows = [known[label] for label in wanted]
    return render(rows, comparison.columns)


def _of_text(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    named = [dict(zip(heads, row, strict=True)) for row in rows]
    return render(named, {head: (head, TEXT) for head in heads})


def _measured(measurement: Measurement) -> str:
    found = measurement.rows(records.read(measurement.name, measurement.problem))
    return render(found, measurement.columns)


SHARE, SCORE = "{:.1%}", "{:.3f}"

BESIDE_DATA2D: Columns = {
    "label": ("method", "{}"),
    "paper_feasible": ("feasible: paper", SHARE),
    "state_feasible": ("our state", SHARE),
    "feasible": ("our projected", SHARE),
    "paper_knn": ("k-NN: paper", "{}"),
    "knn": ("ours", SCORE),
}

WHY = {
    "CPS, HDC": "the output; our last states have about the paper's shares",
    "PDM": "the projection: per sample, with a line search and short steps",
    "DPS, MMPS, TS": "tuned strengths",
    "PPR": "the paper does not state its optimizer's details",
}
"""What makes our figures on Data2D differ from the paper's."""

BESIDE_KS: Columns = {"label": ("method", "{}")} | {
    key: (f"{ALL[key][0]}: paper, ours", "{}") for key in ("feasible", "rmse", "crps")
}

WHY_KS = {
    "PPR": "another prior; its optimizer is not stated, ours has no cap",
    "DPS": "strength tuned: the smaller it is, the nearer to feasible and the farther off",
    "MMPS": "a twentieth of the budget",
    "TS": "a twelfth of the budget",
    "CPS": "output: denoised estimates are feasible, and torn at the observed frames",
    "PDM": "as for CPS; a twelfth of the budget",
    "HDC": "as for CPS",
}
"""And on KS."""


OURS = "PPR, our settings"
"""The row of PPR in the library's settings."""


def beside_data2d(found: Sequence[Record]) -> str:
    """Renders Table 2 beside the records of the study `baselines`."""
    rows = []
    for name, theirs in paper.DATA2D.items():
        knn = f"{theirs['knn']:.3f} ± {theirs['knn_spread']:.3f}"
        beside = {"paper_feasible": theirs["feasible"], "paper_knn": knn}
        rows.append(_ours(found)[name] | beside | {"label": name})
    return f"{render(rows, BESIDE_DATA2D)}\n\n{_why(WHY)}"


def beside_ks(found: Sequence[Record]) -> str:
    """Renders Table 3, on the sine of three frames, beside the records of the study
    `baselines`."""
    ours = _ours([row for row in found if row["observation"] == "sine-3"])
    rows = [_beside(OURS, {}, ours[OURS])]
    rows += [_beside(name, theirs, ours[name]) for name, theirs in paper.KS.items()]
    return f"{render(rows, BESIDE_KS)}\n\n{_why(WHY_KS)}"


def _ours(found: Sequence[Record]) -> dict[str, Record]:
    """The rows of our table, by the paper's names of the methods."""
    rows = {row["label"]: row for row in means(found)}
    return rows | {OURS: rows[BASE], "PPR": rows["PPR, paper's setting"]}


def _beside(label: str, theirs: Mapping[str, float], ours: Record) -> Record:
    row: Record = {"label": label, "default": label == DEFAULT}
    for key in [key for key in BESIDE_KS if key != "label"]:
        as_printed, form = (SHARE, SHARE) if key == "feasible" else ("{:g}", "{:.2f}")
        value = as_printed.format(theirs[key]) if key in theirs else "–"
        row[key] = f"{value}, {form.format(ours[key])}"
    return row


def _why(reasons: Mapping[str, str]) -> str:
    """The reasons for what differs, as a list."""
    return "\n".join(["Why they differ:", "", *(f"* {k}: {v}." for k, v in reasons.items())])


WEATHER_ROWS: dict[str, tuple[str, ...]] = {
    "state": (DEFAULT, BASE),
    "wind": (DEFAULT, BASE, "PPR, T = 128, 8 iterations"),
}
WEATHER_RIVALS = ("MMPS", "DPS", "HDC", "post-hoc projection")
WEATHER_COLUMNS: Columns = {
    "observed": ("observed", TEXT),
    "label": ("method", TEXT),
    "feasible": ALL["feasible"],
    "z": ("CRPS of z (m²/s²)", "{:.0f}"),
    "v": ("CRPS of v (m/s)", "{:.2f}"),
    "ratio": ("spread / skill of z, v", TEXT),
    "evaluations": ALL["evaluations"],
}


def _weather() -> str:
    """The table of the weather, by the CRPS of the northward wind."""
    known = dict(parts(records.read("baselines", "weather")))
    rows = []
    for observed, ours in WEATHER_ROWS.items():
        z, v = (
            {row["label"]: row for row in means(known[f"{observed}/{name}"])}
            for name in ("geopotential", "v")
        )
        for label in sorted((*ours, *WEATHER_RIVALS), key=lambda label: v[label]["crps"]):
            row = {key: v[label][key] for key in ("feasible", "evaluations")}
            row |= {"observed": observed, "z": z[label]["crps"], "v": v[label]["crps"]}
            row["label"] = f"**{label}**" if v[label]["default"] else label
            row["ratio"] = f"{z[label]['ratio']:.2f}, {v[label]['ratio']:.2f}"
            rows.append(row)
    return render(rows, WEATHER_COLUMNS)


DEFAULTS = ("family", "feasible", "sliced", "evaluations", "silent")


def _defaults() -> str:
    """The default on problems with an exact answer, all of them first."""
    rows = defaults.rows(records.read("defaults", "exact"))
    totals = [row for row in rows if row["family"].startswith(tuple(defaults.PARTS))]
    families = [row for row in rows if row not in totals]
    return render(totals + families, {key: defaults.COLUMNS[key] for key in DEFAULTS})


def _executors() -> str:
    """The latest run of an ensemble by several executors."""
    rows = records.read("executors", "ensemble")
    last = rows[-len({row["executor"] for row in rows}) :]
    columns: Columns = {
        "executor": ("executor", TEXT),
        "workers": ("workers", "{:.0f}"),
        "seconds": ("seconds", "{:.0f}"),
        "finished": ("samples finished", "{:,.0f}"),
        "largest difference": ("largest relative difference", "{:.0e}"),
    }
    return render(last, columns)


MAKERS: dict[str, Callable[[], str]] = {
    **{one.name: partial(_measured, one) for one in MEASUREMENTS},
    "comparison": lambda: beside_data2d(records.read("baselines", "data2d")),
    "comparison-ks": lambda: beside_ks(records.read("baselines", "ks")),
    "methods": lambda: _of_text(("method", "space", "renoises", "gradients", ""), methods.rows()),
    "choices": lambda: _of_text(
        ("your constraint", "what runs"), [(rule.case, rule.takes) for rule in RULES]
    ),
    "audit-shipped": lambda: render(
        audit.shipped(records.read("audit", "exact")), audit.SHIPPED_COLUMNS
    ),
    "executors": _executors,
    "defaults": _defaults,
    "limits": lambda: render(defaults.limits(records.read("defaults", "exact")), defaults.LIMITS),
    "fidelity": lambda: render(fidelity.shown(records.read("fidelity", "exact")), fidelity.SHOWN),
    "weather": _weather,
}
"""What makes the tables that have a name."""
