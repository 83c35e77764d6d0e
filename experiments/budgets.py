"""The network calls of the paper's comparison on KS, row by row: the paper's and ours."""

__all__ = ["PAPER", "render", "rows"]

import math
from collections.abc import Callable
from functools import partial

import torch

from feasibly.constraints import Equality
from feasibly.minimizers import LBFGS
from feasibly.oracles import Gaussian
from feasibly.samplers import CPS, DPS, HDC, MMPS, PDM, PPR, TrustSampling
from feasibly.schedules import LogLogit

from .records import Record
from .studies.base import Make

RESIDUALS = 384
"""Three slices of 128 points."""

PAPER = {
    "PPR": (64, 1216, 1024),
    "DPS": (1024, 2048, 1024),
    "MMPS": (1024, 5120, 20480),
    "TrustSampling": (192, 24960, 12288),
    "CPS": (1024, 1024, 0),
    "PDM": (384, 24576, 0),
    "HDC": (1024, 1024, 0),
}
"""T, forward and backward calls of the paper's table of results on KS."""

_make: dict[str, Make] = {
    "PPR": partial(PPR, repeats=2, minimize=LBFGS(steps=8), sigma_max=math.inf, retries=0),
    "DPS": partial(DPS, readout="clean"),
    "MMPS": partial(MMPS, corrections=4, iterations=3, rtol=0.0),
    "TrustSampling": partial(TrustSampling, iterations=64, bound=math.inf),
    "CPS": CPS,
    "PDM": partial(PDM, repeats=64),
    "HDC": HDC,
}

Convention = Callable[[int], tuple[int, int]]

_conventions: dict[str, tuple[Convention, str]] = {
    "PPR": (
        lambda T: (T + T * 2 + T * 2 * 8, T * 2 * 8),
        "T predictions, M = 2 projected estimates, 8 gradients each",
    ),
    "DPS": (lambda T: (T + T, T), "T predictions, T gradients; ours share their forward call"),
    "MMPS": (
        lambda T: (T * (1 + 4), T * (1 + 4) * (3 + 1)),
        "4 corrections, 3 solver iterations and V J^T v; ours needs no call for that",
    ),
    "TrustSampling": (
        lambda T: (T * (1 + 1 + 64 + 64), T * 64),
        "T predictions, 1 + 64 tests, 64 gradients; ours share test and gradient",
    ),
    "CPS": (lambda T: (T, 0), "the projection does not ask the network"),
    "PDM": (lambda T: (T * 64, 0), "64 Langevin steps a level"),
    "HDC": (lambda T: (T, 0), "no guidance, no time travel"),
}
"""How the paper's convention counts, a forward call for each gradient, and with what options: the
paper states neither, and these are the only round numbers that give its table."""


def rows() -> list[Record]:
    """Returns the budgets of each method: the settings' own, and by the paper's convention."""
    oracle = Gaussian(torch.zeros(1), torch.eye(1), LogLogit())
    law = Equality(lambda x: x[:, 0], tolerance=1.0)
    table = []
    for name, (steps, *_) in PAPER.items():
        sampler = _make[name](oracle, law, steps=steps)  # ty: ignore[unknown-argument]
        forward, backward = sampler.budget(RESIDUALS)
        convention, why = _conventions[name]
        paper_forward, paper_backward = convention(steps)
        table.append(
            {
                "method": name,
                "steps": steps,
                "forward": forward,
                "backward": backward,
                "paper_forward": paper_forward,
                "paper_backward": paper_backward,
                "why": why,
                "make": _make[name],
            }
        )
    return table


def render() -> str:
    """Renders the budgets as a Markdown table."""
    heads = (
        "method",
        "T",
        "forward",
        "backward",
        "paper: forward",
        "paper: backward",
        "how the paper counts",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * 5 + "---|"]
    keys = ("method", "steps", "forward", "backward", "paper_forward", "paper_backward", "why")
    lines += ["| " + " | ".join(str(row[key]) for key in keys) + " |" for row in rows()]
    return "\n".join(lines)
