"""How does the sampler of PPR's own authors do on Data2D?

It is that of a pull request to azula, which is not released, and runs from a checkout. It has no
tolerance and no retries. Its projection takes Adam, a step each, or any optimizer.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from feasibly.network import Evaluations, Network, counted
from feasibly.problems.data2d import DISTRIBUTIONS

from .. import peers, records
from ..benches.data2d import Data2DBench
from ..records import DEFAULT, Record
from ..study import Measurement
from ..tables import Columns, means, pick

LBFGS = partial(torch.optim.LBFGS, line_search_fn="strong_wolfe")
LABELS: Mapping[str, Mapping[str, Any]] = {
    "azula's PPR, its defaults": {},
    "azula's PPR, L-BFGS": {"optimizer": LBFGS},
}
"""Its settings. The optimizer has the settings that it has in torch, and a line search."""

OURS = (DEFAULT, "PPR", "PPR, no retries")
"""The rows of the study `baselines` that stand beside them."""

MEMBERS, POOL, CONSTRAINTS = 1024, 49152, 12


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples one ensemble, and scores it."""
    prior, k = setting["prior"], setting["constraint"]
    bench = Data2DBench("data2d", [prior], range(k, k + 1), MEMBERS, POOL)
    case = bench.case(setting)
    taken = Evaluations()
    start = time.perf_counter()
    with torch.random.fork_rng(), counted(taken):
        torch.manual_seed(0)
        x = peers.azula_ppr(
            Network(case.denoiser),
            case.constraint,
            MEMBERS,
            case.shape,
            **LABELS[setting["label"]],
        )
    return [
        case.about(x)
        | {
            "default": False,
            "sampler": setting["label"],
            "seed": 0,
            "forward": taken.forward,
            "backward": taken.backward,
            "member_forward": taken.member_forward / MEMBERS,
            "member_backward": taken.member_backward / MEMBERS,
            "seconds": time.perf_counter() - start,
            "commit": peers.commit("azula"),
        }
    ]


def rows(found: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: the means over settings, below those of ours."""
    known = {row["label"]: row for row in means(records.read("baselines", "data2d"))}
    return [*(known[label] for label in OURS), *means(found)]


COLUMNS: Columns = pick("feasible", "on_manifold", "joint", "knn", "weight_error", "evaluations")

MEASUREMENT = Measurement(
    name="azula",
    question="How does the sampler of PPR's own authors do on Data2D?",
    problem="data2d",
    settings=[
        {"label": label, "prior": prior, "constraint": k, "members": MEMBERS}
        for label in LABELS
        for prior in DISTRIBUTIONS
        for k in range(CONSTRAINTS)
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
