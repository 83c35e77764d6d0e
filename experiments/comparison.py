"""Our results beside the paper's Tables 2 and 3."""

__all__ = ["data2d", "ks"]

from collections.abc import Mapping, Sequence

from . import paper
from .records import BASE, DEFAULT, Record
from .tables import ALL, Columns, means, render

SHARE, SCORE = "{:.1%}", "{:.3f}"

DATA2D: Columns = {
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

KS: Columns = {"label": ("method", "{}")} | {
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


def data2d(records: Sequence[Record]) -> str:
    """Renders Table 2 beside the records of the study `baselines`."""
    rows = []
    for name, theirs in paper.DATA2D.items():
        knn = f"{theirs['knn']:.3f} ± {theirs['knn_spread']:.3f}"
        beside = {"paper_feasible": theirs["feasible"], "paper_knn": knn}
        rows.append(_ours(records)[name] | beside | {"label": name})
    return f"{render(rows, DATA2D)}\n\n{_why(WHY)}"


def ks(records: Sequence[Record]) -> str:
    """Renders Table 3, on the sine of three frames, beside the records of the study
    `baselines`."""
    ours = _ours([row for row in records if row["observation"] == "sine-3"])
    rows = [_beside(OURS, {}, ours[OURS])]
    rows += [_beside(name, theirs, ours[name]) for name, theirs in paper.KS.items()]
    return f"{render(rows, KS)}\n\n{_why(WHY_KS)}"


def _ours(records: Sequence[Record]) -> dict[str, Record]:
    """The rows of our table, by the paper's names of the methods."""
    rows = {row["label"]: row for row in means(records)}
    return rows | {OURS: rows[BASE], "PPR": rows["PPR, paper's setting"]}


def _beside(label: str, theirs: Mapping[str, float], ours: Record) -> Record:
    row: Record = {"label": label, "default": label == DEFAULT}
    for key in [key for key in KS if key != "label"]:
        as_printed, form = (SHARE, SHARE) if key == "feasible" else ("{:g}", "{:.2f}")
        value = as_printed.format(theirs[key]) if key in theirs else "–"
        row[key] = f"{value}, {form.format(ours[key])}"
    return row


def _why(reasons: Mapping[str, str]) -> str:
    """The reasons for what differs, as a list."""
    return "\n".join(["Why they differ:", "", *(f"* {k}: {v}." for k, v in reasons.items())])
