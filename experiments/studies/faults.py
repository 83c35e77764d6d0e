"""Does an audit find faults that are known, and how many truths does it need?

Beside each sampler with a fault stands the default on the same problem, whose distribution is
right. Weights of modes are wrong in the model: truths are data with other weights.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import feasibly
from feasibly import priors
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.schedules import LogLogit

from ..records import Record, grouped
from ..study import Measurement
from ..tables import TEXT, Columns
from .audit import EXACT, Case, case

FEW, MANY, SEEDS = (64,), (64, 256, 512), 20
MEMBERS = 7


class Known(NamedTuple):
    """A problem with a sampler whose fault is known.

    Attributes:
        data: Makes the truths, from a seed; None for truths of the prior itself.
    """

    make: Callable[[], Case]
    fault: str
    method: str
    data: Callable[[int], Tensor] | None = None
    truths: Sequence[int] = FEW
    seeds: int = 1


def normals() -> Case:
    """Thirty independent normals with a given mean."""
    mean = feasibly.Equality(lambda x: x.mean(dim=1), tolerance=1e-8)
    return Case(Gaussian(torch.zeros(30), torch.eye(30), LogLogit()), mean, (30,))


def heat() -> Case:
    """Solutions of the heat equation from a given initial state."""
    return case(EXACT, "heat-16-initial-loglogit")


def board() -> Case:
    """Points of the trained checkerboard on a wave."""
    wave = feasibly.Equality(lambda x: torch.sin(3 * x[:, 0]) - x[:, 1], tolerance=1e-8)
    return Case(priors.load("checkerboard"), wave, (2,))


def modes(weight: float = 0.5) -> Case:
    """Two modes along the first coordinate, with the second one given."""
    mu = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])
    cov = 0.1 * torch.eye(2).expand(2, 2, 2)
    prior = GaussianMixture(torch.tensor([weight, 1 - weight]), mu, cov, LogLogit())
    given = feasibly.Equality(lambda x: x[:, 1] - 0.1, tolerance=1e-8)
    return Case(prior, given, (2,))


def even(seed: int) -> Tensor:
    """Samples of two modes of equal weights."""
    generator = torch.Generator().manual_seed(seed)
    side = 2.0 * torch.randint(2, (4 * max(MANY), 1), generator=generator) - 1
    x = math.sqrt(0.1) * torch.randn(len(side), 2, generator=generator)
    return x + torch.cat([2.0 * side, torch.zeros_like(side)], dim=1)


PROBLEMS: Mapping[str, Known] = {
    "30 normals, PPR": Known(normals, "spread 0.73", "ppr-tuned"),
    "30 normals, HDC": Known(normals, "spread", "hdc"),
    "30 normals, default": Known(normals, "", "auto"),
    "heat, PPR": Known(heat, "distribution of the decay", "ppr-tuned"),
    "heat, ECI": Known(heat, "distribution of the decay", "eci"),
    "heat, default": Known(heat, "", "auto"),
    "checkerboard, post-hoc": Known(board, "members off the board", "post-hoc"),
    "checkerboard, default": Known(board, "", "auto"),
    "two modes, wrong weights": Known(
        lambda: modes(0.6), "weights off by 0.1", "auto", even, MANY, SEEDS
    ),
    "two modes, default": Known(modes, "", "auto", even, MANY, SEEDS),
}


def measure(setting: dict) -> list[Record]:
    """Audits one sampler, and returns what was found."""
    known = PROBLEMS[setting["label"]]
    problem = known.make()
    found = feasibly.audit(
        *problem,
        methods=(known.method,),
        data=None if known.data is None else known.data(setting["seed"]),
        truths=setting["truths"],
        members=MEMBERS,
        seed=setting["seed"],
    )
    (candidate,) = found.candidates
    seen = candidate.examination
    if seen is None:
        raise ValueError(f"{setting['label']} was not audited: {candidate.failure}")
    return [
        {
            "fault": known.fault,
            "spread": list(seen.ratio),
            "p": {finding.family: finding.p for finding in seen.findings},
            "found": [finding.family for finding in seen.findings if finding.found],
            "verdict": candidate.verdict,
            "feasible": candidate.feasible,
            "evaluations": candidate.evaluations,
        }
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: one for each sampler and size."""
    return [
        {
            "label": label,
            "fault": group[0]["fault"] or "none",
            "truths": truths,
            "share": f"{sum(bool(row['found']) for row in group)} of {len(group)}",
            "by": ", ".join(dict.fromkeys(name for row in group for name in row["found"])) or "-",
            "p": statistics.median(min(row["p"].values()) for row in group),
            "spread": statistics.fmean(row["spread"][0] for row in group),
        }
        for (label, truths), group in grouped(records, "label", "truths").items()
    ]


COLUMNS: Columns = {
    "label": ("problem, method", TEXT),
    "fault": ("known fault", TEXT),
    "truths": ("truths", "{}"),
    "share": ("audits that find a fault", "{}"),
    "by": ("by", TEXT),
    "p": ("least p, median", "{:.1g}"),
    "spread": ("spread", "{:.2f}"),
}

MEASUREMENT = Measurement(
    name="faults",
    question="Does an audit find faults that are known, and how many truths does it need?",
    problem=EXACT,
    settings=[
        {"label": label, "truths": truths, "seed": seed}
        for label, known in PROBLEMS.items()
        for truths in known.truths
        for seed in range(known.seeds)
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
