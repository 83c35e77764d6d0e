"""Runs a study: every sampler in every setting, resuming where a run was stopped."""

__all__ = ["TRUTH", "run"]

from collections.abc import Sequence
from functools import partial

from rich.console import Console

from . import records
from .benches import Bench
from .studies.base import Study
from .versions import versions

TRUTH = "truth against itself"


def run(
    study: Study, bench: Bench, settings: Sequence[records.Record], only: Sequence[str] = ()
) -> None:
    """Runs a study on a problem, and appends a record for each setting that has none.

    Arguments:
        study: The study.
        bench: The problem.
        settings: The settings, of those of the problem.
        only: The labels to run; all by default.
    """
    console = Console()
    made_by = versions()  # once: the code that runs is the code that was loaded
    path = records.path_of(study.name, bench.problem)
    known = records.read(study.name, bench.problem) if path.exists() else []

    for setting in settings:
        case = None
        for label in (*study.samplers, TRUTH):
            options = bench.options(study, label, setting)
            if options is None or (only and label not in only):
                continue
            case = case or bench.case(setting)
            record: records.Record = {
                "study": study.name,
                "label": label,
                "default": label == study.default,
                "problem": bench.problem,
                **setting,
                **options,
            }
            make = None
            if label != TRUTH:
                make = partial(study.samplers[label], case.denoiser, case.constraint)
            record["sampler"] = "" if make is None else case.name(make)
            if any(_same(record, other) for other in known):
                continue
            members = options["members"]
            scores = (
                case.truth(members) if make is None else case.score(make, members, options["seed"])
            )
            if scores is None:
                continue
            record |= scores
            records.append(study.name, bench.problem, record | {"versions": made_by})
            place = " ".join(f"{value:>2}" for value in setting.values())
            console.print(f"{place} {label}: {case.line(record)}", highlight=False)


def _same(record: records.Record, other: records.Record) -> bool:
    """Whether `other` is what a run of `record` once gave."""
    return all(other.get(key) == value for key, value in record.items() if key != "default")
