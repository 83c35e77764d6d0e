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
from ..metrics import crps_of_each
from ..randomness import generator

DIRECTIONS, ELEMENTS, PROJECTIONS = 16, 8, 8
"""The most principal directions, elements of a sample and random projections that are tested."""

PLACES = 8
"""The number of principal directions of all entries in which clusters are found."""

POWER = 0.84
"""Beyond its critical value, a sum must have a mean of so many standard deviations to be found in
four audits of five."""

LARGEST = 4096
"""The most entries whose neighbours are looked for."""

FLOOR = 3.0
"""What varies by less than so many times what the tolerance allows is fixed by the constraint."""

CAPPED = 0.3
"""But no direction of this share of the samples' standard deviation, whatever the tolerance."""

MEANINGS = {
    "spread": "Members are as far from one another as the truth is from them.",
    "centre": "The truth is as often above the members as below.",
    "coverage": "Regions that should hold a share of the truths hold that share.",
    "modes": "Clusters have as many of the truths as of the members.",
    "neighbours": "Truths are no nearer to one another than to members.",
    "support": "Members are as near to other samples, and as like data to the denoiser.",
    "summaries": "Summaries of the truth, the user's among them, rank evenly among the members'.",
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
    """

    family: str
    p: float
    adjusted: float
    fault: str
    found: bool


@dataclass(frozen=True)
class Examination:
    """What a table of truths and members shows.

    Attributes:
        findings: The result of each family of tests.
        verdict: What is wrong, or which faults would not show.
        ratio: The spread relative to the right one; 1 is right.
        energy: The mean fair energy score; the lower, the better.
        crps: The mean fair CRPS of the elements; likewise.
        scores: The energy score of each truth, with shape (N); NaN for those left out.
        ranks: The ranks of the truths among the members by name, each with shape (N).
        covered: The share of truths in regions of share c / (M + 1), for c from 0 to M + 1.
    """

    findings: tuple[Finding, ...]
    verdict: str
    ratio: Estimate
    energy: Estimate
    crps: Estimate
    scores: Tensor
    ranks: dict[str, Tensor]
    covered: list[float]

    @property
    def faulty(self) -> bool:
        """Whether a fault was found."""
        return any(finding.found for finding in self.findings)


@dataclass(frozen=True)
class Candidate:
    """A candidate of an audit.

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
        members: The members, with shape (N, M, *).
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
    def verdict(self) -> str:
        """What is wrong, in words."""
        if self.examination is None:
            return f"not audited: {self.failure}"
        some = ""
        if self.feasible < 1:
            some = f"{max(1 - self.feasible, 0.001):.1%} of members are infeasible; "
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
    r"""Tests whether each truth could be one of its members.

    All tests are exact; see :mod:`feasibly.calibration`. If nothing is wrong, a fault is found
    with probability `level` at most, whatever the number of families.

    Arguments:
        truths: The truths, with shape (N, \*).
        members: Their members, with shape (N, M, \*). Truths of which a member is not finite are
            left out.
        statistics: Summaries by name, functions of samples, with shape (B, \*), that return
            numbers with shape (B) or (B, q).
        oddness: How unlike data truths and members are, with shape (N, M + 1); None if unknown.
        settled: The members without what the tolerance allows, moved onto the constraint, with
            shape (N, M, \*); None if they are on it. What varies by little more than they are
            moved is left out.
        level: The probability of finding a fault where there is none.
        seed: The seed of random choices.

    Raises:
        ValueError: If fewer than 8 truths are left, or there are fewer than 2 members.
    """
    whole = torch.cat([truths[:, None], members], dim=1).detach()
    kept = whole.flatten(start_dim=1).isfinite().all(dim=1)
    if int(kept.sum()) < 8 or members.shape[1] < 2:
        raise ValueError(
            f"An audit needs 8 truths with finite members, and 2 members of each; got "
            f"{int(kept.sum())} truths with {members.shape[1]} members."
        )
    table = whole[kept].flatten(start_dim=2).double()
    rows, entries, _ = table.shape
    if settled is not None:
        settled = settled[kept].detach()
    floor = _floor(table, settled)
    free = calibration.projected(table, floor)
    named = _directions(table, free, floor, truths.shape[1:], seed)
    summaries = summarised(whole[kept], settled, statistics or {})
    if oddness is not None:
        odd = oddness[kept].clamp(max=1e30).double()
        oddness = odd if odd.isfinite().all() else None

    share = level / len(MEANINGS)
    values = torch.stack(list(named.values()), dim=2)
    places = free.values
    if settled is not None:  # where solutions are isolated, the tolerance would decide the ranks
        still = torch.cat([table[:, :1], settled.flatten(start_dim=2).double()], dim=1)
        places = still @ free.directions / free.std
    rank = calibration.tarp_ranks(places, seed=seed)
    tests = {}
    scores = _spread_scores(values, free.values, table)
    tests["spread"] = spread = calibration.swap_test(scores, share, seed=seed)
    scores = calibration.locations(values)
    tests["centre"] = centre = calibration.swap_test(scores, share, seed=seed)
    scores = calibration.coverage(rank)
    tests["coverage"] = calibration.swap_test(scores, share, seed=seed)
    labels = calibration.clusters(_places(table), seed=seed)
    weights = calibration.memberships(labels)
    tests["modes"] = modes = calibration.swap_test(weights, share, seed=seed)
    part = table[: max(2, LARGEST // entries)]
    index, near = calibration.neighbours(part)
    tests["neighbours"] = calibration.graph_test(index, entries, seed=seed)
    odd_scores = [near] if oddness is None else [near, _odd_scores(oddness[: len(part)])]
    scores = torch.cat(odd_scores, dim=2)
    tests["support"] = support = calibration.swap_test(scores, share, seed=seed)
    if summaries[0]:
        told = [calibration.locations(summaries[1]), calibration.spreads(summaries[1][..., None])]
        scores = torch.cat(told, dim=2)
        tests["summaries"] = calibration.swap_test(scores, share, seed=seed)

    faults = {
        "spread": _spread_words(spread, list(named), values, free.values, table),
        "centre": _centre_words(centre, list(named), values),
        "coverage": _coverage_words(rank[:, 0], entries),
        "modes": _modes_words(modes, labels, weights),
        "neighbours": "truths are nearer to one another than to members",
        "support": _support_words(support),
        "summaries": _summary_words(tests.get("summaries"), summaries[0]),
    }
    found = calibration.adjusted([test.p for test in tests.values()])
    findings = tuple(
        Finding(family, test.p, p, faults[family], p <= level)
        for (family, test), p in zip(tests.items(), found, strict=True)
    )
    ratio = calibration.spread_skill(free.values)
    energy = calibration.energy_scores(table)
    all_scores = torch.full((len(truths),), math.nan, dtype=torch.float64)
    all_scores[kept.cpu()] = energy.cpu()
    shown = {name: calibration.ranks(v[..., None], seed)[:, 0, 0] for name, v in named.items()}
    places = zip(summaries[0], summaries[1].unbind(dim=2), strict=True)
    shown |= {name: calibration.ranks(v[..., None], seed)[:, 0, 0] for name, v in places}
    central = rank[:, 0].double()
    covered = [(central < c).double().mean().item() for c in range(entries + 1)]
    return Examination(
        findings=findings,
        verdict=_verdict(findings, ratio, spread, centre, modes, rows, entries),
        ratio=ratio,
        energy=_mean(energy),
        crps=_mean(crps_of_each(table[:, 1:].double(), table[:, 0].double()).mean(dim=1)),
        scores=all_scores,
        ranks=shown,
        covered=covered,
    )


def _directions(
    table: Tensor,
    free: calibration.Projected,
    floor: float,
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
    least = max(floor, calibration.FIXED * std.max().item())
    for i in std.argsort(descending=True, stable=True)[:ELEMENTS].tolist():
        if std[i] > least:
            place = torch.unravel_index(torch.tensor(i), tuple(shape))
            name = ", ".join(str(int(p)) for p in place)
            named[f"element ({name})"] = table[..., i] / std[i]
    count = PROJECTIONS if free.values.shape[2] > 1 else 0
    size = (free.values.shape[2], count)
    u = torch.randn(size, generator=generator(seed, 6), dtype=torch.float64).to(table)
    for k, v in enumerate((free.values @ (u / u.norm(dim=0))).unbind(dim=2)):
        named[f"random projection {k + 1}"] = v
    return named


def _floor(table: Tensor, settled: Tensor | None) -> float:
    """Returns the least standard deviation of a direction that the constraint leaves free."""
    if settled is None:
        return 0.0
    moved = settled.flatten(start_dim=2).double() - table[:, 1:]
    typical = moved.square().sum(dim=2).mean().sqrt().item()
    largest = table.std(dim=1).square().sum(dim=1).mean().sqrt().item()
    return min(FLOOR * typical, CAPPED * largest)


def summarised(
    samples: Tensor,
    settled: Tensor | None,
    statistics: Mapping[str, Callable[[Tensor], Tensor]],
) -> tuple[list[str], Tensor]:
    """Returns the names and values of summaries, with shape (N, M + 1, K), but for those that
    the constraint fixes.

    Arguments:
        samples: The samples, with shape (N, M + 1, *), the truths first.
        settled: The members without what the tolerance allows; see :func:`examine`.
        statistics: The user's summaries by name.

    Raises:
        ValueError: If a function returns something else than a finite number, or a row, for each
            sample.
    """
    rows, entries = samples.shape[:2]
    found = _values(samples.flatten(end_dim=1), statistics)
    still = {} if settled is None else _values(settled.flatten(end_dim=1), statistics)
    names, kept = [], []
    for name, v in found.items():
        v = v.reshape(rows, entries)
        within = v.std(dim=1).square().mean().sqrt()
        allowed = 0.0
        if still:
            moved = v[:, 1:] - still[name].reshape(rows, entries - 1)
            allowed = moved.square().mean().sqrt()
        # the constraint fixes what hardly varies within a row, and rounding is no variation
        least = max(calibration.FIXED * v.std(), 1e-5 * v.abs().mean(), FLOOR * allowed)
        if within > least:
            names.append(name)
            kept.append(v)
    like = samples.flatten(start_dim=2).double()
    return names, torch.stack(kept, dim=2) if kept else like.new_zeros((rows, entries, 0))


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
                f"{len(x)} samples; it must return a finite number, or a row, for each."
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
    rank = calibration.ranks(oddness[..., None]).double()
    return torch.cat([rank, (rank == oddness.shape[1] - 1).double()], dim=2)


def _places(table: Tensor) -> Tensor:
    """Returns where entries are in the principal directions of all of them."""
    flat = table.flatten(end_dim=1)
    flat = flat - flat.mean(dim=0)
    if flat.shape[1] > PLACES:
        if flat.shape[1] > len(flat):
            squares, left = torch.linalg.eigh(flat @ flat.T)
            flat = (left * squares.clamp_min(0).sqrt()).flip(1)[:, :PLACES]
        else:
            flat = flat @ torch.linalg.eigh(flat.T @ flat)[1].flip(1)[:, :PLACES]
    return flat.reshape(*table.shape[:2], -1)


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
    size = f"{abs(1 - ratio.value):.0%} (± {ratio.error:.0%})"
    return f"too {'narrow' if ratio.value < 1 else 'wide'} by {size}{where}"


def _centre_words(test: calibration.Test, names: list[str], values: Tensor) -> str:
    k = test.worst % len(names)
    v = values[..., k]
    apart = v[:, 0] - v[:, 1:].mean(dim=1)
    std = v.std(dim=1).square().mean().sqrt()
    if test.worst >= len(names):
        middle = v.mean(dim=1)
        bias = _mean((middle - middle.median()).sign() * apart / std)
        side = "pulled to the middle" if bias.value > 0 else "pushed outward"
    else:
        bias, side = _mean(apart / std), "off centre"
    size = f"{abs(bias.value):.2g} (± {bias.error:.1g}) standard deviations"
    return f"{side} by {size} along {names[k]}"


def _coverage_words(rank: Tensor, entries: int) -> str:
    half = entries // 2
    share = (rank < half).double().mean().item()
    return f"regions that should hold {half / entries:.0%} of the truths hold {share:.0%}"


def _modes_words(test: calibration.Test, labels: Sequence[Tensor], weights: Tensor) -> str:
    score = weights[..., test.worst]
    apart = _mean(score[:, 1:].mean(dim=1) - score[:, 0])
    counts = [int(label.max()) + 1 for label in labels]
    ends = [sum(counts[: k + 1]) + k for k in range(len(counts))]
    if test.worst in ends:
        more = "too often" if apart.value > 0 else "too rarely"
        return f"weights of modes off: the members of a truth are {more} in one mode"
    return f"weights of modes off by {abs(apart.value):.2g} (± {apart.error:.1g})"


def _support_words(test: calibration.Test) -> str:
    if test.worst < 2:
        far = test.z[test.worst] < 0
        return (
            "members are farther from other samples than truths are: some leave the data"
            if far
            else "members are nearer to other samples than truths are: they gather"
        )
    less = test.z[test.worst] < 0
    return f"members are {'less' if less else 'more'} like data to the denoiser than truths are"


def _summary_words(test: calibration.Test | None, names: list[str]) -> str:
    if test is None:
        return ""
    kinds = ("off centre", "pulled to the middle or outward", "too narrow or too wide")
    return f"the {names[test.worst % len(names)]} is {kinds[test.worst // len(names)]}"


def _verdict(
    findings: Sequence[Finding],
    ratio: Estimate,
    spread: calibration.Test,
    centre: calibration.Test,
    modes: calibration.Test,
    rows: int,
    entries: int,
) -> str:
    found = sorted((f for f in findings if f.found), key=lambda f: f.p)
    if found:
        plain = ["spread", "centre", "modes", "support"]
        if "spread" in {f.family for f in found} and 2 * centre.worst >= centre.z.numel():
            plain.remove("centre")  # of narrow members a truth is outward more often
        first = sorted(
            (f for f in found if f.family in plain), key=lambda f: plain.index(f.family)
        )
        # what the others say then follows from these
        return "; ".join(f.fault for f in first or found[:2])
    narrow = (spread.critical + POWER) * ratio.error
    bias = (centre.critical + POWER) * math.sqrt(entries / (entries - 1) / rows)
    weight = (modes.critical + POWER) * 0.5 * math.sqrt(entries / (entries - 1) / rows)
    return (
        f"no fault found at this size; an error of less than {narrow:.0%} of the spread, "
        f"{bias:.2g} standard deviations of the centre or {min(weight, 1):.2g} of a mode's weight "
        "would not show"
    )


def _mean(values: Tensor) -> Estimate:
    return Estimate(values.mean().item(), (values.std() / math.sqrt(max(1, len(values)))).item())
