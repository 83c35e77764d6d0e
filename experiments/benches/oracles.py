"""Oracles: exact denoisers, each under constraints whose posterior is known."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from feasibly.constraints import Equality, Linear
from feasibly.metrics import knn_cross_edge_rate, sliced_wasserstein, weight_error
from feasibly.oracles import Checkerboard, Empirical, Gaussian
from feasibly.problems.data2d import Data2D
from feasibly.result import Result

from ..records import Record
from ..study import Comparison
from . import exact_curves
from .base import Bench, Case, PosteriorCase, chosen, share
from .exact_base import (
    Posterior,
    conditional,
    gaussians,
    half_space,
    mixture,
    nearest,
    normals,
    schedule,
)

DIMENSION = 30
POOL = 2**17  # prior samples from which a tube is selected
TIMING = schedule("loglogit")


def gaussian(seed: int, condition: float, m: int) -> Posterior:
    """A Gaussian in 30 dimensions, whose covariance has a condition number, under m linear
    observations of one of its samples."""
    normal = normals(seed)
    U = torch.linalg.qr(normal(DIMENSION, DIMENSION)).Q
    values = torch.logspace(0, -math.log10(condition), DIMENSION, dtype=torch.float64)
    cov = (U * values) @ U.T
    A = normal(m, DIMENSION) / math.sqrt(DIMENSION)
    y = A @ (U * values.sqrt()) @ normal(DIMENSION)
    mean, left = conditional(torch.zeros(DIMENSION).double(), cov, A, y)
    prior = Gaussian(torch.zeros(DIMENSION), cov, TIMING)
    sample = lambda n, g: gaussians(mean, left, n, g)  # noqa: E731
    return Posterior(prior, Linear(A, y, 1e-6), (DIMENSION,), sample)


def clusters(seed: int) -> Posterior:
    """Four clusters in eight dimensions under two linear observations, which single out none."""
    normal = normals(seed)
    mu, A = normal(4, 8), normal(2, 8) / math.sqrt(8)
    y = A @ mu.mean(dim=0)
    return mixture(torch.ones(4).double() / 4, mu, 0.3, A, y, Linear(A, y, 1e-6), TIMING)


def ellipse(seed: int) -> Posterior:
    """Five clusters in the plane under a quadratic residual, steeper at some places than at
    others: samples lie on an ellipse, and the posterior is that of the tube."""
    turn = math.pi * torch.rand((), generator=Generator().manual_seed(seed)).item()
    path = exact_curves.ellipse(1.5, 0.75, turn)
    return exact_curves.on(lambda: exact_curves.clusters(seed, "loglogit"), path)


def checkerboard(seed: int) -> Posterior:
    """Data2D's checkerboard with its exact denoiser, under the random field of a seed. Its
    posterior is that of Data2D's ground truth, a tube of half width 0.1 in f, moved onto f = 0."""
    problem = Data2D("checkerboard", Checkerboard(4, TIMING))
    constraint, distribution = problem.constraint(seed), problem.distribution

    def sample(n: int, generator: Generator) -> Tensor:
        found = problem.ground_truth(constraint, distribution.sample(POOL, generator).double())
        if len(found) < n:
            raise ValueError(f"Of {POOL} samples of the prior {len(found)} are near field {seed}.")
        return found[:n]

    modes = distribution.modes
    return Posterior(problem.denoiser, constraint, (2,), sample, distribution.mode, modes)


def half_plane(seed: int) -> Posterior:
    """A correlated Gaussian in the plane beyond a line, where three in ten of its samples are."""
    cov = torch.tensor([[1.0, 0.8], [0.8, 1.0]]).double()
    n, bound = normals(seed)(2), torch.special.ndtri(torch.tensor(0.7).double())
    prior = Gaussian(torch.zeros(2), cov, TIMING)
    return half_space(prior, torch.zeros(2).double(), cov, n / n.norm(), bound)


def empirical(seed: int) -> Posterior:
    """A data set of 64 points, of which every other one is on a circle: there the ideal kernel of
    the paper's Proposition 3.1 can be run as it is (the study's `IdealKernel`)."""
    points = normals(seed)(64, 2)
    points[::2] /= points[::2].norm(dim=1, keepdim=True)
    constraint = Equality(lambda x: (x.square().sum(dim=1) - 1)[:, None], tolerance=1e-6)

    def sample(n: int, generator: Generator) -> Tensor:
        return points[2 * torch.randint(32, (n,), generator=generator)]

    prior = Empirical(points, TIMING)
    return Posterior(prior, constraint, (2,), sample, nearest(points), 64, atoms=True)


POSTERIORS: dict[str, Callable[[int], Posterior]] = {
    "gaussian-1": lambda seed: gaussian(seed, 1.0, 1),
    "gaussian-6": lambda seed: gaussian(seed, 1.0, 6),
    "correlated-1": lambda seed: gaussian(seed, 1e3, 1),
    "correlated-6": lambda seed: gaussian(seed, 1e3, 6),
    "clusters": clusters,
    "ellipse": ellipse,
    "checkerboard": checkerboard,
    "half-plane": half_plane,
    "empirical": empirical,
}
"""How to make each of them from a seed."""


class OraclesBench(Bench):
    """Ensembles against exact posteriors."""

    problem = "oracles"
    keys = ("posterior", "number")

    def __init__(self, posteriors: Sequence[str], numbers: range, members: int) -> None:
        super().__init__(chosen(posteriors, POSTERIORS, "oracles"), numbers)
        self.members = members

    def options(self, comparison: Comparison, label: str, setting: Record) -> Record | None:
        if setting["posterior"] not in comparison.only.get(label, POSTERIORS):
            return None
        return {"members": self.members, "seed": 0}

    def case(self, setting: Record) -> Case:
        return _Case(setting["posterior"], setting["number"], self.members)


class _Case(PosteriorCase):
    shown = ("feasible", "mean_error", "std", "sliced", "knn", "weight_error")

    def __init__(self, name: str, number: int, members: int) -> None:
        super().__init__(POSTERIORS[name](number))
        generator = Generator().manual_seed(number)
        self.first, self.second = (self.posterior.sample(members, generator) for _ in range(2))

    def truth(self, members: int) -> Record | None:
        return share(self.constraint.is_feasible(self.second)) | self._scores(self.second)

    def measure(self, result: Result) -> Record:
        return share(result.feasible) | self._scores(result.samples)

    def _scores(self, x: Tensor) -> Record:
        """Scores an ensemble against the truth; lengths are in standard deviations of the truth,
        taken over all directions together."""
        y, good = self.first, x[x.isfinite().all(dim=1)].double()
        C, own = torch.cov(y.T), torch.cov(good.T)
        unit = C.trace().sqrt()
        scores = {
            "mean_error": (good.mean(dim=0) - y.mean(dim=0)).norm() / unit,
            "std": own.trace().sqrt() / unit,
            "cov_error": torch.linalg.matrix_norm(own - C) / torch.linalg.matrix_norm(C),
            "sliced": sliced_wasserstein(good, y) / unit,
        }
        if not self.posterior.atoms:
            scores["knn"] = knn_cross_edge_rate(y, x.double())
        if self.posterior.mode:
            mode, modes = self.posterior.mode, self.posterior.modes
            scores["weight_error"] = weight_error(mode(y), mode(good), modes)
        return {key: float(value) for key, value in scores.items()}
