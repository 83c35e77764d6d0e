"""Tables, from records alone."""

__all__ = ["COLUMNS", "fill", "means", "render"]

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence

from .records import Record
from .variables import parts

COLUMNS = {
    "label": ("method", "{}"),
    "settings": ("settings", "{}"),
    "feasible": ("in C (%)", "{:.1f}"),
    "feasible_worst": ("worst", "{:.1f}"),
    "in_support": ("in S (%)", "{:.1f}"),
    "joint": ("in C and S (%)", "{:.1f}"),
    "rmse": ("RMSE", "{:.3f}"),
    "rmse_error": ("its s.e.", "{:.3f}"),
    "crps": ("CRPS", "{:.3f}"),
    "skill": ("skill", "{:.3f}"),
    "spread": ("spread", "{:.3f}"),
    "ratio": ("spread / skill", "{:.2f}"),
    "rmse_ratio": ("RMSE / default's", "{:.2f}"),
    "crps_ratio": ("CRPS / default's", "{:.2f}"),
    "max_norm": ("Max-Norm", "{:.2f}"),
    "residual": ("KS residual", "{:.3f}"),
    "residual_feasible": ("of feasible members", "{:.3f}"),
    "spectrum": ("spectrum error", "{:.2f}"),
    "median": ("violation, median", "{:.2g}"),
    "excess": ("excess over the floor", "{:.2g}"),
    "mean_error": ("mean error", "{:.3f}"),
    "std": ("std / exact", "{:.3f}"),
    "cov_error": ("covariance error", "{:.2f}"),
    "sliced": ("sliced Wasserstein", "{:.3f}"),
    "knn": ("k-NN", "{:.3f}"),
    "knn_worst": ("k-NN, worst", "{:.3f}"),
    "tv": ("mass error", "{:.3f}"),
    "state_feasible": ("state: in C (%)", "{:.1f}"),
    "state_joint": ("state: in C and S (%)", "{:.1f}"),
    "state_knn": ("state: k-NN", "{:.3f}"),
    "state_tv": ("state: mass error", "{:.3f}"),
    "forward": ("forward", "{:.0f}"),
    "backward": ("backward", "{:.0f}"),
    "member_forward": ("forward a member", "{:.0f}"),
    "seconds": ("seconds", "{:.1f}"),
    "overhead": ("overhead (%)", "{:.0f}"),
}
PERCENT = (
    "feasible",
    "feasible_worst",
    "in_support",
    "joint",
    "state_feasible",
    "state_joint",
    "overhead",
)


def means(rows: Sequence[Record]) -> list[Record]:
    """Averages the settings of each label, in the order of the labels' first appearance.

    Call counts are the largest over the settings, since a budget is a bound; `feasible_worst` is
    the smallest of its values. On Data2D there are `knn_worst`, likewise, and `knn_std`, the
    standard deviation over settings. Of ensembles there are `rmse`, `skill`, `spread` and their
    `ratio`, and `crps`: cases are averaged before roots are taken, frames and then kinds of
    observation after; `rmse_error`, the standard error of the RMSE over the references of one kind
    of observation, by the jackknife; and `rmse_ratio` and `crps_ratio`, relative to the default on
    the same references, since references differ more than methods do. Their seconds are left out:
    they were taken with other work on the machine.

    Raises:
        ValueError: If the settings of a label are not each there once, or those of one kind of
            observation not made in one way; or if there are none.
    """
    if not rows:
        raise ValueError("There are no records to average.")
    table = []
    default = [row for row in rows if row["default"] and "mse" in row]
    for label in dict.fromkeys(row["label"] for row in rows):
        group = [row for row in rows if row["label"] == label]
        settings = [_setting(row) for row in group]
        kinds = {row.get("observation") for row in group}
        made_with = {(row.get("observation"), *_made_with(row)) for row in group}
        if len(set(settings)) < len(settings) or len(made_with) > len(kinds):
            raise ValueError(
                f"The records of {label!r} have settings twice, or from different runs; remove "
                "the stale lines from the file, or all of it, and run the study again."
            )
        record: Record = {k: group[0][k] for k in ("study", "label", "default", "problem")}
        record["settings"] = len(group)
        keys = dict.fromkeys(key for row in group for key in row)
        for key in keys:
            # a run that broke down has no cost
            values = [row[key] for row in group if row.get(key) is not None]
            plain = values and not isinstance(values[0], (str, dict, bool, list))
            if key in record or key in SETTING or not plain:
                continue
            worst = key in ("forward", "backward")
            record[key] = max(values) if worst else sum(values) / len(values)
        for key in ("feasible", "knn"):
            if key in group[0]:
                record[f"{key}_worst"] = min(row[key] for row in group)
        if "knn" in group[0]:
            record["knn_std"] = statistics.pstdev(row["knn"] for row in group)
        scored = [row for row in group if "mse" in row]
        if scored:
            record.pop("seconds", None)
            own = _ensembles(scored)
            record |= own | _relative(own, scored, default)
            if len(kinds) == 1 and len(scored) > 1:
                record["rmse_error"] = _jackknife(scored)
        table.append(record)
    return table


SETTING = ("prior", "constraint", "observation", "reference", "law", "number")
MADE_WITH = ("members", "seed", "pool", "weights")


def _made_with(row: Record) -> tuple:
    """How a record was made, but for the tolerance, which may be each reference's own."""
    sampler = re.sub(r"tolerance=[^,)]+", "", row.get("sampler", ""))
    return (*(row.get(key) for key in MADE_WITH), sampler)


def _ensembles(group: Sequence[Record]) -> Record:
    """The ensemble scores of some cases, averaged over time and over kinds of observation."""
    by_kind = [
        [row for row in group if row["observation"] == kind]
        for kind in dict.fromkeys(row["observation"] for row in group)
    ]
    kinds = [_scores(rows) for rows in by_kind]
    return {key: statistics.fmean(kind[key] for kind in kinds) for key in kinds[0]}


def _scores(rows: Sequence[Record]) -> Record:
    """Those of one kind of observation."""
    curves = {key: _over(rows, key) for key in ("mse", "mean_se", "variance", "crps")}
    roots = {
        new: statistics.fmean(math.sqrt(v) for v in curves[old])
        for new, old in (("rmse", "mse"), ("skill", "mean_se"), ("spread", "variance"))
    }
    correction = math.sqrt(1 + 1 / rows[0]["members"])
    ratio = correction * roots["spread"] / roots["skill"] if roots["skill"] else math.nan
    return roots | {"ratio": ratio, "crps": statistics.fmean(curves["crps"])}


def _jackknife(rows: Sequence[Record]) -> float:
    """The standard error of the RMSE over references (Efron & Stein, 1981,
    https://doi.org/10.1214/aos/1176345462)."""
    n = len(rows)
    without = [_scores([*rows[:i], *rows[i + 1 :]])["rmse"] for i in range(n)]
    return math.sqrt((n - 1) / n * sum((v - statistics.fmean(without)) ** 2 for v in without))


def _relative(own: Record, group: Sequence[Record], default: Sequence[Record]) -> Record:
    """The scores `own` of a group, relative to the default's in the same settings, if it has them
    all."""
    settings = [_setting(row) for row in group]
    shared = [row for row in default if _setting(row) in settings]
    if len(shared) < len(group):
        return {}
    base = _ensembles(shared)
    return {f"{key}_ratio": own[key] / base[key] for key in ("rmse", "crps")}


def _setting(row: Record) -> tuple:
    return tuple(row.get(key) for key in SETTING)


def _over(rows: Sequence[Record], key: str) -> list[float]:
    """The mean over cases, frame by frame."""
    return [statistics.fmean(values) for values in zip(*(row[key] for row in rows), strict=True)]


def render(rows: Sequence[Record], form: str = "markdown") -> str:
    """Renders rows as a table, with the columns that any of them has a value for.

    Arguments:
        rows: The rows, such as :func:`means` returns.
        form: `markdown` or `latex`.
    """
    columns = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    heads = [COLUMNS[key][0] for key in columns]
    cells = [[_cell(row, key) for key in columns] for row in rows]
    bold = [row["default"] for row in rows]
    return (_latex if form == "latex" else _markdown)(heads, cells, bold)


def _cell(row: Record, key: str) -> str:
    value = row.get(key)
    if value is None:
        return ""
    return COLUMNS[key][1].format(value * 100 if key in PERCENT else value)


def _markdown(heads: list[str], cells: list[list[str]], bold: list[bool]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for (label, *others), strong in zip(cells, bold, strict=True):
        lines.append("| " + " | ".join([f"**{label}**" if strong else label, *others]) + " |")
    return "\n".join(lines)


def _latex(heads: list[str], cells: list[list[str]], bold: list[bool]) -> str:
    lines = [
        r"\begin{tabular}{l" + "r" * (len(heads) - 1) + "}",
        r"\toprule",
        " & ".join(_escaped(head) for head in heads) + r" \\",
        r"\midrule",
    ]
    for (label, *others), strong in zip(cells, bold, strict=True):
        first = rf"\textbf{{{_escaped(label)}}}" if strong else _escaped(label)
        lines.append(" & ".join([first, *others]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _escaped(text: str) -> str:
    return re.sub(r"[%_&#^$]", lambda match: rf"\{match[0]}" if match[0] != "^" else r"\^{}", text)


MARK = re.compile(
    r"(<!-- table: ([\w-]+) (\w+)(?:/([\w/-]+))?(?:; ([^>]*))? -->\n).*?(<!-- end -->)", re.DOTALL
)
MADE = re.compile(r"(<!-- made: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(
    page: str,
    read: Callable[[str, str], list[Record]],
    makers: Mapping[str, Callable[[], str]] | None = None,
) -> str:
    """Writes the tables of a page between their marks.

    A mark reads `<!-- table: STUDY PROBLEM -->`, or `<!-- table: STUDY PROBLEM; LABEL; ... -->`
    for some rows only, with `PROBLEM/OBSERVATION` for one kind of observation (of the weather
    `PROBLEM/OBSERVATION/VARIABLE`), or `<!-- made: NAME -->`, and ends with `<!-- end -->`.

    Arguments:
        page: The text of the page.
        read: How to get the records of a study on a problem.
        makers: What makes the tables that have a name.
    """

    def table(match: re.Match[str]) -> str:
        found = [row for _, part in parts(read(match[2], match[3])) for row in part]
        if match[4]:
            found = [row for row in found if match[4] in (row.get("observation"), row.get("law"))]
        rows = means(found)
        if match[5]:
            wanted = [label.strip() for label in match[5].split(";")]
            known = {row["label"]: row for row in rows}
            if not set(wanted) <= set(known):
                raise ValueError(
                    f"A page asks for rows {sorted(set(wanted) - set(known))} of {match[2]} on "
                    f"{match[3]}, which has {list(known)}; run the study or change the mark."
                )
            rows = [known[label] for label in wanted]
        return f"{match[1]}{render(rows)}\n{match[6]}"

    def made(match: re.Match[str]) -> str:
        return f"{match[1]}{(makers or {})[match[2]]()}\n{match[3]}"

    return MADE.sub(made, MARK.sub(table, page))
