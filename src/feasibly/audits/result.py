"""The result of an audit: a verdict for each candidate, and a recommendation."""

__all__ = ["Audit", "difference", "recommend"]

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..calibration import Estimate
from ..result import aligned
from .findings import FEASIBLE, Candidate, Examination
from .page import page

CONFIDENCE = 1.645
"""So many standard errors above its estimate, the regret is overstated in 95 audits of 100."""


@dataclass(frozen=True)
class Audit:
    r"""What an audit found.

    Attributes:
        candidates: The candidates, in the order in which they were given.
        truths: The truths, with shape (N, \*).
        members: The number of members of each truth.
        level: The probability of finding a fault in any candidate if all are right.
        best: What `feasibly.sample(method=...)` takes for the recommended candidate; None if none
            could run.
        recommended: Its name; empty if there is none.
        regret: By which share its energy score may be above the least of the candidates, with 95 %
            confidence.
        cheaper: The name of a candidate that takes fewer evaluations, of which no fault was found
            and whose score is not surely above; empty if there is none.
        model: With data, the same tests of the model's own samples without the constraint.
        notes: What a user must know besides, in sentences.

    Example:
        >>> method, options = feasibly.samplers.PostHoc(steps=8), {"truths": 16, "monitor": False}
        >>> found = feasibly.audit(denoiser, circle, (2,), methods=[method], members=2, **options)
        >>> [candidate.name for candidate in found.candidates], found.truths.shape
        (['PostHoc'], torch.Size([16, 2]))
    """

    candidates: tuple[Candidate, ...]
    truths: Tensor = field(repr=False)
    members: int
    level: float
    best: Any
    recommended: str
    regret: float
    cheaper: str = ""
    model: Candidate | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Candidate:
        """Returns the candidate of this name."""
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        names = ", ".join(candidate.name for candidate in self.candidates)
        raise KeyError(f"There is no candidate {name!r}; choose one of {names}.")

    @property
    def recommendation(self) -> str:
        """Which candidate to use, and what that may cost, in a sentence."""
        if not self.recommended:
            return "No candidate could be audited."
        chosen = self[self.recommended]
        use = f"Use {chosen.name}."
        if chosen.faulty:
            few = chosen.feasible < FEASIBLE
            why = (
                f"only {chosen.feasible:.1%} of its samples are feasible"
                if few
                else "it is miscalibrated"
            )
            others = len(self.candidates) > 1 and not few
            none = (
                ", and no candidate without miscalibration has as low an energy score"
                if others
                else ""
            )
            use = (
                f"{chosen.name} comes closest, but {why}{none}. Do not use its samples as samples "
                "of the constrained distribution."
            )
        more = sum(c.examination is not None for c in self.candidates) > 1
        regret = ""
        if more and self.regret > 0:
            regret = (
                f" Its energy score is at most {self.regret:.1%} above that of the best candidate "
                "(95 % confidence)."
            )
        elif more:
            regret = " Its energy score is the lowest, with 95 % confidence."
        cheap = ""
        if self.cheaper:
            costs = [f"{self[c].evaluations:.0f}" for c in (self.cheaper, self.recommended)]
            cheap = (
                f" {self.cheaper} takes {costs[0]} evaluations per sample instead of {costs[1]}, "
                "and no miscalibration was found for it either."
            )
        return f"{use}{regret}{cheap}"

    @property
    def tested(self) -> tuple[Candidate, ...]:
        """The candidates, and with data the model's own samples."""
        return self.candidates if self.model is None else (*self.candidates, self.model)

    def table(self) -> list[dict[str, str]]:
        """Returns the numbers, a row for each that was tested."""
        return [_row(c) for c in self.tested]

    def __str__(self) -> str:
        lines = aligned(self.table())
        verdicts = [f"{c.name}: {c.verdict}." for c in self.tested]
        head = (
            f"{len(self.truths)} truths with {self.members} samples each; if all candidates were "
            f"calibrated, a miscalibration would be reported with probability {self.level:.0%} at "
            "most"
        )
        texts = [head, *lines, *verdicts, self.recommendation, *self.notes]
        return "\n".join(line.rstrip() for line in texts)

    def save_html(self, path: Path | str) -> None:
        """Writes a page with rank histograms, coverage curves and what each means."""
        head, *_ = str(self).split("\n")
        texts = (head + ".", self.recommendation, *self.notes)
        page(self.tested, self.table(), texts, self.members).write(Path(path))


def _row(c: Candidate) -> dict[str, str]:
    seen, plausible = c.examination, c.plausible
    return {
        "method": c.name,
        "spread": "-" if seen is None else _shown(seen.ratio),
        "energy score": "-" if seen is None else _shown(seen.energy),
        "CRPS": "-" if seen is None else _shown(seen.crps),
        "feasible": "-" if math.isnan(c.feasible) else f"{c.feasible:.1%}",
        "plausible": "-" if plausible is None else f"{plausible:.1%}",
        "evaluations": "-" if math.isnan(c.evaluations) else f"{c.evaluations:.0f}",
    }


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} ± {estimate.error:.1g}"


def recommend(
    candidates: Sequence[Candidate],
) -> tuple[Candidate | None, float, Candidate | None]:
    """Returns the candidate to use, its regret, and one that is cheaper and may be as good.

    Candidates without feasible members, and those whose energy score is above the least with 95 %
    confidence, are out. Of the others, it is the first without a fault, since they are given best
    first; if all have faults, it is the one of the least score.
    """
    ran = [(c, c.examination) for c in candidates if c.examination is not None]
    if not ran:
        return None, math.nan, None
    most = max(c.feasible for c, _ in ran)
    able = [(c, seen) for c, seen in ran if c.feasible >= min(FEASIBLE, most)]
    least = min(able, key=lambda one: one[1].energy.value)
    gaps = [(one, difference(one[1], least[1])) for one in able]
    near = [one for one, gap in gaps if gap.value <= CONFIDENCE * gap.error or one is least]
    sound = [(c, seen) for c, seen in near if not seen.faulty]
    chosen = sound[0] if sound else least
    regret = 0.0
    for other, seen in ran:
        if other is not chosen[0]:
            gap = difference(chosen[1], seen)
            worst = gap.value + CONFIDENCE * gap.error
            regret = max(regret, worst / max(abs(seen.energy.value), 1e-300))
    cheapest = min([chosen, *sound], key=lambda one: one[0].evaluations)[0]
    return chosen[0], regret, None if cheapest is chosen[0] else cheapest


def difference(a: Examination, b: Examination) -> Estimate:
    """The difference of two energy scores on the same truths."""
    apart = a.scores - b.scores
    apart = apart[torch.isfinite(apart)]
    if len(apart) < 2:
        return Estimate(math.inf, math.inf)
    return Estimate(apart.mean().item(), (apart.std() / math.sqrt(len(apart))).item())
