"""How many network evaluations do the paper's settings ask for on KS? Its numbers, row by row, and
ours."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from feasibly.constraints import Constraint, Equality
from feasibly.denoisers import Denoiser
from feasibly.oracles import Gaussian
from feasibly.problem import Problem
from feasibly.samplers import CPS, DPS, HDC, MMPS, PDM, PPR, Method, TrustSampling
from feasibly.schedules import LogLogit

from ..paper import EVALUATIONS, KS_RESIDUALS
from ..records import Record
from ..study import Measurement
from ..tables import TEXT

_paper: dict[str, Callable[..., Method]] = {
    "PPR": PPR,
    "DPS": partial(DPS, output="projected"),
    "MMPS": partial(MMPS, corrections=4, iterations=3, rtol=0.0),
    "TS": partial(TrustSampling, iterations=64, bound=math.inf),
    "CPS": CPS,
    "PDM": partial(PDM, repeats=64),
    "HDC": HDC,
}

_conventions: dict[str, tuple[Callable[[int], tuple[int, int]], str]] = {
    "PPR": (
        lambda T: (T + T * 2 + T * 2 * 8, T * 2 * 8),
        "T predictions, M = 2 projected estimates, 8 gradients each",
    ),
    "DPS": (
        lambda T: (T + T, T),
        "T predictions, T gradients; ours share their forward evaluation",
    ),
    "MMPS": (
        lambda T: (T * (1 + 4), T * (1 + 4) * (3 + 1)),
        "4 corrections, 3 solver iterations and V J^T v; ours needs no evaluation for that",
    ),
    "TS": (
        lambda T: (T * (1 + 1 + 64 + 64), T * 64),
        "T predictions, 1 + 64 tests, 64 gradients; ours share test and gradient",
    ),
    "CPS": (lambda T: (T, 0), "the projection does not ask the network"),
    "PDM": (lambda T: (T * 64, 0), "64 Langevin steps a level"),
    "HDC": (lambda T: (T, 0), "no guidance, no time travel"),
}
"""How the paper counts, a forward evaluation for each gradient, and with what options: it states
neither, and these are the only round numbers that give its table."""


def make(method: str, denoiser: Denoiser, constraint: Constraint, steps: int) -> Method:
    """Makes a method in the paper's setting, with a number of steps."""
    return _paper[method](steps=steps).bind(Problem(denoiser, constraint, (1,)))


def measure(setting: dict) -> list[Record]:
    """Counts a method's budget, of one attempt: its own, and by the paper's convention."""
    oracle = Gaussian(torch.zeros(1), torch.eye(1), LogLogit())
    constraint = Equality(lambda x: x[:, 0], tolerance=1.0)
    sampler = make(setting["method"], oracle, constraint, setting["steps"])
    forward, backward = sampler.budget(KS_RESIDUALS)
    convention, _ = _conventions[setting["method"]]
    by_convention = dict(zip(("forward", "backward"), convention(setting["steps"]), strict=True))
    return [{"forward": forward, "backward": backward, "by_convention": by_convention}]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the table's rows: our budgets beside the paper's."""
    found = []
    for row in records:
        theirs, (_, why) = EVALUATIONS[row["method"]], _conventions[row["method"]]
        beside = {"paper_forward": theirs["forward"], "paper_backward": theirs["backward"]}
        found.append(row | beside | {"why": why})
    return found


MEASUREMENT = Measurement(
    name="budgets",
    question="How many network evaluations do the paper's settings ask for on KS?",
    problem="ks",
    settings=[{"method": name, "steps": row["steps"]} for name, row in EVALUATIONS.items()],
    measure=measure,
    rows=rows,
    columns={
        "method": ("method", "{}"),
        "steps": ("T", "{}"),
        "forward": ("forward", "{}"),
        "backward": ("backward", "{}"),
        "paper_forward": ("paper: forward", "{}"),
        "paper_backward": ("paper: backward", "{}"),
        "why": ("how the paper counts", TEXT),
    },
)
