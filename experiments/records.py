"""The results of studies: one JSON object a line, one line a setting."""

__all__ = ["RESULTS", "Record", "append", "append_all", "read", "read_all"]

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"

Record = dict[str, Any]


def path_of(study: str, problem: str) -> Path:
    """Returns the file of a study on a problem."""
    return RESULTS / problem / f"{study}.jsonl"


def read(study: str, problem: str) -> list[Record]:
    """Returns the records of a study, in the order in which they were written."""
    path = path_of(study, problem)
    if not path.exists():
        raise ValueError(
            f"There are no results of {study} on {problem}; make them with "
            f"`python -m experiments run {study} --problem {problem}`."
        )
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_all(problem: str) -> list[Record]:
    """Returns the records of every study of a problem."""
    paths = sorted((RESULTS / problem).glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def append(study: str, problem: str, record: Record) -> None:
    """Adds a record."""
    append_all(study, problem, [record])


def append_all(study: str, problem: str, records: Iterable[Record]) -> None:
    """Adds records that belong together, in one write, so that a kill leaves all or none."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    path = path_of(study, problem)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
