r"""Tests of ensembles against truths: exact, whatever the distribution.

A *table* has, for each of :math:`N` truths :math:`x^*_n`, the truth and its :math:`M` members,
with shape :math:`(N, M + 1, *)`, the truth first. If the members are samples of the distribution
that the truth is from, the :math:`M + 1` entries of a row are exchangeable, so that each might as
well have been the truth. Let :math:`s_n(j)` be a score of entry :math:`j` of row :math:`n`, which
does not depend on which entries are the truths. Then, given the table without its order,

.. math:: S = \sum_n s_n(0) \quad \text{is distributed as} \quad \sum_n s_n(J_n)

with independent and uniform :math:`J_n \in \{0, \dots, M\}`. No assumption on the samples is made.
A family of scores is tested by the largest of its standardised sums, which accounts for their
number and their dependence.

References:
    | Validating Bayesian Inference Algorithms with Simulation-Based Calibration (Talts et al.,
    | 2018), https://arxiv.org/abs/1804.06788, for truths from the prior and their ranks
    | Testing Statistical Hypotheses (Lehmann & Romano, 2005), Section 15.2, for tests by
    | exchangeability, https://doi.org/10.1007/0-387-27605-X
"""

__all__ = [
    "Estimate",
    "Projected",
    "Test",
    "adjusted",
    "clusters",
    "coverage",
    "energy_scores",
    "graph_test",
    "locations",
    "memberships",
    "neighbours",
    "projected",
    "ranks",
    "rounded",
    "spread_skill",
    "spreads",
    "swap_test",
    "tarp_ranks",
]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

SWAPS = 4000
"""The number of random choices of the truths' entries behind a p-value."""

TILTS = 96
"""The number of exponents among which the best bound of a small p-value is looked for."""

SLICE = 500  # choices at a time

FIXED = 1e-3
"""Directions whose standard deviation is below this share of the largest are taken as fixed."""

EQUAL = 1e-4
"""Values are rounded to so many standard deviations, which hides the tolerance and rounding."""

SAMPLES_A_DIRECTION = 10
"""The least number of members for each standardised direction; with fewer, all samples would be
equally far from the mean."""


@dataclass(frozen=True)
class Test:
    """The result of a test.

    Attributes:
        p: The p-value: valid for every number of truths. Where no random choice comes as far as
            what was observed, it is Chernoff's bound, summed over the scores.
        z: The standardised sum of each score, with shape :math:`(K)`.
        worst: The index of the largest.
        critical: What the largest exceeds with probability `level` if nothing is wrong.
        unit: The standard deviation of a truth's mean score, with shape :math:`(K)`.
    """

    __test__ = False  # for pytest

    p: float
    z: Tensor
    worst: int
    critical: float
    unit: Tensor


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Projected:
    """What the constraint leaves free of a table, in principal directions within rows.

    Attributes:
        values: The coordinates, divided by their standard deviations, with shape
            :math:`(N, M + 1, K)`.
        std: These, with shape :math:`(K)`, the largest first.
        directions: The directions, with shape :math:`(D, K)`.
    """

    values: Tensor
    std: Tensor
    directions: Tensor


def swap_test(scores: Tensor, level: float = 0.05, swaps: int = SWAPS, seed: int = 0) -> Test:
    """Tests whether the first entries of rows have scores like the others', on both sides.

    Arguments:
        scores: The scores :math:`s_n(j)`, with shape :math:`(N, M + 1, K)`. Those that cannot vary
            count for nothing.
        level: The probability behind `critical`.
        swaps: The number of random choices of the truths' entries.
        seed: Their seed.
    """
    v = scores.double()
    v = v - v.mean(dim=1, keepdim=True)
    rows, entries, count = v.shape
    std = v.square().mean(dim=1).sum(dim=0).sqrt()
    varies = std > 1e-12 * v.abs().amax(dim=(0, 1)).clamp_min(1e-300) * math.sqrt(rows)
    v = torch.where(varies, v / std, 0.0)
    z = v[:, 0].sum(dim=0)
    largest = z.abs().max()
    generator = Generator().manual_seed(seed)
    flat, found = v.reshape(rows * entries, count), []
    first = entries * torch.arange(rows)
    for begin in range(0, swaps, SLICE):
        size = min(SLICE, swaps - begin)
        chosen = first + torch.randint(entries, (size, rows), generator=generator)
        picked = torch.zeros(size, rows * entries, dtype=torch.float64)
        picked.scatter_(1, chosen, 1.0)
        found.append((picked.to(flat.device) @ flat).abs().amax(dim=1))
    null = torch.cat(found)
    beyond = int((null >= largest * (1 - 1e-9)).sum())
    p = (1 + beyond) / (swaps + 1)
    if not beyond:
        p = min(p, _tail(v[..., varies], largest))
    critical = null.quantile(1 - level).item()
    return Test(p, z, int(z.abs().argmax()), critical, std / rows)


def _tail(v: Tensor, threshold: Tensor) -> float:
    r"""Returns Chernoff's bound of the probability that any sum comes so far:
    :math:`\sum_k \min_\theta \prod_n \mathbb{E} e^{\theta (v_{nk} - t / N)}`, on both sides."""
    entries = v.shape[1]
    best = torch.full((2, v.shape[2]), math.inf, dtype=torch.float64, device=v.device)
    for tilt in torch.logspace(-1, 2.5, TILTS, dtype=torch.float64).tolist():
        for side, sign in enumerate((1, -1)):
            cumulant = (sign * tilt * v).logsumexp(dim=1) - math.log(entries)
            best[side] = torch.minimum(best[side], cumulant.sum(dim=0) - tilt * threshold)
    return best.exp().sum().item()


def adjusted(p: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for their number by Holm's method.

    References:
        A Simple Sequentially Rejective Multiple Test Procedure (Holm, 1979)
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    found, least = [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        least = max(least, min(1.0, (len(p) - place) * p[i]))
        found[i] = least
    return found


def ranks(values: Tensor, seed: int = 0) -> Tensor:
    """Returns ranks within rows, from 0, with the shape (N, M + 1, K) of the values; those of
    equal values are random."""
    generator = Generator().manual_seed(seed)
    chance = torch.rand(values.shape, generator=generator, dtype=torch.float64).to(values.device)
    by_chance = chance.argsort(dim=1)
    order = by_chance.gather(1, values.gather(1, by_chance).argsort(dim=1, stable=True))
    return order.argsort(dim=1)


def rounded(values: Tensor) -> Tensor:
    """Returns values, with shape (N, M + 1, K), of which those that hardly differ are equal."""
    apart = values - values.mean(dim=1, keepdim=True)
    unit = EQUAL * apart.square().mean(dim=(0, 1)).sqrt().clamp_min(1e-300)
    return (values / unit).round() * unit


def projected(table: Tensor) -> Projected:
    """Returns a table, with shape :math:`(N, M + 1, D)`, in its principal directions within rows,
    without those that the constraint fixes."""
    rows, entries, size = table.shape
    apart = table.double() - table.double().mean(dim=1, keepdim=True)
    flat = apart.reshape(rows * entries, size)
    if size > len(flat):
        squares, left = torch.linalg.eigh(flat @ flat.T)
        directions = flat.T @ left / squares.clamp_min(1e-300).sqrt()
    else:
        squares, directions = torch.linalg.eigh(flat.T @ flat)
    std = (squares.clamp_min(0) / (rows * (entries - 1))).sqrt().flip(0)
    directions = directions.flip(1)
    most = max(1, rows * (entries - 1) // SAMPLES_A_DIRECTION)
    least = max(FIXED * std[0].item(), 1e-300)
    kept = int((std[:most] > least).sum())
    std, directions = std[:kept], directions[:, :kept]
    return Projected(table.double() @ directions / std, std, directions)


def locations(values: Tensor) -> Tensor:
    """Returns scores of location: each entry's deviation from its row's mean, in units of the
    row's standard deviation, then the same with the sign of the row's mean relative to all rows'.

    The latter show whether members are pulled to the middle.

    Arguments:
        values: Statistics of the entries, with shape :math:`(N, M + 1, K)`.

    Returns:
        The scores, with shape :math:`(N, M + 1, 2 K)`.
    """
    mean = values.mean(dim=1, keepdim=True)
    apart = (values - mean) / values.std(dim=1, keepdim=True).clamp_min(1e-300)
    outward = (mean - mean.median(dim=0, keepdim=True).values).sign()
    return torch.cat([apart, outward * apart], dim=2)


def spreads(values: Tensor) -> Tensor:
    """Returns scores of spread: each entry's squared deviation from its row's mean, relative to
    the row's mean square, with shape :math:`(N, M + 1, K)`.

    Arguments:
        values: Statistics, with shape :math:`(N, M + 1, K, Q)`; squares are summed over :math:`Q`.
    """
    squares = (values - values.mean(dim=1, keepdim=True)).square().sum(dim=-1)
    return squares / squares.mean(dim=1, keepdim=True).clamp_min(1e-300)


def tarp_ranks(values: Tensor, references: int = 4, seed: int = 0) -> Tensor:
    """Returns ranks by the distance from random points, with shape (N, M + 1, references).

    References:
        | Sampling-Based Accuracy Testing of Posterior Estimators for General Inference (Lemos et
        | al., 2023), Algorithm 2, https://arxiv.org/abs/2302.03026

    Arguments:
        values: Standardised coordinates, with shape :math:`(N, M + 1, K)`.
        references: The number of points for each row: normal around the row's mean.
        seed: Their seed.
    """
    generator = Generator().manual_seed(seed)
    shape = (len(values), references, values.shape[2])
    noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(values)
    points = values.mean(dim=1, keepdim=True) + noise
    return ranks((torch.cdist(values, points) / EQUAL).round(), seed)


def coverage(rank: Tensor) -> Tensor:
    """Returns scores of credible regions: for each :math:`c < M`, how often an entry's rank is at
    most :math:`c`, with shape :math:`(N, M + 1, M)`, given ranks with shape :math:`(N, M + 1,
    Q)`."""
    thresholds = torch.arange(rank.shape[1] - 1, device=rank.device)
    return (rank[..., None] <= thresholds).double().mean(dim=2)


def clusters(points: Tensor, counts: Sequence[int] = (2, 3, 4, 8), seed: int = 0) -> list[Tensor]:
    """Returns the cluster of each entry, by k-means of all entries.

    Arguments:
        points: The table, with shape :math:`(N, M + 1, D)`.
        counts: The numbers of clusters.
        seed: The seed of the first centres.

    Returns:
        For each number, integers with shape :math:`(N, M + 1)`.
    """
    rows, entries, size = points.shape
    x = points.reshape(rows * entries, size).double()
    generator, found = Generator().manual_seed(seed), []
    for count in counts:
        best, least = torch.zeros(len(x), dtype=torch.long), math.inf
        for _ in range(4):
            label, loss = _k_means(x, min(count, len(x)), generator)
            best, least = (label, loss) if loss < least else (best, least)
        found.append(best.reshape(rows, entries))
    return found


def _k_means(x: Tensor, count: int, generator: Generator) -> tuple[Tensor, float]:
    centre = x[torch.randint(len(x), (1,), generator=generator)]
    while len(centre) < count:  # far from those chosen
        nearest = torch.cdist(x, centre).square().amin(dim=1).cpu() + 1e-300
        centre = torch.cat([centre, x[torch.multinomial(nearest, 1, generator=generator)]])
    for _ in range(20):
        label = torch.cdist(x, centre).argmin(dim=1)
        one = torch.nn.functional.one_hot(label, count).to(x)
        size = one.sum(dim=0)[:, None]
        centre = torch.where(size > 0, one.T @ x / size.clamp_min(1), centre)
    distance, label = torch.cdist(x, centre).min(dim=1)
    return label, distance.square().sum().item()


def memberships(labels: Sequence[Tensor]) -> Tensor:
    """Returns scores of the weights of modes, with shape :math:`(N, M + 1, K)`.

    For each of the :func:`clusters`: whether an entry belongs to each cluster, then which share of
    its row belongs to its own.
    """
    scores = []
    for label in labels:
        one = torch.nn.functional.one_hot(label).double()
        scores += [one, (one.mean(dim=1, keepdim=True) * one).sum(dim=2, keepdim=True)]
    return torch.cat(scores, dim=2)


def neighbours(table: Tensor, k: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns the nearest neighbours of each entry in other rows; at random among those equally
    near.

    Arguments:
        table: The table, with shape :math:`(N, M + 1, D)`.
        k: Their number.
        seed: The seed of random choices.

    Returns:
        Their indices among all entries, with shape :math:`(N (M + 1), k)`, and the logarithms of
        the distances of the nearest and the k-th, with shape :math:`(N, M + 1, 2)`, as scores.
    """
    rows, entries, size = table.shape
    x = table.reshape(rows * entries, size).double()
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    unit = EQUAL * x.var(dim=0).sum().sqrt().clamp_min(1e-300)
    distance = (distance / unit).round()
    chance = torch.rand(distance.shape, generator=Generator().manual_seed(seed))
    distance = distance + 0.5 * chance.to(distance)
    row = torch.arange(rows, device=x.device).repeat_interleave(entries)
    distance[row[:, None] == row] = math.inf
    near, index = distance.topk(min(k, len(x) - entries), dim=1, largest=False)
    log = near[:, [0, -1]].floor().clamp_min(1).log()
    return index, log.reshape(rows, entries, 2)


def graph_test(index: Tensor, entries: int, swaps: int = SWAPS, seed: int = 0) -> Test:
    """Tests whether truths are near to truths more often than by chance.

    The statistic is the number of edges between truths in the graph of nearest neighbours.

    References:
        | Multivariate Two-Sample Tests Based on Nearest Neighbors (Schilling, 1986)
        | https://doi.org/10.1080/01621459.1986.10478337

    Arguments:
        index: The neighbours of each entry, with shape :math:`(N (M + 1), k)`.
        entries: The number :math:`M + 1` of entries of a row.
        swaps, seed: See :func:`swap_test`.
    """
    rows = len(index) // entries
    generator = Generator().manual_seed(seed)
    chosen = torch.randint(entries, (swaps + 1, rows), generator=generator)
    chosen[0] = 0
    found = []
    for part in chosen.split(SLICE):
        place = (entries * torch.arange(rows) + part).to(index.device)
        truth = torch.zeros(len(part), len(index), dtype=torch.bool, device=index.device)
        truth.scatter_(1, place, True)
        near = index[place].flatten(start_dim=1)  # of the truths alone
        found.append(truth.gather(1, near).sum(dim=1))
    counts = torch.cat(found).double()
    observed, null = counts[0], counts[1:]
    std = null.std().clamp_min(1e-300)
    p = (1 + int((null >= observed).sum())) / (swaps + 1)
    z = (observed - null.mean()) / std
    return Test(p, z[None], 0, math.nan, std[None] / rows)


def spread_skill(values: Tensor) -> Estimate:
    r"""Returns the spread of members relative to the right one: :math:`\sqrt{s^2 / (e^2 - s^2 /
    M)}`.

    Here :math:`s^2` is the mean variance of the members, over :math:`M - 1`, and :math:`e^2` the
    mean square error of their mean. If members have the right mean, :math:`e^2` is in expectation
    the right variance and :math:`s^2 / M`. The standard error is by linearisation over truths.

    References:
        | Why should ensemble spread match the RMSE of the ensemble mean? (Fortin et al., 2014)
        | https://doi.org/10.1175/JHM-D-14-0008.1

    Arguments:
        values: Statistics, with shape :math:`(N, M + 1, K)`; squares are summed over :math:`K`.
    """
    truth, members = values[:, 0].double(), values[:, 1:].double()
    count = members.shape[1]
    spread = members.var(dim=1).sum(dim=1)
    skill = (truth - members.mean(dim=1)).square().sum(dim=1)
    # where the error is hardly larger than that of a mean of M members, little is known
    right = (skill.mean() - spread.mean() / count).clamp_min(1e-2 * skill.mean())
    ratio = (spread.mean() / right).sqrt()
    influence = spread / spread.mean() - (skill - spread / count) / right
    return Estimate(ratio.item(), (ratio * influence.std() / 2 / math.sqrt(len(truth))).item())


def energy_scores(table: Tensor) -> Tensor:
    r"""Returns the fair energy score of each truth of a table, with shape (N):

    .. math:: \frac{1}{M} \sum_m \|x_m - x^*\| - \frac{1}{2 M (M - 1)} \sum_{m, n} \|x_m - x_n\| .

    References:
        | Strictly Proper Scoring Rules, Prediction, and Estimation (Gneiting & Raftery, 2007),
        | Section 4.3, https://doi.org/10.1198/016214506000001437
    """
    truth, members = table[:, :1].double(), table[:, 1:].double()
    count = members.shape[1]
    error = torch.cdist(members, truth).mean(dim=(1, 2))
    # not by matrix products, which cancel
    pairs = torch.cdist(members, members, compute_mode="donot_use_mm_for_euclid_dist")
    return error - pairs.sum(dim=(1, 2)) / (2 * count * (count - 1))
