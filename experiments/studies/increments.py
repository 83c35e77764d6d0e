"""How far are samplers from the best estimate of a signal, and what do their ensembles cover?

Signals have independent increments, and are observed with errors. The mean of 32 exact samples
has a gap of 10 log10(1 + 1/32) = 0.13 decibels on average.

The problems and the measures are those of a benchmark of posterior samplers, see
:mod:`experiments.tasks.increments`. Other authors' code runs from a checkout, see
:mod:`experiments.peers`.

References:
    | A Statistical Benchmark for Diffusion Posterior Sampling Algorithms (ICLR 2026)
    | https://arxiv.org/abs/2509.12821
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Generator, Tensor

from feasibly import members
from feasibly.constraints import EachMember, Linear
from feasibly.network import Evaluations, Network, counted
from feasibly.samplers import DPS, MMPS, Method

from .. import peers
from ..records import DEFAULT, TRUTH, Record, averages, grouped
from ..samplers import cost, quiet
from ..study import Measurement
from ..tables import TEXT, Columns
from ..tasks.increments import INCREMENTS, Task, operators, task

OPERATORS = tuple(operators())
SIGNALS, MEMBERS, REFERENCES = 16, 32, 64
NOMINAL = 0.9
"""The share of the posterior that an ensemble's region should cover."""

OURS: Mapping[str, str | Method] = {
    DEFAULT: "auto",
    "MMPS": MMPS(),
    "DPS, zeta = 0.1": DPS(steps=128, zeta=0.1),
}
"""For each label the method. DPS has the best of five strengths, by its error on normal
increments."""

THEIRS = "azula's MMPS"
LABELS = (TRUTH, *OURS, THEIRS)


@lru_cache(maxsize=1)
def _posed(increments: str, operator: str) -> tuple[Task, Tensor, Tensor]:
    """A task, samples of its exact posterior, and the exact mean."""
    seed = OPERATORS.index(operator)
    found = task(increments, operator, SIGNALS, seed)
    return found, *found.posterior(REFERENCES, Generator().manual_seed(100 + seed))


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples an ensemble for each signal, and scores them."""
    label = setting["label"]
    posed, exact, mean = _posed(setting["increments"], setting["operator"])
    taken, start = Evaluations(), time.perf_counter()
    if label == TRUTH:
        seed = OPERATORS.index(setting["operator"])
        x, _ = posed.posterior(MEMBERS, Generator().manual_seed(200 + seed))
        return [_scores(posed, x, exact, mean)]
    shape, count = tuple(posed.truths.shape[1:]), SIGNALS * MEMBERS
    seen = Linear(posed.A, torch.zeros(len(posed.A)), noise=posed.noise)
    constraint = EachMember(seen, posed.y / posed.noise, repeats=MEMBERS)
    denoiser = posed.denoiser()
    if label in OURS:
        chosen = {"method": OURS[label], "monitor": label == DEFAULT}
        result = quiet(denoiser, constraint, count, shape, dtype=torch.float64, **chosen)
        x, taken = result.samples, result.evaluations
    else:
        network = Network(denoiser)
        with torch.random.fork_rng(), members.calling(range(count)), counted(taken):
            torch.manual_seed(0)
            x = peers.azula_mmps(network, constraint, count, shape, iterations=8, steps=64)
    found = _scores(posed, x.double().reshape(SIGNALS, MEMBERS, *shape), exact, mean)
    commit = "" if label in OURS else peers.release("azula")
    return [found | cost(taken, count, start) | {"commit": commit}]


def _scores(task: Task, x: Tensor, exact: Tensor, mean: Tensor) -> Record:
    return {
        "gap": gap(x.mean(dim=1), mean, task.truths).tolist(),
        "coverage": coverage(task.log_density(x), task.log_density(exact)).tolist(),
        "std": (x.var(dim=1).sum(dim=1) / exact.var(dim=1).sum(dim=1)).sqrt().tolist(),
    }


def gap(found: Tensor, best: Tensor, truths: Tensor) -> Tensor:
    """Returns how much larger the squared error of an estimate is than that of the best one, in
    decibels, with shape (N)."""
    errors = [(one - truths).square().mean(dim=1) for one in (found, best)]
    return 10 * (errors[0] / errors[1]).log10()


def coverage(log_p: Tensor, exact: Tensor) -> Tensor:
    """Returns which share of the posterior has at least the density that nine in ten members have,
    with shape (N).

    Arguments:
        log_p: The log-densities of members, with shape (N, M).
        exact: Those of samples of the exact posterior, with shape (N, K).
    """
    count = log_p.shape[1]
    place = ((1 - NOMINAL) * (count + 1) - 1) / (count - 1)  # of one more sample's quantile
    return (exact >= log_p.quantile(place, dim=1, keepdim=True)).double().mean(dim=1)


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: means over operators and signals, and the coverage that is
    farthest from its nominal value."""
    found = []
    for (increments, label), group in grouped(records, "increments", "label").items():
        covered = [statistics.fmean(row["coverage"]) for row in group]
        row: Record = {
            "increments": increments,
            "label": label,
            "coverage": statistics.fmean(covered),
            "worst": max(covered, key=lambda share: abs(share - NOMINAL)),
            **{k: statistics.fmean(x for row in group for x in row[k]) for k in ("gap", "std")},
            **averages(group, "evaluations"),
        }
        found.append(row)
    return found


COLUMNS: Columns = {
    "increments": ("increments", TEXT),
    "label": ("method", TEXT),
    "gap": ("gap (dB)", "{:.2f}"),
    "coverage": ("covered, 90% asked", "{:.1%}"),
    "worst": ("worst operator", "{:.1%}"),
    "std": ("std / exact", "{:.2f}"),
    "evaluations": ("evaluations a member", "{:.0f}"),
}

MEASUREMENT = Measurement(
    name="increments",
    question="How far are samplers from the best estimate of a signal, and what do they cover?",
    problem="exact",
    settings=[
        {"increments": name, "operator": operator, "label": label, "members": MEMBERS}
        for name in INCREMENTS
        for operator in OPERATORS
        for label in LABELS
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
