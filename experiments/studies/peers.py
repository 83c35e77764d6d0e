"""How do other authors' own samplers do on solutions of the heat equation, beside the default?

The task is that of Physics-Constrained Flow Matching: the initial state is given, and it implies
the mass at all times. PCFM is given the mass too, and so is the default on the learned flow. The
decay is free, and uniform on [1, 5]. Their code runs from a checkout, see
:mod:`experiments.peers`, on the same flows: one exact, one learned.

References:
    | Physics-Constrained Flow Matching (Utkarsh et al., 2025), https://arxiv.org/abs/2506.04171
    | Gradient-Free Generation for Hard-Constrained Systems (Cheng et al., 2025)
    | https://arxiv.org/abs/2412.01786
"""

__all__ = ["COLUMNS", "LABELS", "MEASUREMENT", "measure", "rows"]

import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

import feasibly
from feasibly.network import Evaluations, Network

from .. import peers
from ..records import DEFAULT, TRUTH, Record, grouped
from ..study import Measurement
from ..tables import TEXT, Columns

CASES = ("exact, flow", "learned, flow")
MEMBERS, SEEDS = 64, 3

LABELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    DEFAULT: ("", {}),
    "PCFM's own": ("PCFM", {"steps": 100, "guided": False}),
    "PCFM's own, relaxed correction": ("PCFM", {"steps": 100, "guided": True}),
    "ECI's own, 5 mixes": ("ECI-sampling", {"steps": 200, "mix": 5, "resample": 0}),
    "ECI's own, noise resampled every 5": (
        "ECI-sampling",
        {"steps": 200, "mix": 1, "resample": 5},
    ),
    TRUTH: ("", {}),
}
"""For each label whose code it is, and its settings: those of their examples and defaults."""


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples one ensemble, and scores it."""
    from ..benches.heat import HeatBench, HeatCase

    label, seed = setting["label"], setting["seed"]
    case = HeatBench().case({"case": setting["case"], "number": seed})
    assert isinstance(case, HeatCase)
    if label == TRUTH:
        x = case.posterior.sample(MEMBERS, Generator().manual_seed(seed))
        return [case.about(x) | _violations(x, case.reference)]
    taken = Evaluations()
    start = time.perf_counter()
    if label == DEFAULT:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = feasibly.sample(
                case.denoiser, case.constraint, MEMBERS, case.shape, seed=seed
            )
        x, taken, made_by = result.samples, result.evaluations, ""
    else:
        name, settings = LABELS[label]
        x = _theirs(name, settings, Network(case.denoiser, taken), case.reference, seed)
        made_by = peers.commit(name)
    return [
        case.about(x)
        | _violations(x, case.reference)
        | {
            "evaluations": (taken.member_forward + taken.member_backward) / MEMBERS,
            "seconds": time.perf_counter() - start,
            "commit": made_by,
        }
    ]


def _theirs(
    name: str, settings: Mapping[str, Any], network: Network, reference: Tensor, seed: int
) -> Tensor:
    """Samples by a peer's code, with shape (N, nx, nt)."""
    v, n = peers.velocity(network), len(reference)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name == "ECI-sampling":
            known = torch.zeros_like(reference, dtype=torch.bool)
            known[:, 0] = True
            return peers.eci(v, reference, known, MEMBERS, **settings)
        x = torch.linspace(0, 2 * math.pi * (n - 1) / n, n)
        residuals = peers.load("PCFM", "constraints").Residuals(
            reference[None], x, torch.linspace(0, 1, n), nx=n, nt=n
        )
        u = torch.randn(MEMBERS, n, n)
        return peers.pcfm(v, u, residuals.full_residual_heat, **settings)


def _violations(x: Tensor, reference: Tensor) -> Record:
    """The root mean squares of the initial state's error, and of the mass at all times."""
    x = x.double()
    return {
        "initial": (x[:, :, 0] - reference[:, 0]).square().mean().sqrt().item(),
        "mass": x.mean(dim=1).square().mean().sqrt().item(),
    }


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: means over seeds, and the least p-value."""
    found = []
    for (case, label), group in grouped(records, "case", "label").items():
        row: Record = {"case": case, "label": label, "p": min(one["p"] for one in group)}
        for name in ("mmse", "smse", "initial", "evaluations"):
            values = [one[name] for one in group if name in one]
            row |= {name: statistics.fmean(values)} if values else {}
        found.append(row)
    return found


COLUMNS: Columns = {
    "case": ("flow", TEXT),
    "label": ("method", TEXT),
    "mmse": ("MMSE", "{:.1e}"),
    "smse": ("SMSE", "{:.1e}"),
    "p": ("decay is uniform, least p of 3", "{:.1g}"),
    "initial": ("error of the initial state", "{:.0e}"),
    "evaluations": ("evaluations a member", "{:.0f}"),
}

MEASUREMENT = Measurement(
    name="peers",
    question="How do other authors' own samplers do on the heat equation, beside the default?",
    problem="heat",
    settings=[
        {"case": case, "label": label, "seed": seed, "members": MEMBERS}
        for case in CASES
        for label in LABELS
        for seed in range(SEEDS)
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
