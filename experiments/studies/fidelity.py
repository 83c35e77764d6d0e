r"""How close do samplers come to a posterior under noise? On another paper's problem and by its
measure, the kernel Stein discrepancy (KSD).

The prior of :math:`x \in \mathbb{R}^{16}` has two modes in its first two coordinates, and is
standard normal in the others. Observed are the 14 others with small factors, or the first four
times three.

References:
    | Beyond Accuracy: Evaluating Posterior Fidelity of Diffusion Inverse Solvers (Qiu et al.,
    | 2026), https://arxiv.org/abs/2602.04189v2, Supplements A and B, Tables 1 and 4
    | Measuring Sample Quality with Kernels (Gorham & Mackey, 2017)
    | https://arxiv.org/abs/1703.01717, for the kernel
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from feasibly.constraints import Linear
from feasibly.metrics import sliced_wasserstein
from feasibly.oracles import GaussianMixture
from feasibly.samplers import DPS, MMPS, SMC, CalibratedPPR, Method
from feasibly.schedules import LogLogit

from ..records import DEFAULT, Record, averages, grouped
from ..samplers import quiet
from ..study import Measurement
from ..tables import TEXT, Columns

D, N = 16, 500
WEIGHTS = (0.8, 0.2)
CENTRES, VARIANCES = (0.0, 3.0), (1.0, 2.0)
TRUTH = (3.0, 2.0, 0.5, -0.5, 1.0, 0.8, -0.6, 1.1, -0.9, 0.4, 0.0, -1.2, 0.7, -0.3, 0.5, -0.8)
OPERATORS = ("14 weak", "4 strong")
SIGMAS = (0.2, 0.5)
DRAWS = 5

EXACT_ROW = "exact posterior"

METHODS: Mapping[str, str | Method] = {
    DEFAULT: "auto",
    "calibrated": CalibratedPPR(steps=64, spacing="noise", iterations=16),
    "SMC": SMC(),
    "MMPS": MMPS(iterations=14),
    "DPS, zeta = 0.01": DPS(zeta=0.01),
    "DPS, zeta = 0.03": DPS(zeta=0.03),
}


class Observed(NamedTuple):
    """A problem: a mixture of normals, and an observation of the truth.

    Attributes:
        weights: The weights of the modes, with shape (K).
        mu: Their means, with shape (K, D).
        cov: Their covariances, with shape (K, D, D).
        A: The matrix of the observation, with shape (m, D).
        y: The observed values, with shape (m).
    """

    weights: Tensor
    mu: Tensor
    cov: Tensor
    A: Tensor
    y: Tensor
    sigma: float

    def posterior(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the weights, means and covariances of the posterior's modes."""
        S = self.A @ self.cov @ self.A.T + self.sigma**2 * torch.eye(len(self.y)).double()
        K = self.cov @ self.A.T @ torch.linalg.inv(S)
        gap = self.y - self.mu @ self.A.T
        solved = torch.linalg.solve(S, gap[..., None]).squeeze(-1)
        log_w = self.weights.log() - (gap * solved).sum(dim=1) / 2 - torch.logdet(S) / 2
        mu = self.mu + (K @ gap[..., None]).squeeze(-1)
        return log_w.softmax(dim=0), mu, self.cov - K @ self.A @ self.cov

    def sample(self, members: int, seed: int) -> Tensor:
        """Samples the posterior exactly, with shape (N, D)."""
        weights, mu, cov = self.posterior()
        generator = torch.Generator().manual_seed(seed)
        mode = torch.multinomial(weights, members, replacement=True, generator=generator)
        z = torch.randn(members, D, generator=generator, dtype=torch.float64)
        return mu[mode] + (torch.linalg.cholesky(cov)[mode] @ z[..., None]).squeeze(-1)

    def score(self, x: Tensor) -> Tensor:
        """Returns the gradient of the posterior's log-density, with shape (N, D)."""
        weights, mu, cov = self.posterior()
        gap = x[:, None] - mu
        pull = torch.einsum("kde,nke->nkd", torch.linalg.inv(cov), gap)
        log_w = weights.log() - (gap * pull).sum(dim=2) / 2 - torch.logdet(cov) / 2
        return -torch.einsum("nk,nkd->nd", log_w.softmax(dim=1), pull)

    def scale(self) -> float:
        """The length of the kernel."""
        return 1 / (torch.linalg.svdvals(self.A).median().item() + 1)


def observed(operator: str, sigma: float, draw: int) -> Observed:
    """Returns the problem of an operator, with errors of a seed."""
    mu = torch.zeros(2, D, dtype=torch.float64)
    cov = torch.eye(D, dtype=torch.float64).repeat(2, 1, 1)
    for k, (centre, variance) in enumerate(zip(CENTRES, VARIANCES, strict=True)):
        mu[k, :2] = centre
        cov[k, :2, :2] *= variance
    A = torch.zeros(14, D, dtype=torch.float64)
    A[:, 2:] = (0.1 + 0.05 * torch.arange(14, dtype=torch.float64)).diag()
    if operator == "4 strong":
        A = 3 * torch.eye(D, dtype=torch.float64)[:4]
    truth = torch.tensor(TRUTH, dtype=torch.float64)
    generator = torch.Generator().manual_seed(draw)
    errors = sigma * torch.randn(len(A), generator=generator, dtype=torch.float64)
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    return Observed(weights, mu, cov, A, A @ truth + errors, sigma)


def ksd(x: Tensor, score: Tensor, c: float) -> tuple[float, float]:
    r"""Returns the kernel Stein discrepancy of samples, :math:`\sqrt{\sum_{ij} u_{ij} / D} / N`,
    and the mean of :math:`u_{ij} / D` over pairs.

    The kernel is :math:`(c^2 + \|x - x'\|^2)^{-1/2}`. The first number is that of the paper. Its
    terms :math:`u_{ii}` are positive for exact samples too. The second has none, and is zero on
    average if samples are exact.

    Arguments:
        x: The samples, with shape (N, D).
    """
    gap = x[:, None] - x
    base = c**2 + gap.square().sum(dim=2)
    pull = ((score[:, None] - score) * gap).sum(dim=2)
    size = x.shape[1]
    u = score @ score.T * base**-0.5 + (pull + size) * base**-1.5
    u = (u - 3 * gap.square().sum(dim=2) * base**-2.5) / size
    pairs = (u.sum() - u.diagonal().sum()) / (len(x) * (len(x) - 1))
    return u.mean().clamp_min(0).sqrt().item(), pairs.item()


def measure(setting: dict) -> list[Record]:
    """Samples one posterior by one method."""
    problem = observed(setting["operator"], setting["sigma"], setting["draw"])
    evaluations = seconds = 0.0
    if setting["label"] == EXACT_ROW:
        x = problem.sample(N, 1000 + setting["draw"])
    else:
        model = GaussianMixture(problem.weights, problem.mu, problem.cov, LogLogit())
        constraint = Linear(problem.A, problem.y, noise=problem.sigma)
        chosen = {"method": METHODS[setting["label"]], "seed": setting["draw"]}
        result = quiet(model, constraint, N, (D,), dtype=torch.float64, **chosen)
        x = result.samples[result.finite]
        taken = result.evaluations
        evaluations = (taken.member_forward + taken.member_backward) / N
        seconds = result.seconds
    discrepancy, pairs = ksd(x, problem.score(x), problem.scale())
    far = (x - torch.tensor(TRUTH, dtype=torch.float64)).square().mean(dim=1)
    weights, mu, cov = problem.posterior()
    gap = x[:, None] - mu
    log_p = -torch.einsum("nkd,kde,nke->nk", gap, torch.linalg.inv(cov), gap) / 2
    share = (weights.log() + log_p - torch.logdet(cov) / 2).softmax(dim=1)[:, 1].mean().item()
    return [
        {
            "members": len(x),
            "ksd": discrepancy,
            "pairs": pairs,
            "rmse": far.mean().sqrt().item(),
            "weak": share,
            "weak_exact": weights[1].item(),
            "sliced": sliced_wasserstein(x, problem.sample(N, 2000 + setting["draw"])),
            "evaluations": evaluations,
            "seconds": seconds,
        }
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: the means over draws of the errors."""
    groups = grouped(records, "operator", "sigma", "label")
    return [
        {
            "observed": f"{operator}, noise {sigma}",
            "operator": operator,
            "sigma": sigma,
            "label": label,
            "weak": statistics.fmean(row["weak"] - row["weak_exact"] for row in group),
            **averages(group, "ksd", "pairs", "sliced", "evaluations"),
        }
        for (operator, sigma, label), group in groups.items()
    ]


def shown(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of the page: those of the smaller errors."""
    return [row for row in rows(records) if row["sigma"] == SIGMAS[0]]


COLUMNS: Columns = {
    "observed": ("observed", TEXT),
    "label": ("method", TEXT),
    "ksd": ("KSD", "{:.2f}"),
    "pairs": ("KSD² without i = j", "{:.1g}"),
    "weak": ("weight of the weak mode, less the exact one", "{:+.3f}"),
    "sliced": ("sliced distance", "{:.3f}"),
    "evaluations": ("evaluations a member", "{:.0f}"),
}

SHOWN: Columns = {"operator": ("observed", TEXT)} | {
    key: COLUMNS[key] for key in ("label", "ksd", "pairs", "sliced", "evaluations")
}
"""The columns of the page, of one size of errors."""

MEASUREMENT = Measurement(
    name="fidelity",
    question="How close do samplers come to a posterior under noise, by others' measure?",
    problem="exact",
    settings=[
        {"operator": operator, "sigma": sigma, "label": label, "draw": draw}
        for operator in OPERATORS
        for sigma in SIGMAS
        for label in (EXACT_ROW, *METHODS)
        for draw in range(DRAWS)
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
