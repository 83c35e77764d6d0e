"""How Lipschitz is the projection?"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.minimizers import GaussNewton, Minimizer
from feasibly.problem import Problem
from feasibly.problems.data2d import CONSTRAINTS, DISTRIBUTIONS, Data2D
from feasibly.randomness import MemberNoise
from feasibly.run import trajectory
from feasibly.samplers import PPR
from feasibly.samplers.base import Randn, Step

from .. import figures
from ..records import Record, grouped
from ..study import Measurement

STEPS = 64
# Of sigma_t, on whose scale the denoiser varies. Truncation errors are of order 1e-10, and
# rounding errors, some 1e-16 of sigma_t or 1, are far below the difference even at sigma = 1e-3.
# The map jumps where a search stops or another iterate is the best. A tenth of the step changes,
# by more than a hundredth, less than 1 % of the default's constants at sigma < 10 and a fifth at
# sigma = 50; of the paper's, whose search has no bound, 4 to 8 % at sigma < 0.1, 10 to 20 % up to
# sigma = 5 and two thirds above 20. Those are lower bounds, no measurements of the maximum.
STEP = 1e-5
QUANTILES = (0.5, 0.9, 0.99)
PROJECTIONS: dict[str, Minimizer] = {
    "default": GaussNewton(),
    "paper": PPR.minimize,
}


def local_lipschitz(f: Callable[[Tensor], Tensor], x: Tensor, step: float) -> Tensor:
    r"""Returns the spectral norm of the Jacobian of `f` by central differences, with shape (B).

    Each column is a secant's slope, no longer than the Lipschitz constant :math:`L` whatever the
    step. So across a jump, too, the norm is at most :math:`\sqrt{D} L`; 1e300 stands for one that
    is not finite.

    Arguments:
        f: A map of states, with shape (B, D), to estimates of the same shape.
        x: Where to measure, with shape (B, D).
    """
    offsets = step * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    columns = [(f(x + offset) - f(x - offset)) / (2 * step) for offset in offsets]
    J = torch.stack(columns, dim=2)
    good = J.isfinite().all(dim=2).all(dim=1)
    J = torch.where(good[:, None, None], J, 0.0)  # the decomposition raises on others
    return torch.where(good, torch.linalg.matrix_norm(J, ord=2), 1e300)


@dataclass(frozen=True)
class Probe(PPR):
    r"""PPR that measures the map :math:`x_t \mapsto d_\theta(\Pi_d(x_t))` where it applies it.

    The memory of a step is the local Lipschitz constants at its states, with shape :math:`(B)`.
    """

    def kernel(
        self, x_t: Tensor, t: Tensor, radius: float, randn: Randn, memory: Any = None
    ) -> Step:
        _, sigma_t = self.denoiser.schedule(t)
        L = local_lipschitz(lambda x: self.project(x, t, radius).x_0, x_t, STEP * sigma_t.item())
        return super().kernel(x_t, t, radius, randn)._replace(memory=L)


def levels(
    denoiser: Denoiser,
    constraint: Constraint,
    minimize: Minimizer,
    members: int,
    steps: int,
) -> list[Record]:
    """Measures the Lipschitz constants along a run with a projection at every level.

    Returns:
        A record for every level, from the highest to the lowest.
    """
    method = Probe(steps=steps, repeats=1, minimize=minimize)
    sampler = method.bind(Problem(denoiser, constraint, (2,), dtype=torch.float64))
    noise = MemberNoise(0, range(members), (2,), dtype=torch.float64)
    found: list[Record] = []
    for _, s, (_, _, L) in islice(trajectory(sampler, noise), 1, None):
        alpha_s, sigma_s = (scale.item() for scale in sampler.denoiser.schedule(s))
        quantiles = L.quantile(torch.tensor(QUANTILES, dtype=L.dtype))
        found.append(
            {
                "sigma": sigma_s,
                "alpha": alpha_s,
                "max": L.max().item(),
                **{f"q{100 * q:g}": v.item() for q, v in zip(QUANTILES, quantiles, strict=True)},
                "contractive": (alpha_s * L < 1).double().mean().item(),
            }
        )
    return found


def measure(setting: dict) -> list[Record]:
    """Measures a constraint of Data2D."""
    problem = Data2D(setting["prior"])
    return levels(
        copy.deepcopy(problem.denoiser).double(),
        problem.constraint(setting["constraint"]),
        PROJECTIONS[setting["projection"]],
        setting["members"],
        STEPS,
    )


def settings() -> list[dict]:
    """Returns every projection, prior and constraint; the default projection comes first."""
    return [
        {"prior": prior, "constraint": k, "members": 1024, "projection": projection}
        for projection in PROJECTIONS
        for prior in DISTRIBUTIONS
        for k in range(CONSTRAINTS)
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the table's rows: where each projection contracts, and where it does so least."""
    found = []
    for (projection,), group in grouped(records, "projection").items():
        tame = [row["alpha"] * row["max"] < 1 for row in group]
        wild = {row["sigma"] for row, yes in zip(group, tame, strict=True) if not yes}
        sigmas = {row["sigma"] for row in group}
        members = sum(row["members"] for row in group)
        worst = max(group, key=lambda row: row["max"])
        found.append(
            {
                "projection": projection,
                "runs": len({(row["prior"], row["constraint"]) for row in group}),
                "levels": sum(tame) / len(tame),
                "all_runs": 1 - len(wild) / len(sigmas),
                "contractive": sum(row["contractive"] * row["members"] for row in group) / members,
                "median": max(row["q50"] for row in group),
                "largest": f"{worst['max']:.3g} at σ = {worst['sigma']:.3g}",
            }
        )
    return found


MEASUREMENT = Measurement(
    name="lipschitz",
    question="Is PPR's kernel a contraction on Data2D, as its error bound assumes?",
    problem="data2d",
    settings=settings(),
    measure=measure,
    rows=rows,
    columns={
        "projection": ("projection", "{}"),
        "runs": ("runs", "{}"),
        "levels": ("levels of a run with max αL < 1", "{:.1%}"),
        "all_runs": ("levels with αL < 1 in every run", "{:.1%}"),
        "contractive": ("members with αL < 1", "{:.1%}"),
        "median": ("median L, at most", "{:.3g}"),
        "largest": ("largest L", "{}"),
    },
    figures={"": figures.lipschitz},
)
