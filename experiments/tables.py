"""Tables, from records alone."""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence

from .records import BASE, Record, grouped, same_references

Columns = Mapping[str, tuple[str, str]]
"""For each key of a row, the head and the format of its column, which is :data:`TEXT` where cells
are words."""

SHARE, TEXT = "{:.1%}", "{:s}"

ALL: Columns = {
    "label": ("method", "{}"),
    "settings": ("settings", "{}"),
    "feasible": ("feasible", SHARE),
    "on_manifold": ("on-manifold", SHARE),
    "joint": ("both", SHARE),
    "rmse": ("RMSE", "{:.3f}"),
    "crps": ("CRPS", "{:.3f}"),
    "skill": ("skill", "{:.3f}"),
    "spread": ("spread", "{:.3f}"),
    "ratio": ("spread / skill", "{:.2f}"),
    "rmse_to": ("RMSE / PPR's", TEXT),
    "crps_ratio": ("CRPS / PPR's", "{:.2f}"),
    "max_norm": ("Max-Norm", "{:.2f}"),
    "residual": ("KS residual", "{:.3f}"),
    "residual_feasible": ("of feasible members", "{:.3f}"),
    "spectrum": ("spectrum error", "{:.2f}"),
    "violation_median": ("violation, median", "{:.2g}"),
    "excess": ("excess over the floor", "{:.2g}"),
    "mean_error": ("mean error", "{:.3f}"),
    "std": ("std / exact", "{:.3f}"),
    "cov_error": ("covariance error", "{:.2f}"),
    "sliced": ("sliced Wasserstein", "{:.3f}"),
    "knn": ("k-NN", "{:.3f}"),
    "weight_error": ("weight error", "{:.3f}"),
    "state_feasible": ("state: feasible", SHARE),
    "state_joint": ("state: both", SHARE),
    "state_knn": ("state: k-NN", "{:.3f}"),
    "state_weight_error": ("state: weight error", "{:.3f}"),
    "evaluations": ("evaluations", "{}"),
    "seconds": ("seconds", "{:.1f}"),
    "overhead": ("overhead", "{:.0%}"),
}
"""The columns of comparisons. *Both* is feasible and on-manifold; *evaluations* are those of the
network a member, forward + backward."""


def pick(*keys: str) -> Columns:
    """Returns some of :data:`ALL`, after the label."""
    return {key: ALL[key] for key in ("label", *keys)}


COLUMNS: Mapping[str, Columns] = {
    "data2d": pick("feasible", "on_manifold", "joint", "knn", "weight_error", "evaluations"),
    "oracles": pick("feasible", "mean_error", "std", "sliced", "weight_error", "evaluations"),
    "ks": pick("settings", "feasible", "on_manifold", "rmse", "rmse_to", "evaluations"),
    "weather": pick(
        "feasible", "rmse", "crps", "ratio", "violation_median", "excess", "evaluations"
    ),
}
"""What the tables of most studies show, by problem."""


def means(rows: Sequence[Record]) -> list[Record]:
    """Averages the settings of each label, in the order of the labels' first appearance.

    `forward` and `backward` are the largest over the settings, since a budget is a bound, and
    `evaluations` the means a member. Of ensembles there are `rmse`, `skill`, `spread` and their
    `ratio`, and `crps`: cases are averaged before roots are taken, frames and then kinds of
    observation after. `rmse_ratio` and `crps_ratio` are relative to PPR on the same references,
    since references differ more than methods do, and `rmse_to` is the first with its standard
    error over the references of one kind of observation. The seconds of ensembles are left out:
    they were taken with other work on the machine.

    Raises:
        ValueError: If the settings of a label are not each there once, or those of one kind of
            observation not made in one way; or if there are none.
    """
    if not rows:
        raise ValueError("There are no records to average.")
    table = []
    base = [row for row in rows if row["label"] == BASE and "mse" in row]
    for (label,), group in grouped(rows, "label").items():
        kinds = {row.get("observation") for row in group}
        made_with = {(row.get("observation"), *_made_with(row)) for row in group}
        if len(set(map(_setting, group))) < len(group) or len(made_with) > len(kinds):
            raise ValueError(
                f"The records of {label!r} have settings twice, or from different runs; remove "
                "the stale lines from the file, or all of it, and run the study again."
            )
        record: Record = {k: group[0][k] for k in ("study", "label", "default", "problem")}
        record["settings"] = len(group)
        for key in dict.fromkeys(key for row in group for key in row):
            # a run that broke down has no cost
            values = [row[key] for row in group if row.get(key) is not None]
            plain = values and not isinstance(values[0], (str, dict, bool, list))
            if key in record or key in SETTING or not plain:
                continue
            worst = key in ("forward", "backward")
            record[key] = max(values) if worst else sum(values) / len(values)
        if "member_forward" in record:
            counts = (record["member_forward"], record["member_backward"])
            record["evaluations"] = "{:.0f} + {:.0f}".format(*counts)
        if scored := [row for row in group if "mse" in row]:
            record.pop("seconds", None)
            own = _ensembles(scored)
            record |= own | _relative(own, scored, base)
        table.append(record)
    return table


SETTING = ("prior", "constraint", "observation", "reference", "posterior", "number")
MADE_WITH = ("members", "seed", "pool", "weights")


def _made_with(row: Record) -> tuple:
    """How a record was made, but for the tolerance, which may be each reference's own, and for
    what the policy measures on each problem."""
    own = r"(tolerance|particles|begun|drawn|branch|weigh\w+|compared|halved|level|spread)=[^,)]+"
    sampler = re.sub(own, "", row.get("sampler", ""))
    return (*(row.get(key) for key in MADE_WITH), sampler)


def _ensembles(group: Sequence[Record]) -> Record:
    """The ensemble scores of some cases, averaged over time and over kinds of observation."""
    kinds = [_scores(rows) for rows in grouped(group, "observation").values()]
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


def _error(statistic: Callable[[Sequence[int]], float], n: int) -> float:
    """The standard error of a statistic of n cases, by the jackknife (Efron & Stein, 1981,
    https://doi.org/10.1214/aos/1176345462)."""
    without = [statistic([j for j in range(n) if j != i]) for i in range(n)]
    return math.sqrt((n - 1) / n * sum((v - statistics.fmean(without)) ** 2 for v in without))


def _relative(own: Record, group: Sequence[Record], base: Sequence[Record]) -> Record:
    """The scores `own` of a group, relative to PPR's in the same settings, if it has them all
    and with the same references."""
    known = {_setting(row): row for row in base}
    if any(_setting(row) not in known for row in group):
        return {}
    shared = [known[_setting(row)] for row in group]
    if not same_references(group, shared):
        return {}
    theirs = _ensembles(shared)
    found: Record = {f"{key}_ratio": own[key] / theirs[key] for key in ("rmse", "crps")}
    found["rmse_to"] = f"{found['rmse_ratio']:.2f}"
    if len(group) > 1 and len({row["observation"] for row in group}) == 1 and group != shared:

        def ratio(kept: Sequence[int]) -> float:
            pair = (_scores([rows[i] for i in kept])["rmse"] for rows in (group, shared))
            return next(pair) / next(pair)

        found["rmse_to"] += f" ± {_error(ratio, len(group)):.2f}"
    return found


def _setting(row: Record) -> tuple:
    return tuple(row.get(key) for key in SETTING)


def _over(rows: Sequence[Record], key: str) -> list[float]:
    """The mean over cases, frame by frame."""
    return [statistics.fmean(values) for values in zip(*(row[key] for row in rows), strict=True)]


def quantiles(values: Sequence[float]) -> str:
    """Renders the median, and the least value that nine in ten do not exceed."""
    ordered = sorted(values)
    ninety = ordered[-(-9 * len(ordered) // 10) - 1]
    return f"{statistics.median(ordered):.2f} / {ninety:.2f}"


def render(rows: Sequence[Record], columns: Columns = ALL) -> str:
    """Renders rows as a Markdown table, with those of the columns that any row has a value for.
    The default's row is bold.
    """
    columns = {k: v for k, v in columns.items() if any(row.get(k) is not None for row in rows)}
    left = [i == 0 or form == TEXT for i, (_, form) in enumerate(columns.values())]
    rule = "".join("|---" if yes else "|---:" for yes in left)
    lines = [_line([head for head, _ in columns.values()]), f"{rule}|"]
    for row in rows:
        label, *others = (
            "" if row.get(key) is None else form.format(row[key])
            for key, (_, form) in columns.items()
        )
        lines.append(_line([f"**{label}**" if row.get("default") else label, *others]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


UNITS = {"geopotential": "m²/s²", "u": "m/s", "v": "m/s"}
"""The variables of the weather, and what their scores are in."""

SHOWN = (0, 6, 12, 18, 23)
"""The hours of the weather's pictures."""

SCORES = ("mse", "mean_se", "variance", "crps", "ranks")

DAYTIME = slice(6, 19)
"""The hours that tables average: from six hours before noon to six after."""


def split(rows: Sequence[Record], hours: slice = slice(None)) -> list[Record]:
    """Returns a record for each variable, as if it were an observation of its own. Where there is
    an excess over a floor, it stands in place of the violation.
    """
    return [
        {k: v for k, v in row.items() if k != "violation_median" or "excess" not in row}
        | {"observation": f"{row['observation']}/{name}"}
        | {
            key: row[key][v] if key == "ranks" else row[key][v][hours]
            for key in SCORES
            if key in row
        }
        for row in rows
        for v, name in enumerate(UNITS)
    ]


def parts(rows: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Returns what tables show apart, by name: each variable of each observation of the weather,
    from hour 6 to hour 18; each posterior of the oracles and of the exact problems; each ensemble
    of the heat equation, which has a seed of its own; all records of others."""
    problem = rows[0]["problem"] if rows else ""
    apart = {"oracles": "posterior", "exact": "posterior", "weather": "observation"}
    if problem == "heat":
        found = grouped(rows, "case", "number")
        return [(f"{case}, {number}", group) for (case, number), group in found.items()]
    if problem not in apart:
        return [("", list(rows))]
    rows = split(rows, DAYTIME) if problem == "weather" else rows
    return [(name, group) for (name,), group in grouped(rows, apart[problem]).items()]
