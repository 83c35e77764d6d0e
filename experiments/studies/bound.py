r"""How tight is the bound on PPR's error? On a Gaussian, where all of it has a closed form.

The prior is :math:`\mathcal{N}(0, v I)` and the constraint :math:`A x = y`, with orthonormal rows.
With :math:`k = v / (v + \sigma^2)` and :math:`P = A^\top A`, the denoiser is
:math:`d(x) = k x`, and the nearest solution of :math:`A d(x) = y` gives
:math:`d(\Pi(x)) = (I - P) k x + A^\top y`, whose Lipschitz constant is :math:`k`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feasibly.constraints import Linear
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.problem import Problem
from feasibly.samplers import PPR
from feasibly.schedules import VE

from .. import figures
from ..records import Record
from ..study import Measurement

LEVELS = (0.1, 0.3, 1.0, 3.0)
REPEATS = range(9)
D = 8
V = 1.0
Y = (1.0, -0.5)
FREE = D - len(Y)


class Normal(NamedTuple):
    r"""A normal distribution: mean :math:`a A^\top y` and covariance :math:`n (I - P) + r P`."""

    a: float
    n: float
    r: float

    def w2(self, other: "Normal") -> float:
        r"""Returns :math:`W_2`: the covariances commute, so standard deviations are compared."""
        mean = (self.a - other.a) ** 2 * sum(value**2 for value in Y)
        free = FREE * (math.sqrt(self.n) - math.sqrt(other.n)) ** 2
        fixed = len(Y) * (math.sqrt(self.r) - math.sqrt(other.r)) ** 2
        return math.sqrt(mean + free + fixed)

    def step(self, sigma: float) -> "Normal":
        r"""Returns it after PPR's kernel, :math:`x' = d(\Pi(x)) + \sigma \epsilon`."""
        return Normal(1.0, shrink(sigma) ** 2 * self.n + sigma**2, sigma**2)

    def covariance(self, P: Tensor) -> Tensor:
        """Returns the covariance, with shape (D, D)."""
        return self.n * (torch.eye(len(P), dtype=P.dtype) - P) + self.r * P


def shrink(sigma: float) -> float:
    """The denoiser's factor :math:`k`, and its Lipschitz constant behind the projection."""
    return V / (V + sigma**2)


def start(sigma: float) -> Normal:
    r"""The unconstrained marginal :math:`p_t`."""
    return Normal(0.0, V + sigma**2, V + sigma**2)


def target(sigma: float) -> Normal:
    r"""The constrained marginal :math:`p_t^\mathcal{C}`."""
    return Normal(1.0, V + sigma**2, sigma**2)


def stationary(sigma: float) -> Normal:
    """The stationary distribution of PPR's kernel."""
    return Normal(1.0, sigma**2 / (1 - shrink(sigma) ** 2), sigma**2)


def discrepancy(sigma: float) -> float:
    r"""Returns :math:`\Delta_t`: the ideal kernel has the same mean as PPR's for every state, and
    the posterior's variance :math:`v \sigma^2 / (v + \sigma^2)` more along the constraint."""
    return math.sqrt(FREE) * (math.sqrt(sigma**2 + shrink(sigma) * sigma**2) - sigma)


def bound(sigma: float, repeats: int) -> tuple[float, float]:
    """Returns the two terms of the bound: of mixing, and of bias."""
    k = shrink(sigma)
    mixing = k**repeats * start(sigma).w2(stationary(sigma))
    return mixing, discrepancy(sigma) / (1 - k)


def problem(sigma: float) -> tuple[Any, Linear, Tensor]:
    """Returns a sampler with an exact projection, its constraint, and the time of `sigma`."""
    schedule = VE(1e-2, 1e2)
    t = math.log(sigma / schedule.sigma_min) / math.log(schedule.sigma_max / schedule.sigma_min)
    generator = torch.Generator().manual_seed(0)
    A = torch.linalg.qr(torch.randn(D, len(Y), generator=generator, dtype=torch.float64)).Q.T
    constraint = Linear(A, torch.tensor(Y, dtype=torch.float64), tolerance=1e-20)
    prior = Gaussian(torch.zeros(D), V * torch.eye(D), schedule)
    method = PPR(minimize=GaussNewton(damping=0.0, max_distance=None))
    sampler = method.bind(Problem(prior, constraint, (D,), dtype=torch.float64))
    return sampler, constraint, torch.tensor(t, dtype=torch.float64)


def gaussian_w2(mean: Tensor, covariance: Tensor, mean_2: Tensor, covariance_2: Tensor) -> float:
    r"""Returns :math:`W_2` between normal distributions, by the roots of their covariances."""
    root = _sqrt(covariance)
    cross = _sqrt(root @ covariance_2 @ root)
    square = (mean - mean_2).square().sum() + (covariance + covariance_2 - 2 * cross).trace()
    return math.sqrt(max(square.item(), 0.0))


def _sqrt(M: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(M)
    return vectors * values.clamp_min(0).sqrt() @ vectors.T


def sampling_error(q: Normal, members: int) -> float:
    r"""Returns the root mean square of :math:`W_2(\hat{q}, q)`, of `members` samples' mean and
    covariance, to leading order.

    For variances :math:`\lambda_i` its square is :math:`\frac{1}{N} \sum_i \lambda_i +
    \frac{1}{2 N} \sum_{ij} \frac{(1 + \delta_{ij}) \lambda_i \lambda_j}{\lambda_i + \lambda_j}`.
    The measured distance is off by no more than :math:`W_2(\hat{q}, q)`.
    """
    values = torch.tensor([q.n] * FREE + [q.r] * len(Y), dtype=torch.float64)
    pairs = values[:, None] * values / (values[:, None] + values)
    total = values.sum() + (pairs.sum() + pairs.trace()) / 2
    return math.sqrt(total.item() / members)


@torch.no_grad()
def measure(setting: dict) -> list[Record]:
    """Measures a noise level, for every number of repeats."""
    sigma, members = setting["sigma"], setting["members"]
    sampler, constraint, t = problem(sigma)
    generator = torch.Generator().manual_seed(setting["seed"])

    def randn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)

    A, y = constraint.A, constraint.y
    goal, q = target(sigma), start(sigma)
    x_t = math.sqrt(q.n) * randn(torch.empty(members, D, dtype=torch.float64))
    found: list[Record] = []
    for repeats in REPEATS:
        if repeats:
            q = q.step(sigma)
            x_t, *_ = sampler.kernel(x_t, t, sigma, randn)
        measured = gaussian_w2(x_t.mean(dim=0), x_t.T.cov(), A.T @ y, goal.covariance(A.T @ A))
        mixing, bias = bound(sigma, repeats)
        found.append(
            {
                "repeats": repeats,
                "lipschitz": shrink(sigma),
                "delta": discrepancy(sigma),
                "mixing": mixing,
                "bias": bias,
                "bound": mixing + bias,
                "exact": q.w2(goal),
                "measured": measured,
                "error": sampling_error(q, members),
            }
        )
    return found


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the table's rows: some numbers of repeats, and the bound over the exact distance."""
    return [
        row | {"looseness": row["bound"] / row["exact"]}
        for row in records
        if row["repeats"] in (0, 1, 2, 4, 8)
    ]


MEASUREMENT = Measurement(
    name="bound",
    question="How tight is the bound on PPR's error where everything is known?",
    problem="data2d",
    settings=[{"sigma": sigma, "members": 4096, "seed": 0} for sigma in LEVELS],
    measure=measure,
    rows=rows,
    columns={
        "sigma": ("σ", "{:g}"),
        "lipschitz": ("L", "{:.3f}"),
        "repeats": ("M", "{}"),
        "exact": ("exact", "{:.3f}"),
        "measured": ("measured", "{:.3f}"),
        "bound": ("bound", "{:.3f}"),
        "looseness": ("bound / exact", "{:.1f}"),
    },
    figures={"": figures.bound},
)
