"""Runs a measurement: setting after setting, resuming where a run was stopped."""

__all__ = ["run"]

import json
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from . import records
from .study import Measurement
from .versions import versions


def run(measurement: Measurement, labels: Sequence[str] = ()) -> None:
    """Measures every setting that has no records yet, and appends them.

    The records of a setting are written together, so that it has all of them or none.

    Arguments:
        measurement: The measurement.
        labels: The labels to measure, where settings have labels; all by default.

    Raises:
        ValueError: If there is no such label.
    """
    known_labels = {setting["label"] for setting in measurement.settings if "label" in setting}
    if unknown := sorted(set(labels) - known_labels):
        raise ValueError(f"There are no labels {unknown}; choose from {sorted(known_labels)}.")
    console = Console()
    made_by = versions()  # once: the code that runs is the code that was loaded
    name, problem = measurement.name, measurement.problem
    known = records.known(name, problem)

    for setting in measurement.settings:
        left_out = labels and setting.get("label") not in labels
        if left_out or any(_belongs(record, setting) for record in known):
            continue
        start = time.perf_counter()
        common = {"study": name, "problem": problem, **setting}
        found = [
            common | record | {"versions": made_by} for record in measurement.measure(setting)
        ]
        records.append(name, problem, found)
        console.print(
            f"{', '.join(f'{key} {value}' for key, value in setting.items())}: "
            f"{len(found)} records, {time.perf_counter() - start:.1f} s",
            highlight=False,
            soft_wrap=True,
        )


def _belongs(record: records.Record, setting: dict[str, Any]) -> bool:
    read_back = json.loads(json.dumps(setting))  # a tuple comes back as a list
    return all(key in record and record[key] == value for key, value in read_back.items())
