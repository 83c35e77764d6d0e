"""Runs a study or a measurement, setting after setting, resuming where a run was stopped."""

import json
import multiprocessing
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console

from feasibly.messages import describe

from . import records
from .benches import Bench
from .records import DEFAULT, TRUTH, Record, versions
from .studies import find
from .study import Measurement, Study

LABELS = ("study", "label")
"""The keys of a record that do not change a result."""


def run(study: Study, bench: Bench, settings: Sequence[Record], only: Sequence[str] = ()) -> None:
    """Runs a study on a problem, and appends a record for each setting that has none.

    Where the problem allows it, the result of the same sampler under another study or label is
    taken over, but for the default's. `only` names the labels to run; all if there are none.
    """
    console = Console()
    made_by = versions()  # once: the code that runs is the code that was loaded
    known = records.read_all(bench.problem)
    comparison = study.on[bench.problem]

    for setting in settings:
        case = None
        for label in (*comparison.samplers, TRUTH):
            options = bench.options(comparison, label, setting)
            if options is None or (only and label not in only):
                continue
            case = case or bench.case(setting)
            record: Record = {
                "study": study.name,
                "label": label,
                "default": label == DEFAULT,
                "problem": bench.problem,
                **setting,
                **options,
            }
            plan = None if label == TRUTH else case.plan(comparison.samplers[label])
            # these words tell a resumed study what has been run
            record["sampler"] = "" if plan is None else describe(plan.kernels)
            if any(_same(record, other) for other in known):
                continue
            # the default has a monitor, of which these words say nothing
            twins = (r for r in known if bench.shares and _same(record, r, LABELS))
            twin = next((r for r in twins if DEFAULT not in (label, r["label"])), None)
            if twin is not None:  # another study, or another label, has it
                records.append(study.name, bench.problem, [twin | record])
                continue
            members = options["members"]
            scores = (
                case.truth(members) if plan is None else case.score(plan, members, options["seed"])
            )
            if scores is None:
                continue
            record |= scores | {"versions": made_by}
            records.append(study.name, bench.problem, [record])
            known.append(record)
            place = " ".join(f"{value:>2}" for value in setting.values())
            console.print(f"{place} {label}: {case.line(record)}", highlight=False)


def _same(record: Record, other: Record, but: Sequence[str] = ()) -> bool:
    """Whether `other` is what a run of `record` once gave, whatever the keys `but` say."""
    keys = record.keys() - {"default", *but}
    return all(other.get(key) == record[key] for key in keys)


def measure(measurement: Measurement, labels: Sequence[str] = ()) -> None:
    """Measures every setting that has no records yet, and appends them.

    The records of a setting are written together, so that it has all of them or none. `labels`
    are those to measure, where settings have labels; all if there are none.

    Raises:
        ValueError: If there is no such label.
    """
    known_labels = {setting["label"] for setting in measurement.settings if "label" in setting}
    if unknown := sorted(set(labels) - known_labels):
        raise ValueError(f"There are no labels {unknown}; choose from {sorted(known_labels)}.")
    made_by = versions()
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
        place = ", ".join(f"{key} {value}" for key, value in setting.items())
        print(f"{place}: {len(found)} records, {time.perf_counter() - start:.1f} s", flush=True)


def _belongs(record: Record, setting: dict[str, Any]) -> bool:
    read_back = json.loads(json.dumps(setting))  # a tuple comes back as a list
    return all(key in record and record[key] == value for key, value in read_back.items())


def split(settings: Sequence[Record], jobs: int) -> list[list[Record]]:
    """Shares settings out, in runs that keep a group together where they can."""
    ends = [round(i * len(settings) / jobs) for i in range(jobs + 1)]
    return [list(settings[a:b]) for a, b in pairwise(ends) if a < b]


def share(study: Study, bench: Bench, jobs: int, only: Sequence[str]) -> None:
    """Runs a study in `jobs` processes of one thread. Each appends its records by itself, so a run
    that is stopped keeps what it has, and the same command goes on from there.

    Raises:
        ValueError: If a process fails, after all of them have ended.
    """
    tasks = [(study.name, bench, part, list(only)) for part in split(bench.settings(), jobs)]
    if len(tasks) == 1:
        work(*tasks[0])
        return
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=task) for task in tasks]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed := sum(worker.exitcode != 0 for worker in workers):
        raise ValueError(f"{failed} of {len(workers)} processes failed; their errors are above.")


def work(study: str, bench: Bench, settings: Sequence[Record], only: Sequence[str]) -> None:
    """Runs a study, by its name, on some settings."""
    torch.set_num_threads(1)
    found = find(study)
    assert isinstance(found, Study)
    run(found, bench, settings, only)
