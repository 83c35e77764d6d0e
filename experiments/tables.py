"""Tables, from records alone."""

__all__ = ["fill", "means", "render"]

import re
from collections.abc import Callable, Sequence

from .records import Record

COLUMNS = {
    "label": ("projection", "{}"),
    "settings": ("settings", "{}"),
    "feasible": ("in C (%)", "{:.1f}"),
    "feasible_worst": ("worst", "{:.1f}"),
    "in_support": ("in S (%)", "{:.1f}"),
    "joint": ("in C and S (%)", "{:.1f}"),
    "knn": ("k-NN", "{:.3f}"),
    "knn_worst": ("k-NN, worst", "{:.3f}"),
    "tv": ("mass error", "{:.3f}"),
    "forward": ("forward", "{:.0f}"),
    "backward": ("backward", "{:.0f}"),
    "member_forward": ("forward a member", "{:.0f}"),
    "seconds": ("seconds", "{:.1f}"),
    "overhead": ("overhead (%)", "{:.0f}"),
}
PERCENT = ("feasible", "feasible_worst", "in_support", "joint", "overhead")


def means(rows: Sequence[Record]) -> list[Record]:
    """Averages the settings of each label, in the order of the labels' first appearance.

    Call counts are the largest over the settings, since a budget is a bound; `feasible_worst`,
    `joint_worst` and `knn_worst` are the smallest of their values.

    Raises:
        ValueError: If the settings of a label are not each there once, made in one way.
    """
    table = []
    for label in dict.fromkeys(row["label"] for row in rows):
        group = [row for row in rows if row["label"] == label]
        settings = [(row["prior"], row["constraint"]) for row in group]
        made_with = {(row["members"], row["seed"], row["pool"], row["sampler"]) for row in group}
        if len(set(settings)) < len(settings) or len(made_with) > 1:
            raise ValueError(
                f"The records of {label!r} have settings twice, or from different runs; remove "
                "the stale lines from the file, or all of it, and run the study again."
            )
        record: Record = {k: group[0][k] for k in ("study", "label", "default", "problem")}
        record["settings"] = len(group)
        keys = dict.fromkeys(key for row in group for key in row)
        for key in keys:
            values = [row[key] for row in group if key in row]  # a broken run has no cost
            if key in record or isinstance(values[0], (str, dict, bool)) or key == "constraint":
                continue
            worst = key in ("forward", "backward")
            record[key] = max(values) if worst else sum(values) / len(values)
        for key in ("feasible", "joint", "knn"):
            record[f"{key}_worst"] = min(row[key] for row in group)
        table.append(record)
    return table


def render(rows: Sequence[Record]) -> str:
    """Renders rows as a Markdown table."""
    lines = ["| " + " | ".join(head for head, _ in COLUMNS.values()) + " |"]
    lines.append("|" + "---|" + "---:|" * (len(COLUMNS) - 1))
    for row in rows:
        cells = []
        for key, (_, form) in COLUMNS.items():
            value = row.get(key)
            scale = 100 if key in PERCENT else 1
            cells.append(
                ""
                if value is None
                else form.format(value * scale)
                if key != "label"
                else f"**{value}**"
                if row["default"]
                else value
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


MARK = re.compile(r"(<!-- table: (\w+) (\w+)(?:; ([^>]*))? -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str, read: Callable[[str, str], list[Record]]) -> str:
    """Writes the tables of a page between their marks.

    A mark reads `<!-- table: STUDY PROBLEM -->`, or `<!-- table: STUDY PROBLEM; LABEL; ... -->`
    for some rows only, and ends with `<!-- end -->`.

    Arguments:
        page: The text of the page.
        read: How to get the records of a study on a problem.
    """

    def table(match: re.Match[str]) -> str:
        rows = means(read(match[2], match[3]))
        if match[4]:
            wanted = [label.strip() for label in match[4].split(";")]
            rows = [next(row for row in rows if row["label"] == label) for label in wanted]
        return f"{match[1]}{render(rows)}\n{match[5]}"

    return MARK.sub(table, page)
