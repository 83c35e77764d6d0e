"""The result of an audit: a verdict for each candidate, and a recommendation."""

__all__ = ["Audit", "recommend"]

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..calibration import Estimate
from .findings import Candidate, Examination
from .page import page

FEASIBLE = 0.99
"""The share of feasible members that a recommended candidate has, if one has it."""

CONFIDENCE = 1.645
"""The regret is below what is told in 95 audits of 100: so many standard errors beyond."""


@dataclass(frozen=True)
class Audit:
    r"""What an audit found.

    Attributes:
        candidates: The candidates, in the order in which they were given.
        truths: The truths, with shape (N, \*).
        members: The number of members of each truth.
        level: The probability of finding a fault in any candidate if all are right.
        best: What `feasibly.sample(method=...)` takes for the recommended candidate; None if
            none could run.
        recommended: Its name; empty if there is none.
        regret: By which share its energy score may be above the least of the candidates, with 95 %
            confidence.
        model: With data, the same tests of the model's own samples without the constraint.
        notes: What a user must know besides, in sentences.
    """

    candidates: tuple[Candidate, ...]
    truths: Tensor = field(repr=False)
    members: int
    level: float
    best: Any
    recommended: str
    regret: float
    model: Candidate | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Candidate:
        """Returns the candidate of this name."""
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        names = ", ".join(candidate.name for candidate in self.candidates)
        raise KeyError(f"There is no candidate {name!r}; there are {names}.")

    @property
    def recommendation(self) -> str:
        """Which candidate to use, and what that may cost, in a sentence."""
        if not self.recommended:
            return "No candidate could be audited."
        chosen = self[self.recommended]
        faulty = chosen.examination is not None and chosen.examination.faulty
        but = ", though it has faults: none without scores as well" if faulty else ""
        more = sum(c.examination is not None for c in self.candidates) > 1
        regret = (
            f" Its energy score is at most {self.regret:.1%} above the best candidate's (95 % "
            "confidence)."
            if more
            else ""
        )
        return f"Use {self.recommended}{but}.{regret}"

    def table(self) -> list[dict[str, str]]:
        """Returns the numbers, a row for each candidate."""
        return [_row(c) for c in (*self.candidates, *([self.model] if self.model else []))]

    def __str__(self) -> str:
        rows = self.table()
        widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in rows[0]}
        lines = ["  ".join(key.ljust(width) for key, width in widths.items())]
        lines += ["  ".join(row[key].ljust(w) for key, w in widths.items()) for row in rows]
        everyone = (*self.candidates, *([self.model] if self.model else []))
        verdicts = [f"{c.name}: {c.verdict}." for c in everyone]
        head = (
            f"{len(self.truths)} truths with {self.members} members each; if all were right, a "
            f"fault would be found with probability {self.level:.0%}"
        )
        texts = [head, *lines, *verdicts, self.recommendation, *self.notes]
        return "\n".join(line.rstrip() for line in texts)

    def save_html(self, path: Path | str) -> None:
        """Writes a page with rank histograms, coverage curves and what each means."""
        everyone = (*self.candidates, *([self.model] if self.model else []))
        head, *_ = str(self).split("\n")
        texts = (head + ".", self.recommendation, *self.notes)
        page(everyone, self.table(), texts, self.members).write(Path(path))


def _row(c: Candidate) -> dict[str, str]:
    seen, plausible = c.examination, c.plausible
    row = {
        "method": c.name,
        "spread": "-" if seen is None else _shown(seen.ratio),
        "energy score": "-" if seen is None else _shown(seen.energy),
        "CRPS": "-" if seen is None else _shown(seen.crps),
        "feasible": "-" if math.isnan(c.feasible) else f"{c.feasible:.1%}",
        "plausible": "-" if plausible is None else f"{plausible:.1%}",
        "evaluations": "-" if math.isnan(c.evaluations) else f"{c.evaluations:.0f}",
    }
    return row


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} ± {estimate.error:.1g}"


def recommend(candidates: Sequence[Candidate]) -> tuple[Candidate | None, float]:
    """Returns the candidate to use and its regret.

    Candidates need feasible members. Those whose energy score is above the least with 95 %
    confidence are out. The score counts faults by their size, so that one too small to matter
    costs no recommendation. Of the others, those without a fault come first. Of these it is the
    one of the least score, or one within a standard error of it that takes fewer evaluations. If
    all have faults, it is the one of the least score.

    Arguments:
        candidates: The candidates.
    """
    ran = [(c, c.examination) for c in candidates if c.examination is not None]
    if not ran:
        return None, math.nan
    most = max(c.feasible for c, _ in ran)
    able = [(c, seen) for c, seen in ran if c.feasible >= min(FEASIBLE, most)]
    near = _near(able, CONFIDENCE)
    sound = [(c, seen) for c, seen in near if not seen.faulty]
    close = _near(sound, 1.0) if sound else _near(near, 0.0)
    chosen = min(close, key=lambda one: one[0].evaluations)
    regret = 0.0
    for other, seen in ran:
        if other is not chosen[0]:
            gap = _gap(chosen[1], seen)
            worst = gap.value + CONFIDENCE * gap.error
            regret = max(regret, worst / max(abs(seen.energy.value), 1e-300))
    return chosen[0], regret


Scored = tuple[Candidate, Examination]


def _near(scored: Sequence[Scored], errors: float) -> list[Scored]:
    """Returns those whose energy score is above the least by so many standard errors at most."""
    least = min(scored, key=lambda one: one[1].energy.value)
    gaps = [(one, _gap(one[1], least[1])) for one in scored]
    return [one for one, gap in gaps if gap.value <= errors * gap.error or one is least]


def _gap(a: Examination, b: Examination) -> Estimate:
    """The difference of two energy scores on the same truths."""
    apart = a.scores - b.scores
    apart = apart[torch.isfinite(apart)]
    if len(apart) < 2:
        return Estimate(math.inf, math.inf)
    return Estimate(apart.mean().item(), (apart.std() / math.sqrt(len(apart))).item())
