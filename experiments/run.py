"""Runs a study: every sampler in every setting, resuming where a run was stopped."""

__all__ = ["run"]

from collections.abc import Sequence

from rich.console import Console

from feasibly.sampling import describe

from . import records
from .benches import Bench
from .records import DEFAULT, TRUTH, Record
from .study import Study
from .versions import versions


def run(study: Study, bench: Bench, settings: Sequence[Record], only: Sequence[str] = ()) -> None:
    """Runs a study on a problem, and appends a record for each setting that has none.

    Where the problem allows it, the result of the same sampler under another study or label is
    taken over.

    Arguments:
        study: The study.
        bench: The problem.
        settings: The settings, of those of the problem.
        only: The labels to run; all by default.
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
            record["sampler"] = "" if plan is None else describe(plan.attempts)
            if any(_same(record, other) for other in known):
                continue
            twin = next((r for r in known if bench.shares and _same(record, r, LABELS)), None)
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


LABELS = ("study", "label")
"""The keys of a record that do not change a result."""


def _same(record: Record, other: Record, but: Sequence[str] = ()) -> bool:
    """Whether `other` is what a run of `record` once gave, whatever the keys `but` say."""
    keys = record.keys() - {"default", *but}
    return all(other.get(key) == record[key] for key in keys)
