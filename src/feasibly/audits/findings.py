"""What an audit finds of one candidate: tests, sizes of faults, and a verdict in words."""

__all__ = ["Candidate", "Examination", "Finding", "examine", "summarised"]

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import calibration
from ..calibration import Estimate
from ..errors import several
from ..metrics import crps_of_each
from ..randomness import generator

DIRECTIONS, ELEMENTS, PROJECTIONS = 16, 8, 8
"""The most principal directions, elements of a sample and random projections that are tested."""

PLACES = 8
"""The number of free principal directions in which clusters are found."""

POWER = 0.84
"""Beyond its critical value, a sum must have a mean of so many standard deviations to be found in
four audits of five."""

MOST = 1e30
"""The largest oddness that counts, so that sums are finite."""

ALIKE = 1e-3
"""Oddness that differs by this share is equal: what the tolerance allows changes it."""

LARGEST = 4096
"""The most entries whose neighbours are looked for."""

FEASIBLE = 0.99
"""The share of feasible members that a recommended candidate has, if one has it."""

FLOOR = 0.1
"""Directions in which members vary by less than this share of the move onto their statements are
left out."""

MEANINGS = {
    "spread": "Samples are as far from one another as the truth is from them.",
    "centre": "The truth lies above the samples as often as below.",
    "coverage": "Regions that should contain a share of the truths contain that share.",
    "modes": "Clusters contain the same share of the truths as of the samples.",
    "neighbours": "Truths are no nearer to one another than to samples.",
    "support": "Samples are as near to other samples as truths are, and as plausible.",
    "summaries": "Summaries of the truth, yours among them, rank uniformly among the samples'.",
}
"""What each family of tests asks, as it is if nothing is wrong."""


@dataclass(frozen=True)
class Finding:
    """The result of a family of tests.

    Attributes:
        family: Its name, a key of `MEANINGS`.
        p: The p-value of the largest of its standardised sums.
        adjusted: The p-value adjusted for the number of families.
        fault: What is wrong if something is, in words with the size.
        found: Whether it is.

    Example:
        >>> draws = torch.randn(32, 8, 2, generator=torch.Generator().manual_seed(0))
        >>> narrow = feasibly.audits.examine(draws[:, 0], draws[:, 1:] / 8)
        >>> narrow.findings[0].family, narrow.findings[0].found
        ('spread', True)
    """

    family: str
    p: float
    adjusted: float
    fault: str
    found: bool


@dataclass(frozen=True)
class Examination:
    """What a table of truths and members shows; truths with members that are not finite are left
    out.

    Attributes:
        findings: The result of each family of tests.
        verdict: What is wrong, or which faults would not show.
        ratio: The spread relative to the right one; 1 is right.
        energy: The mean fair energy score; the lower, the better.
        crps: The mean fair CRPS of the elements; likewise.
        scores: The energy score of each truth, with shape (N); NaN for those left out.
        ranks: The ranks of the truths among the members by name, each with shape (N).
        covered: The share of truths in regions of share c / (M + 1), for c from 0 to M + 1.

    Example:
        >>> draws = torch.randn(32, 8, 2, generator=torch.Generator().manual_seed(0))
        >>> found = feasibly.audits.examine(draws[:, 0], draws[:, 1:])
        >>> found.faulty, found.scores.shape, len(found.covered)
        (False, torch.Size([32]), 9)
    """

    findings: tuple[Finding, ...]
    verdict: str
    ratio: Estimate
    energy: Estimate
    crps: Estimate
    scores: Tensor
    ranks: dict[str, Tensor] = field(default_factory=dict)
    covered: list[float] = field(default_factory=list)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return any(finding.found for finding in self.findings)


@dataclass(frozen=True)
class Candidate:
    r"""A candidate of an audit.

    Attributes:
        name: What it is called.
        method: What `feasibly.sample(method=...)` takes.
        words: What ran.
        examination: What was found; None if it could not run.
        feasible: The share of feasible members.
        plausible: The share of plausible members; None if they were not tested.
        evaluations: Forward and backward evaluations of the network for a member.
        seconds: How long it took.
        failure: Why it could not run; empty if it could.
        members: The members, with shape (N, M, \*).

    Example:
        >>> candidate = feasibly.audits.Candidate("ppr", feasibly.PPR(), failure="out of memory")
        >>> candidate.faulty, candidate.verdict
        (True, 'not audited: out of memory')
    """

    name: str
    method: Any
    words: str = ""
    examination: Examination | None = None
    feasible: float = math.nan
    plausible: float | None = None
    evaluations: float = math.nan
    seconds: float = 0.0
    failure: str = ""
    members: Tensor | None = field(default=None, repr=False)

    @property
    def faulty(self) -> bool:
        """Whether a fault was found, or members are infeasible, or it could not run."""
        seen = self.examination
        return seen is None or seen.faulty or self.feasible < FEASIBLE

    @property
    def verdict(self) -> str:
        """What is wrong, in words."""
        if self.examination is None:
            return f"not audited: {self.failure}"
        some = ""
        if self.feasible < 1:
            some = f"{max(1 - self.feasible, 0.001):.1%} of the samples are infeasible; "
        return some + self.examination.verdict


def examine(
    truths: Tensor,
    members: Tensor,
    *,
    statistics: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    oddness: Tensor | None = None,
    settled: Tensor | None = None,
    level: float = 0.05,
    seed: int = 0,
) -> Examination:
    r"""Tests whether each truth could be one of its members; see :mod:`feasibly.calibration`.

    If nothing is wrong, a fault is found with probability `level` at most, in all families
    together.

    Arguments:
        truths: The truths, with shape (N, \*).
        members: Their members, with shape (N, M, \*).
        statistics: Summaries by name: functions of samples, with shape (B, \*), that return
            numbers with shape (B) or (B, q).
        oddness: How unlike data truths and members are, with shape (N, M + 1); None if unknown.
        settled: The members moved onto the constraint, with shape (N, M, \*), which are tested
            because a truth satisfies its statement exactly; None if members are on it.
        level: The probability of finding a fault where there is none.
        seed: The seed of random choices.

    Raises:
        ValueError: If fewer than 8 truths are left, or there are fewer than 2 members.

    Example:
        >>> draws = torch.randn(16, 8, 2, generator=torch.Generator().manual_seed(0))
        >>> feasibly.audits.examine(draws[:, 0], draws[:, 1:]).faulty
        False
        >>> feasibly.audits.examine(draws[:, 0], draws[:, 1:] / 8).faulty  # members too alike
        True
    """
    whole = torch.cat([truths[:, None], members], dim=1).detach()
    kept = whole.flatten(start_dim=1).isfinite().all(dim=1)
    if int(kept.sum()) < 8 or members.shape[1] < 2:
        raise ValueError(
            "An audit needs at least 8 truths with finite samples, and 2 samples of each; got "
            f"{int(kept.sum())} truths with {members.shape[1]} samples each."
        )
    table = whole[kept].flatten(start_dim=2).double()
    rows, entries, _ = table.shape
    energy = calibration.energy_scores(table)
    all_scores = torch.full((len(truths),), math.nan, dtype=torch.float64)
    all_scores[kept.cpu()] = energy.cpu()
    crps = crps_of_each(table[:, 1:], table[:, 0]).mean(dim=1)
    moved = torch.zeros_like(table[:, 1:])
    if settled is not None:
        settled = settled[kept].detach()
        moved = settled.flatten(start_dim=2).double() - table[:, 1:]
        table = torch.cat([table[:, :1], table[:, 1:] + moved], dim=1)
    free, table = _free(table, moved), calibration.rounded(table)
    if not free.values.shape[2]:
        verdict = "nothing to test: the constraint fixes everything that varies"
        unknown = Estimate(math.nan, math.nan)
        return Examination((), verdict, unknown, _mean(energy), _mean(crps), all_scores)
    named = _directions(table, free, moved, truths.shape[1:], seed)
    summaries = summarised(whole[kept], settled, statistics or {})
    if oddness is not None:
        odd = oddness[kept].clamp(max=MOST).double()
        oddness = odd if odd.isfinite().all() else None

    values = torch.stack(list(named.values()), dim=2)
    rank = calibration.tarp_ranks(free.values, seed=seed)
    labels = calibration.clusters((free.values * free.std)[..., :PLACES], seed=seed)
    weights = calibration.memberships(labels)
    part = table[: max(2, LARGEST // entries)]
    index, near = calibration.neighbours(part, seed=seed)
    odd_scores = [near] if oddness is None else [near, _odd_scores(oddness[: len(part)])]
    scores = {
        "spread": _spread_scores(values, free.values, table),
        "centre": calibration.locations(values),
        "coverage": calibration.coverage(rank),
        "modes": weights,
        "neighbours": None,
        "support": torch.cat(odd_scores, dim=2),
    }
    if summaries:
        told = torch.stack(list(summaries.values()), dim=2)
        both = [calibration.locations(told), calibration.spreads(told[..., None])]
        scores["summaries"] = torch.cat(both, dim=2)
    share = level / len(MEANINGS)
    tests = {
        family: calibration.graph_test(index, entries, seed=seed)
        if of_family is None
        else calibration.swap_test(of_family, share, seed=seed)
        for family, of_family in scores.items()
    }
    faults = {
        "spread": _spread_words(tests["spread"], list(named), values, free.values, table),
        "centre": _centre_words(tests["centre"], list(named), values),
        "coverage": _coverage_words(tests["coverage"], rank),
        "modes": _modes_words(tests["modes"], labels, weights),
        "neighbours": "truths are nearer to one another than to samples",
        "support": _support_words(tests["support"]),
        "summaries": _summary_words(tests.get("summaries"), list(summaries)),
    }
    found = calibration.adjusted([test.p for test in tests.values()])
    findings = tuple(
        Finding(family, test.p, p, faults[family], p <= level)
        for (family, test), p in zip(tests.items(), found, strict=True)
    )
    ratio = calibration.spread_skill(free.values)
    looked = named | summaries
    central = rank[:, 0].double()
    return Examination(
        findings=findings,
        verdict=_verdict(findings, tests, ratio, rows, entries, len(truths)),
        ratio=ratio,
        energy=_mean(energy),
        crps=_mean(crps),
        scores=all_scores,
        ranks={k: calibration.ranks(v[..., None], seed)[:, 0, 0] for k, v in looked.items()},
        covered=[(central < c).double().mean().item() for c in range(entries + 1)],
    )


def _free(table: Tensor, moved: Tensor) -> calibration.Projected:
    """Returns the principal directions that the constraint leaves free, rounded."""
    found = calibration.projected(table)
    allowed = (moved @ found.directions).square().mean(dim=(0, 1)).sqrt()
    kept = found.std > FLOOR * allowed
    values = calibration.rounded(found.values[..., kept])
    return calibration.Projected(values, found.std[kept], found.directions[:, kept])


def _directions(
    table: Tensor,
    free: calibration.Projected,
    moved: Tensor,
    shape: Sequence[int],
    seed: int,
) -> dict[str, Tensor]:
    """Returns what is looked at of samples by name, each with shape (N, M + 1): principal
    directions within rows, the elements that vary most, and random projections."""
    named = {
        f"principal direction {k + 1}": free.values[..., k]
        for k in range(min(DIRECTIONS, free.values.shape[2]))
    }
    std = table.std(dim=1).square().mean(dim=0).sqrt()
    allowed = moved.square().mean(dim=(0, 1)).sqrt()
    least = torch.maximum(FLOOR * allowed, calibration.FIXED * std.max())
    for i in std.argsort(descending=True, stable=True)[:ELEMENTS].tolist():
        if std[i] > least[i]:
            place = torch.unravel_index(torch.tensor(i), tuple(shape))
            name = ", ".join(str(int(p)) for p in place)
            named[f"element ({name})"] = calibration.rounded(table[..., i, None] / std[i])[..., 0]
    count = PROJECTIONS if free.values.shape[2] > 1 else 0
    size = (free.values.shape[2], count)
    u = torch.randn(size, generator=generator(seed, 6), dtype=torch.float64).to(table)
    for k, v in enumerate((free.values @ (u / u.norm(dim=0))).unbind(dim=2)):
        named[f"random projection {k + 1}"] = v
    return named


def summarised(
    samples: Tensor,
    settled: Tensor | None,
    statistics: Mapping[str, Callable[[Tensor], Tensor]],
) -> dict[str, Tensor]:
    r"""Returns the summaries of samples by name, each with shape (N, M + 1), without those that
    the constraint fixes.

    Arguments:
        samples: The samples, with shape (N, M + 1, \*), the truths first.
        settled: The members moved onto the constraint; see :func:`examine`.
        statistics: The user's summaries by name.

    Raises:
        ValueError: If a function does not return a finite number, or a row, for each sample.
    """
    rows, entries = samples.shape[:2]
    found = _values(samples.flatten(end_dim=1), statistics)
    still = {} if settled is None else _values(settled.flatten(end_dim=1), statistics)
    kept = {}
    for name, v in found.items():
        v = v.reshape(rows, entries)
        allowed = 0.0
        if still:
            moved = still[name].reshape(rows, entries - 1) - v[:, 1:]
            allowed = moved.square().mean().sqrt()
            v = torch.cat([v[:, :1], v[:, 1:] + moved], dim=1)
        within = v.std(dim=1).square().mean().sqrt()
        # the constraint fixes what hardly varies within a row, and rounding is no variation
        least = max(calibration.FIXED * v.std(), 1e-5 * v.abs().mean(), FLOOR * allowed)
        if within > least:
            kept[name] = calibration.rounded(v[..., None])[..., 0]
    return kept


def _values(x: Tensor, statistics: Mapping[str, Callable[[Tensor], Tensor]]) -> dict[str, Tensor]:
    """Returns the summaries of samples by name, each with shape (B)."""
    flat = x.flatten(start_dim=1).double()
    found = {"mean": flat.mean(dim=1), "size": flat.square().mean(dim=1).sqrt()}
    if x.shape[-1] > 3:
        found["roughness"] = x.double().diff(dim=-1).flatten(1).square().mean(dim=1).sqrt()
    for name, function in statistics.items():
        with torch.no_grad():
            value = torch.as_tensor(function(x)).to(flat)
        if value.shape[:1] != x.shape[:1] or not value.isfinite().all():
            raise ValueError(
                f"audit(statistics=...): {name!r} returned shape {tuple(value.shape)} for "
                f"{len(x)} samples; it must return one finite number, or one row, per sample."
            )
        columns = value.reshape(len(x), -1).unbind(dim=1)
        found |= {name if len(columns) == 1 else f"{name} {k}": v for k, v in enumerate(columns)}
    return found


def _spread_scores(values: Tensor, free: Tensor, table: Tensor) -> Tensor:
    """Scores of spread: of each direction, of all together, and of samples as they are."""
    each = calibration.spreads(values[..., None])
    both = [calibration.spreads(v[:, :, None]) for v in (free, table)]
    return torch.cat([each, *both], dim=2)


def _odd_scores(oddness: Tensor) -> Tensor:
    """Scores of oddness: its rank, and whether it is the largest of its row."""
    alike = (oddness.clamp_min(1 / MOST).log() / ALIKE).round()
    rank = calibration.ranks(alike[..., None]).double()
    return torch.cat([rank, (rank == oddness.shape[1] - 1).double()], dim=2)


def _spread_words(
    test: calibration.Test, names: list[str], values: Tensor, free: Tensor, table: Tensor
) -> str:
    worst, where = test.worst, ""
    if test.z[len(names)].abs() > test.critical:  # all directions at once say more than one
        worst = len(names)
    if worst < len(names):
        one, where = values[..., worst : worst + 1], f" along {names[worst]}"
    else:
        one = free if worst == len(names) else table
    ratio = calibration.spread_skill(one)
    narrow = bool(test.z[worst] > 0)  # truths are farther out than members
    kind = "narrow" if narrow else "wide"
    if narrow != (ratio.value < 1):  # rows of large spread say otherwise
        return f"too {kind} for most truths{where}"
    return f"too {kind} by {abs(1 - ratio.value):.0%} (± {ratio.error:.0%}){where}"


def _centre_words(test: calibration.Test, names: list[str], values: Tensor) -> str:
    k = test.worst % len(names)
    v = values[..., k]
    std = v.std(dim=1)
    apart = torch.where(std > 0, (v[:, 0] - v[:, 1:].mean(dim=1)) / std, 0.0)
    if test.worst >= len(names):
        middle = v.mean(dim=1)
        bias = _mean((middle - middle.median()).sign() * apart)
        side = "pulled to the middle" if bias.value > 0 else "pushed outward"
    else:
        bias, side = _mean(apart), "off centre"
    size = f"{abs(bias.value):.2g} (± {bias.error:.1g}) standard deviations"
    return f"{side} by {size} along {names[k]}"


def _coverage_words(test: calibration.Test, rank: Tensor) -> str:
    share = (rank[:, 0] <= test.worst).double().mean().item()
    should = (test.worst + 1) / rank.shape[1]
    return f"regions that should contain {should:.0%} of the truths contain {share:.0%}"


def _modes_words(test: calibration.Test, labels: Sequence[Tensor], weights: Tensor) -> str:
    score = weights[..., test.worst]
    apart = _mean(score[:, 1:].mean(dim=1) - score[:, 0])
    counts = [int(label.max()) + 1 for label in labels]
    ends = [sum(counts[: k + 1]) + k for k in range(len(counts))]
    if test.worst in ends:
        more = "too often" if apart.value > 0 else "too rarely"
        return f"cluster weights off: samples of the same truth share a cluster {more}"
    return f"cluster weights off by {abs(apart.value):.2g} (± {apart.error:.1g})"


def _support_words(test: calibration.Test) -> str:
    less = test.z[test.worst] < 0
    if test.worst >= 2:
        like = "less" if less else "more"
        return f"samples look {like} like data to the denoiser than truths do"
    if less:
        return (
            "samples are farther from other samples than truths are, so that some have left the "
            "data"
        )
    return "samples are nearer to other samples than truths are, so that they are too concentrated"


def _summary_words(test: calibration.Test | None, names: list[str]) -> str:
    if test is None:
        return ""
    kinds = ("off centre", "pulled to the middle or outward", "too narrow or too wide")
    return f"the {names[test.worst % len(names)]} is {kinds[test.worst // len(names)]}"


def _verdict(
    findings: Sequence[Finding],
    tests: Mapping[str, calibration.Test],
    ratio: Estimate,
    rows: int,
    entries: int,
    asked: int,
) -> str:
    spread, centre, modes = (tests[family] for family in ("spread", "centre", "modes"))
    left = f" ({several(asked - rows, 'truth')} with non-finite samples left out)"
    left = left if asked > rows else ""
    found = sorted((f for f in findings if f.found), key=lambda f: f.p)
    if found:
        of_family = {f.family: f for f in found}
        plain = ["spread", "centre", "modes", "support"]
        if "spread" in of_family and 2 * centre.worst >= centre.z.numel():
            plain.remove("centre")  # of narrow members a truth is outward more often
        first = [of_family[family] for family in plain if family in of_family]
        # coverage, neighbours and summaries mostly follow from these
        return "; ".join(f.fault for f in first or found[:2]) + left
    narrow = (spread.critical + POWER) * ratio.error
    truth = entries / (entries - 1)  # a truth is a part of its row's mean
    bias = (centre.critical + POWER) * math.sqrt(truth / rows)
    weight = (modes.critical + POWER) * modes.unit.max().item() * truth
    cluster = f", or {min(weight, 1):.2g} of a cluster's weight," if modes.unit.max() > 0 else ""
    return (
        f"no miscalibration found; with this many truths, errors below {narrow:.0%} of the "
        f"spread, {bias:.2g} standard deviations of the centre along a tested direction{cluster} "
        f"may go unnoticed{left}"
    )


def _mean(values: Tensor) -> Estimate:
    return Estimate(values.mean().item(), (values.std() / math.sqrt(max(1, len(values)))).item())
