"""The tables of the README and the docs, from records alone."""

__all__ = ["PAGES", "fill"]

import re
from collections.abc import Callable, Iterable, Sequence

from feasibly.cli import methods
from feasibly.policy import CHOICES

from . import comparison, records
from .records import BASE, DEFAULT, TRUTH
from .studies import MEASUREMENTS, audit, defaults, fidelity, find
from .study import Study
from .tables import ALL, TEXT, Columns, means, pick, render
from .variables import parts

ROOT = records.RESULTS.parent
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


def _listing() -> str:
    """The list of methods."""
    return _of_text(("method", "space", "renoises", "gradients", ""), methods.rows())


def _choices() -> str:
    """What the default runs."""
    return _of_text(("your constraint", "what runs"), CHOICES)


def _of_text(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    named = [dict(zip(heads, row, strict=True)) for row in rows]
    return render(named, {head: (head, TEXT) for head in heads})


def _measured(name: str) -> str:
    measurement = next(one for one in MEASUREMENTS if one.name == name)
    found = measurement.rows(records.read(name, measurement.problem))
    return render(found, measurement.columns)


def _shipped() -> str:
    return render(audit.shipped(records.read("audit", "exact")), audit.SHIPPED_COLUMNS)


def _fidelity() -> str:
    return render(fidelity.shown(records.read("fidelity", "exact")), fidelity.SHOWN)


README_ROWS = ("default", "PPR", "HDC", "MMPS", "DPS", "post-hoc projection", TRUTH)
README_COLUMNS = pick("feasible", "on_manifold", "knn", "weight_error", "evaluations")


def _readme() -> str:
    """The README's one table, of Data2D."""
    known = {row["label"]: row for row in means(records.read("baselines", "data2d"))}
    return render([known[label] for label in README_ROWS], README_COLUMNS)


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
            rows.append(
                {
                    "observed": observed,
                    "label": f"**{label}**" if v[label]["default"] else label,
                    "feasible": v[label]["feasible"],
                    "z": z[label]["crps"],
                    "v": v[label]["crps"],
                    "ratio": f"{z[label]['ratio']:.2f}, {v[label]['ratio']:.2f}",
                    "evaluations": v[label]["evaluations"],
                }
            )
    return render(rows, WEATHER_COLUMNS)


DEFAULTS = ("family", "feasible", "sliced", "evaluations", "silent")


def _defaults() -> str:
    """The default on problems with an exact answer, all of them first."""
    rows = defaults.rows(records.read("defaults", "exact"))
    totals = [row for row in rows if row["family"].startswith(tuple(defaults.PARTS))]
    families = [row for row in rows if row not in totals]
    return render(totals + families, {key: defaults.COLUMNS[key] for key in DEFAULTS})


MAKERS: dict[str, Callable[[], str]] = {
    "comparison": lambda: comparison.data2d(records.read("baselines", "data2d")),
    "comparison-ks": lambda: comparison.ks(records.read("baselines", "ks")),
    "methods": _listing,
    "choices": _choices,
    "audit": lambda: _measured("audit"),
    "audit-shipped": _shipped,
    "readme": _readme,
    "defaults": _defaults,
    "faults": lambda: _measured("faults"),
    "fidelity": _fidelity,
    "azula": lambda: _measured("azula"),
    "precision": lambda: _measured("precision"),
    "peers": lambda: _measured("peers"),
    "solutions": lambda: _measured("solutions"),
    "referee": lambda: _measured("referee"),
    "equations": lambda: _measured("equations"),
    "seconds": lambda: _measured("seconds"),
    "cost": lambda: _measured("cost"),
    "increments": lambda: _measured("increments"),
    "stations": lambda: _measured("stations"),
    "weather": _weather,
    "bound": lambda: _measured("bound"),
    "lipschitz": lambda: _measured("lipschitz"),
    "networks": lambda: _measured("networks"),
    "weights": lambda: _measured("weights"),
}
"""What makes the tables that have a name."""
