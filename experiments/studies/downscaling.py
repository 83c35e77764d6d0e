"""Do downscaled fields keep their coarse means, and is their spread right?

Fields are windows of sea-surface temperature, one of each held-out month, given the exact means
over blocks of 4 x 4 points; see :mod:`experiments.tasks.sst`.
"""

import math
import time
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate

from feasibly.constraints import Observation
from feasibly.metrics import summary

from .. import figures, peers
from ..records import DEFAULT, Record, averages, grouped, pack
from ..samplers import quiet
from ..study import Measurement
from ..tables import TEXT, Columns
from ..tasks import sst

MEMBERS, FIELDS = 32, 12
ATOL = 1e-6
"""The largest error of a mean, in standard deviations of the training data."""

LOOSER, GAUSSIAN, CLIMATOLOGY, BILINEAR = (
    f"{DEFAULT}, means to 1e-5",
    "linear Gaussian, exact",
    "climatology",
    "bilinear interpolation",
)
OURS = {
    DEFAULT: "auto",
    LOOSER: "auto",
    "MMPS": "mmps",
    "DPS": "dps",
    "PPR": "ppr-tuned",
    "post-hoc projection": "post-hoc",
}
LABELS = (*OURS, GAUSSIAN, CLIMATOLOGY, BILINEAR)
SHOWN = 8
"""The field of the figure: June 2010 in the eastern Pacific."""


@lru_cache(maxsize=1)
def covariance() -> Tensor:
    """Returns the second moments of the training windows, in double precision."""
    x = sst.data().train.flatten(start_dim=1).double()
    return x.T @ x / len(x)


def conditional(cov: Tensor, y: Tensor, members: int, generator: Generator) -> Tensor:
    """Samples a Gaussian of mean zero given means over blocks, with shape (members, 16, 32).

    Arguments:
        cov: The covariance, with shape (512, 512).
        y: The means, with shape (4, 8).
    """
    A = sst.blocks(torch.eye(len(cov)).to(cov).reshape(-1, *sst.SHAPE)).flatten(start_dim=1).T
    gain = torch.linalg.solve(A @ cov @ A.T, A @ cov).T
    values, vectors = torch.linalg.eigh(cov)
    noise = torch.randn(members, len(cov), generator=generator).to(cov)
    z = noise * values.clamp_min(0).sqrt() @ vectors.T
    return (z + (y.flatten().to(cov) - z @ A.T) @ gain.T).reshape(-1, *sst.SHAPE)


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Downscales one field by one method, and scores it. Temperatures are in kelvin."""
    label, field, members = setting["label"], setting["field"], setting["members"]
    data = sst.data()
    truth = data.held_out[field]
    y = sst.blocks(truth[None])[0]
    found, start = Record(), time.perf_counter()
    if label in OURS:
        constraint = Observation(sst.blocks, y, atol=10 * ATOL if label == LOOSER else ATOL)
        result = quiet(sst.prior(), constraint, members, sst.SHAPE, method=OURS[label], seed=field)
        x = result.samples
        taken = result.evaluations
        found |= {
            "feasible": result.feasible.double().mean().item(),
            "forward": taken.member_forward / members,
            "backward": taken.member_backward / members,
            "warnings": list(result.warnings),
        }
    elif label == GAUSSIAN:
        x = conditional(covariance(), y, members, Generator().manual_seed(field)).float()
    elif label == CLIMATOLOGY:
        x = data.before[field]
    else:
        x = interpolate(y[None, None], scale_factor=sst.FACTOR, mode="bilinear")[0]
    found["seconds"] = time.perf_counter() - start
    found["residual"] = (sst.blocks(x.double()) - y).abs().max().item()
    if label == DEFAULT and field == SHOWN:
        shown = torch.stack([truth, *x[:2], x.mean(dim=0), x.std(dim=0)])
        found["picture"] = pack(data.unit * shown)
    x, truth = data.unit * x.double(), data.unit * truth.double()
    if len(x) == 1:
        found["crps"] = (x - truth).abs().mean().item()
        found["mean_se"] = (x - truth).square().mean().item()
    else:
        whole = summary(x[None, :, None], truth[None, None])
        found |= {key: whole[key][0] for key in ("crps", "mean_se", "variance")}
        found["ranks"] = whole["ranks"]
    return [found | {"ensemble": len(x)}]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: means over fields, by CRPS. Differences from the default have
    the standard errors of paired differences."""
    groups = {label: group for (label,), group in grouped(records, "label").items()}
    base = {one["field"]: one["crps"] for one in groups[DEFAULT]}
    found = []
    for label, group in groups.items():
        row: Record = {"label": label, "default": label == DEFAULT}
        row |= averages(group, "crps", "forward", "backward", "variance", "mean_se")
        row["crps"] *= 1000
        row["residual"] = max(one["residual"] for one in group)
        if label != DEFAULT:
            apart = 1000 * torch.tensor([one["crps"] - base[one["field"]] for one in group])
            error = apart.std().item() / math.sqrt(len(group))
            row["apart"] = f"{apart.mean().item():+.1f} ± {error:.1f}"
        if "variance" in row:
            M = group[0]["ensemble"]
            row["ratio"] = math.sqrt((M + 1) / M * row["variance"] / row["mean_se"])
            ends = [one["ranks"][0] + one["ranks"][-1] for one in group]
            row["outside"] = sum(ends) / len(ends) * (M + 1) / 2
        if "forward" in row:
            row["evaluations"] = f"{row['forward']:.0f} + {row['backward']:.0f}"
        found.append(row)
    return sorted(found, key=lambda row: row["crps"])


COLUMNS: Columns = {
    "label": ("method", TEXT),
    "crps": ("CRPS (mK)", "{:.1f}"),
    "apart": ("difference from the default", TEXT),
    "ratio": ("spread / skill", "{:.2f}"),
    "outside": ("truth outside", "{:.2f}"),
    "residual": ("largest error", "{:.0e}"),
    "evaluations": ("evaluations", TEXT),
}

MEASUREMENT = Measurement(
    name="downscaling",
    question="Do downscaled fields keep their coarse means, and is their spread right?",
    problem="sst",
    settings=[
        {"label": label, "field": field, "members": MEMBERS}
        for label in LABELS
        for field in range(FIELDS)
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
    figures={"": figures.downscaled},
)
