"""The results of studies: one JSON object a line, one line a sampler in a setting."""

import base64
import json
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

import feasibly

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"

DEFAULT = "default"
"""The label of the library's default."""

BASE = "PPR"
"""The label that others are set against: PPR in the library's settings."""

TRUTH = "two exact sample sets"
"""The label of two samples of the truth, scored against one another."""

PRIOR = "prior, without constraint"
"""The label of what is known without an observation: samples of the prior, as they are."""

CODE = ("src", "experiments", "pyproject.toml")
"""What makes a result. Results themselves grow while a study runs."""

Record = dict[str, Any]


def path_of(study: str, problem: str) -> Path:
    """Returns the file of a study on a problem."""
    return RESULTS / problem / f"{study}.jsonl"


def read(study: str, problem: str) -> list[Record]:
    """Returns the records of a study, in the order in which they were written.

    Raises:
        ValueError: If there are none.
    """
    if not path_of(study, problem).exists():
        raise ValueError(
            f"There are no results of {study} on {problem}; make them with "
            f"`python -m experiments run {study} --problem {problem}`."
        )
    return known(study, problem)


def known(study: str, problem: str) -> list[Record]:
    """Returns the same, and none if there are none."""
    path = path_of(study, problem)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_all(problem: str) -> list[Record]:
    """Returns the records of every study of a problem."""
    paths = sorted((RESULTS / problem).glob("*.jsonl"))
    return [row for path in paths for row in known(path.stem, problem)]


def grouped(records: Iterable[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    """Returns records by their values of some keys, in the order in which these came first."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for row in records:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def averages(records: Sequence[Record], *keys: str) -> Record:
    """Returns the means of some keys, over the records that have them."""
    found = {key: [row[key] for row in records if row.get(key) is not None] for key in keys}
    return {key: fmean(values) for key, values in found.items() if values}


def append(study: str, problem: str, records: Iterable[Record]) -> None:
    """Adds records that belong together, in one write, so that a kill leaves all or none."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    path = path_of(study, problem)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def pack(x: Tensor) -> str:
    """Writes fields as text, in half precision: good enough to look at."""
    return base64.b64encode(x.cpu().numpy().astype(np.float16).tobytes()).decode()


def unpack(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """Reads what :func:`pack` wrote, with the shape that it had."""
    return np.frombuffer(base64.b64decode(text), dtype=np.float16).reshape(shape)


def same_references(rows: Sequence[Record], others: Sequence[Record]) -> bool:
    """Whether two groups of records have the same references, as far as their pictures tell.

    A reference of Kuramoto-Sivashinsky is a sample of the prior. It has a number, and changes
    where the code that samples it does.
    """
    mine, theirs = (
        {
            (row["observation"], row["reference"]): unpack(row["picture"], (-1,)).astype(float)
            for row in group
            if "picture" in row
        }
        for group in (rows, others)
    )
    return all(
        np.abs(mine[key] - theirs[key]).max() <= 0.01 * np.abs(mine[key]).max()
        for key in mine.keys() & theirs.keys()
    )


def versions() -> dict[str, str]:
    """Returns the versions of the code and the kind of machine, without its name.

    The commit has "-dirty" behind it where the code differs from it.
    """
    commit = git(ROOT, "rev-parse", "--short", "HEAD") or "unknown"
    changed = git(ROOT, "status", "--porcelain", "--", *CODE)
    return {
        "feasibly": feasibly.__version__,
        "commit": f"{commit}-dirty" if changed else commit,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }


def git(folder: Path, *arguments: str) -> str:
    """Returns what a command of git prints in a folder; empty if it fails."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
