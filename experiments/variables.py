"""Records as tables show them apart: those of several variables as records of one each."""

__all__ = ["SHOWN", "UNITS", "parts", "split"]

from collections.abc import Sequence

from .records import Record

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

    Arguments:
        rows: Records whose scores are nested lists, by variable and hour.
        hours: The hours to keep.
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
    if problem not in ("weather", "oracles", "exact", "heat"):
        return [("", list(rows))]
    apart = split(rows, DAYTIME) if problem == "weather" else list(rows)

    def kind(row: Record) -> str:
        if problem == "heat":
            return f"{row['case']}, {row['number']}"
        return row["observation" if problem == "weather" else "posterior"]

    kinds = dict.fromkeys(map(kind, apart))
    return [(name, [row for row in apart if kind(row) == name]) for name in kinds]
