"""The page of an audit: what was found, with rank histograms and coverage curves."""

__all__ = ["page"]

from collections.abc import Mapping, Sequence

from .. import figures
from ..report import Report
from .findings import MEANINGS, Candidate

SHOWN = 6
"""The most rank histograms of a candidate."""

RANKS = (
    "Ranks of the truths among their samples, for the quantities where they are least uniform. "
    "They should be uniform (the line): a U means that the samples are too narrow, a hump that "
    "they are too wide, a slope that they are off centre."
)
COVERED = (
    "The share of truths in regions that should contain a given share of them. The curve should "
    "follow the diagonal: below it the samples are too narrow or off centre, above it too wide."
)


def page(
    candidates: Sequence[Candidate],
    table: Sequence[Mapping[str, str]],
    texts: Sequence[str],
    members: int,
) -> Report:
    """Returns the page of an audit.

    Arguments:
        candidates: The candidates.
        table: Their numbers.
        texts: What is said of all of them.
        members: The number of members of each truth.
    """
    report = Report("feasibly: audit")
    for text in texts:
        report.text(text)
    report.table(table)
    report.text(
        "Spread is relative to the correct spread. The energy score and the CRPS measure the "
        "error of the whole ensemble: lower is better. ± is a standard error. Evaluations are "
        "forward and backward network evaluations per sample."
    )
    for candidate in candidates:
        report.heading(candidate.name)
        report.text(f"{candidate.verdict}.")
        if candidate.words:
            report.code(candidate.words)
        seen = candidate.examination
        if seen is None or not seen.findings:  # nothing was tested
            continue
        report.table(
            [
                {
                    "tested": finding.family,
                    "if calibrated": MEANINGS[finding.family],
                    "p": f"{finding.p:.2g}",
                    "adjusted": f"{finding.adjusted:.2g}",
                    "fault": finding.fault if finding.found else "none found",
                }
                for finding in seen.findings
            ]
        )
        report.figure(figures.rank_histograms(seen.ranks, members, SHOWN), RANKS)
        report.figure(figures.coverage({candidate.name: seen.covered}), COVERED)
    return report
