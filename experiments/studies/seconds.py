"""How many seconds does an ensemble take, beside azula's MMPS and PCFM's own sampler?

All take turns in one process, on the same denoiser and the same constraint. The two rivals run
with several numbers of steps, from checkouts. MMPS's samples are projected at the
end. The default has no option set.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

import feasibly
from feasibly.problem import Problem
from feasibly.samplers import PostHoc

from .. import peers
from ..benches.exact import ExactCase
from ..benches.exact_problems import PROBLEMS
from ..records import DEFAULT, Record, grouped
from ..study import Measurement
from ..tables import TEXT, Columns
from .referee import Counted

CASES: Mapping[str, str] = {
    "clusters, 4 values": "clusters-8d-8k-4r-all-flow",
    "regimes, 24 values": "regimes-32d-2k-24r-0error-flow",
    "heat, 16 initial values": "heat-16-initial-flow",
    "a field, a wave": "field-16x16-waves1-l0.5-flow",
}
"""The name of each problem in the study `defaults`. All are flows, which PCFM is made for,
and have several residuals, which its code needs."""

MEMBERS, SEEDS = 256, 3
MMPS, PCFM = "azula's MMPS, projected", "PCFM's own"
BUDGETS: Mapping[str, Sequence[int | None]] = {
    DEFAULT: (None,),
    MMPS: (8, 16, 32, 64, 128, 256),
    PCFM: (8, 32, 128),
}
"""Numbers of steps; none for the default."""

EQUAL = 1.1
"""Two distances are the same up to this factor: chance moves one by about so much."""


def sampler(label: str, steps: int | None, case: Any) -> Callable[[int], Tensor]:
    """Returns what maps a seed to samples, with shape (MEMBERS, *); `case` is one of
    the bench `exact`."""
    denoiser, constraint, shape = Counted(case.denoiser), case.constraint, case.shape

    def default(seed: int) -> Tensor:
        return feasibly.sample(case.denoiser, constraint, MEMBERS, shape, seed=seed).samples

    def mmps(seed: int) -> Tensor:
        torch.manual_seed(seed)
        options = {"iterations": 8, "steps": steps}
        x = peers.azula_mmps(denoiser, constraint, MEMBERS, shape, **options)
        # it satisfies no constraint to the tolerance; this takes no evaluation
        return PostHoc(problem=Problem(case.denoiser, constraint, shape)).finish(x)

    def pcfm(seed: int) -> Tensor:
        noise = torch.randn(MEMBERS, *shape, generator=torch.Generator().manual_seed(seed))
        grid = noise.reshape(MEMBERS, shape[0], -1)

        def v(t: Tensor, u: Tensor) -> Tensor:
            return peers.velocity(denoiser)(t, u.reshape(-1, *shape)).reshape(u.shape)

        def residual(u: Tensor) -> Tensor:
            return constraint.residual(u.reshape(1, *shape))[0]

        assert steps is not None
        return peers.pcfm(v, grid, residual, steps, guided=False).reshape(noise.shape)

    return {DEFAULT: default, MMPS: mmps, PCFM: pcfm}[label]


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples a problem by all in turns, and scores each ensemble. Seconds are the median, which
    leaves out a first turn that warms up."""
    case = ExactCase(PROBLEMS[setting["posterior"]])
    ways = [(label, steps) for label, budgets in BUDGETS.items() for steps in budgets]
    taken: dict[tuple, list[float]] = {way: [] for way in ways}
    found: dict[tuple, list[Record]] = {way: [] for way in ways}
    for seed in range(SEEDS):
        for way in ways:
            sample = sampler(*way, case)
            start = time.perf_counter()
            x = sample(seed)
            taken[way].append(time.perf_counter() - start)
            found[way].append(case.judged(x, MEMBERS))
    return [
        {
            "label": label,
            "steps": steps,
            "members": MEMBERS,
            "seconds": median(taken[label, steps]),
            **{
                key: fmean(one[key] for one in found[label, steps])
                for key in ("feasible", "ratio", "std")
            },
        }
        for label, steps in ways
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: of each problem the default, and of a rival the fastest that
    is as near, or the nearest if none is."""
    shown = []
    for (_,), group in grouped(records, "case").items():
        by_label = grouped(group, "label")
        (own,) = by_label[DEFAULT,]
        for some in by_label.values():
            near = [record for record in some if record["ratio"] <= EQUAL * own["ratio"]]
            key, best = ("seconds", near) if near else ("ratio", some)
            chosen = min(best, key=lambda record, key=key: record[key])
            shown.append(chosen | {"times": chosen["seconds"] / own["seconds"]})
    return shown


COLUMNS: Columns = {
    "case": ("problem", TEXT),
    "label": ("method", TEXT),
    "steps": ("steps", "{}"),
    "ratio": ("distance", "{:.2f}"),
    "feasible": ("feasible", "{:.1%}"),
    "seconds": ("seconds", "{:.2f}"),
    "times": ("seconds / the default's", "{:.2f}"),
}

MEASUREMENT = Measurement(
    name="seconds",
    question="How many seconds does an ensemble take, beside azula's MMPS and PCFM's own sampler?",
    problem="exact",
    measure=measure,
    settings=[{"case": case, "posterior": name} for case, name in CASES.items()],
    columns=COLUMNS,
    rows=rows,
)
