"""How Lipschitz is the projection?"""

__all__ = ["Probe", "levels", "local_lipschitz", "measurement"]

import copy
import math
from collections.abc import Callable, Sequence

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.minimizers import LBFGS, GaussNewton, Minimizer, Minimum
from feasibly.problems.data2d import CONSTRAINTS, DISTRIBUTIONS, Data2D
from feasibly.randomness import MemberNoise
from feasibly.samplers import PPR

from ..records import Record
from .base import Measurement

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
    "paper": LBFGS(steps=8, max_step=None),
}


def local_lipschitz(f: Callable[[Tensor], Tensor], x: Tensor, step: float) -> Tensor:
    r"""Returns the spectral norm of the Jacobian of `f` by central differences, with shape (B).

    Each column is a secant's slope, no longer than the Lipschitz constant :math:`L` whatever the
    step. So across a jump, too, the norm is at most :math:`\sqrt{D} L`; 1e300 stands for one that
    is not finite.

    Arguments:
        f: A map of states, with shape (B, D), to estimates of the same shape.
        x: Where to measure, with shape (B, D).
        step: How far to either side.
    """
    offsets = step * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    columns = [(f(x + offset) - f(x - offset)) / (2 * step) for offset in offsets]
    J = torch.stack(columns, dim=2)
    good = J.isfinite().all(dim=2).all(dim=1)
    J = torch.where(good[:, None, None], J, 0.0)  # the decomposition raises on others
    return torch.where(good, torch.linalg.matrix_norm(J, ord=2), 1e300)


class Probe(PPR):
    r"""PPR that measures the map :math:`x_t \mapsto d_\theta(\Pi_d(x_t))` where it applies it.

    Attributes:
        lipschitz: The local Lipschitz constants at the last states, with shape :math:`(B)`.
    """

    lipschitz: Tensor

    def search(self, x_t: Tensor, t: Tensor, reach: float | None = None) -> Minimum:
        _, sigma_t = self.denoiser.schedule(t)
        search = super().search
        self.lipschitz = local_lipschitz(
            lambda x: search(x, t, reach).x_0, x_t, STEP * sigma_t.item()
        )
        return search(x_t, t, reach)


def levels(
    denoiser: Denoiser,
    constraint: Constraint,
    minimize: Minimizer,
    members: int,
    steps: int,
) -> list[Record]:
    """Measures the Lipschitz constants along a run with a projection at every level.

    Arguments:
        denoiser: The denoiser, in double precision, of states with two coordinates.
        constraint: The constraint.
        minimize: The minimizer behind the projection.
        members: The number of members.
        steps: The number of levels.

    Returns:
        A record for every level, from the highest to the lowest.
    """
    sampler = Probe(
        denoiser, constraint, steps=steps, minimize=minimize, sigma_max=math.inf, retries=0
    )
    found: list[Record] = []
    for s, _, _ in sampler.trajectory(MemberNoise(0, range(members), (2,), dtype=torch.float64)):
        alpha_s, sigma_s = (scale.item() for scale in sampler.denoiser.schedule(s))
        L = sampler.lipschitz
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


def table(rows: Sequence[Record]) -> str:
    """Renders, for each projection, where it is a contraction and where it is least so."""
    heads = ("projection", "runs", "levels of a run with max αL < 1 (%)")
    heads += ("levels with αL < 1 in every run (%)", "members with αL < 1 (%)")
    heads += ("median L, at most", "largest L", "at σ")
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for projection, group in _by_projection(rows).items():
        tame = [row["alpha"] * row["max"] < 1 for row in group]
        wild = {row["sigma"] for row, yes in zip(group, tame, strict=True) if not yes}
        sigmas = {row["sigma"] for row in group}
        members = sum(row["members"] for row in group)
        contractive = sum(row["contractive"] * row["members"] for row in group) / members
        worst = max(group, key=lambda row: row["max"])
        cells = (
            projection,
            f"{len({(row['prior'], row['constraint']) for row in group})}",
            f"{100 * sum(tame) / len(tame):.1f}",
            f"{100 * (1 - len(wild) / len(sigmas)):.1f}",
            f"{100 * contractive:.1f}",
            f"{max(row['q50'] for row in group):.3g}",
            f"{worst['max']:.3g}",
            f"{worst['sigma']:.3g}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(rows: Sequence[Record]) -> Figure:
    """The largest Lipschitz constant over priors, constraints and members against the noise
    level, and the largest of the quantiles over members."""
    canvas = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(canvas)
    ax = canvas.subplots()
    styles = {"max": "-", "q99": "--", "q90": "-.", "q50": ":"}
    for i, (projection, group) in enumerate(_by_projection(rows).items()):
        sigmas = sorted({row["sigma"] for row in group})
        for key, style in styles.items():
            worst = [max(row[key] for row in group if row["sigma"] == s) for s in sigmas]
            label = f"{projection}, {'max' if key == 'max' else f'{key[1:]} % quantile'}"
            ax.plot(sigmas, worst, style, color=f"C{i}", label=label)
    edge = sorted({(row["sigma"], 1 / row["alpha"]) for row in rows})
    ax.plot(*zip(*edge, strict=True), color="black", linewidth=0.8, label="$\\alpha_t L_t = 1$")
    ax.set(xscale="log", yscale="log", xlabel="$\\sigma_t$", ylabel="$L_t$, largest of all runs")
    canvas.legend(loc="outside right upper", fontsize=7)
    return canvas


def _by_projection(rows: Sequence[Record]) -> dict[str, list[Record]]:
    names = dict.fromkeys(row["projection"] for row in rows)
    return {name: [row for row in rows if row["projection"] == name] for name in names}


measurement = Measurement(
    name="lipschitz",
    question="Is PPR's kernel a contraction on Data2D, as its error bound assumes?",
    paper="Appendix on theory, the figure of the Lipschitz constant",
    settings=settings(),
    measure=measure,
    table=table,
    figure=figure,
)
