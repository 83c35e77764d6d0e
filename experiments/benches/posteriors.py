"""Priors whose denoiser is known, under constraints whose posterior is known."""

__all__ = ["POSTERIORS", "Posterior", "conditional", "gaussians", "nearest", "normals"]

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feasibly.constraints import Constraint, Equality, Inequality, Linear
from feasibly.denoisers import Denoiser
from feasibly.oracles import Checkerboard, Empirical, Gaussian, GaussianMixture
from feasibly.problems.data2d import Data2D
from feasibly.schedules import LogLogit

DIMENSION = 30
POOL = 2**17  # prior samples from which a tube is selected


@dataclass(frozen=True)
class Posterior:
    """A prior, a constraint, and the exact distribution of the one under the other.

    Attributes:
        denoiser: The exact denoiser of the prior.
        constraint: The constraint.
        shape: The shape of a sample.
        sample: Returns as many samples of the exact posterior as it is asked for, by a generator,
            with shape (N, *).
        mode: The mode of each sample, integers with shape (N); None if there is only one.
        modes: The number of modes.
        atoms: Whether it has single points only, of which samples have no nearest neighbours.
        boundary: The distance of each sample to where an inequality ends, with shape (N); None
            without one.
    """

    denoiser: Denoiser
    constraint: Constraint
    shape: tuple[int, ...]
    sample: Callable[[int, torch.Generator], Tensor]
    mode: Callable[[Tensor], Tensor] | None = None
    modes: int = 1
    atoms: bool = False
    boundary: Callable[[Tensor], Tensor] | None = None


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
    prior = Gaussian(torch.zeros(DIMENSION), cov, _schedule())
    constraint = Linear(A, y, 1e-6)
    return Posterior(prior, constraint, (DIMENSION,), lambda n, g: gaussians(mean, left, n, g))


def clusters(seed: int) -> Posterior:
    """Four clusters in eight dimensions under two linear observations, which single out none."""
    normal = normals(seed)
    K, D = 4, 8
    mu = normal(K, D)
    cov = 0.09 * torch.eye(D).double()
    A = normal(2, D) / math.sqrt(D)
    y = A @ mu.mean(dim=0)
    S = A @ cov @ A.T
    gap = y - mu @ A.T
    log_w = -(gap @ torch.linalg.inv(S) * gap).sum(dim=1) / 2  # of equal weights
    parts = [conditional(mean, cov, A, y) for mean in mu]

    def sample(n: int, generator: torch.Generator) -> Tensor:
        which = torch.multinomial(log_w.softmax(dim=0), n, replacement=True, generator=generator)
        found = torch.stack([gaussians(mean, left, n, generator) for mean, left in parts])
        return found[which, torch.arange(n)]

    prior = GaussianMixture(torch.ones(K) / K, mu, cov.expand(K, D, D), _schedule())
    return Posterior(prior, Linear(A, y, 1e-6), (D,), sample, nearest(mu), K)


def ellipse(seed: int) -> Posterior:
    """Five clusters in the plane under a quadratic residual, steeper at some places than at
    others: samples lie on an ellipse, and the posterior is that of the tube, by quadrature."""
    normal = normals(seed)
    K, std = 5, 0.35
    mu = normal(K, 2)
    angle = math.pi * torch.rand((), generator=torch.Generator().manual_seed(seed)).double()
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).reshape(2, 2)
    axes = torch.tensor([1.5, 0.75]).double()

    def residual(x: Tensor) -> Tensor:
        return ((x @ turn.to(x) / axes.to(x)).square().sum(dim=1) - 1)[:, None]

    theta = torch.arange(2**14).double() / 2**14 * 2 * math.pi
    curve = axes * torch.stack([theta.cos(), theta.sin()], dim=1) @ turn.T
    # in theta, the length of the curve and the slope of the residual cancel
    squares = (curve[:, None] - mu).square().sum(dim=-1)
    density = torch.exp(-squares / (2 * std**2)).sum(dim=1)

    def sample(n: int, generator: torch.Generator) -> Tensor:
        return curve[torch.multinomial(density, n, replacement=True, generator=generator)]

    cov = std**2 * torch.eye(2).double().expand(K, 2, 2)
    prior = GaussianMixture(torch.ones(K) / K, mu, cov, _schedule())
    return Posterior(prior, Equality(residual, 1e-8), (2,), sample, nearest(mu), K)


def checkerboard(seed: int) -> Posterior:
    """Data2D's checkerboard with its exact denoiser, under the random field of a seed. Its
    posterior is that of Data2D's ground truth, a tube of half width 0.1 in f, moved onto f = 0."""
    problem = Data2D("checkerboard", Checkerboard(4, _schedule()))
    constraint = problem.constraint(seed)

    def sample(n: int, generator: torch.Generator) -> Tensor:
        found = problem.ground_truth(
            constraint, problem.distribution.sample(POOL, generator).double()
        )
        if len(found) < n:
            raise ValueError(f"Of {POOL} samples of the prior {len(found)} are near field {seed}.")
        return found[:n]

    mode = problem.distribution.mode
    return Posterior(problem.denoiser, constraint, (2,), sample, mode, problem.distribution.modes)


def half_plane(seed: int) -> Posterior:
    """A correlated Gaussian in the plane beyond a line, where three in ten of its samples are."""
    normal = normals(seed)
    cov = torch.tensor([[1.0, 0.8], [0.8, 1.0]]).double()
    n = normal(2)
    n = n / (n @ cov @ n).sqrt()  # of which the prior's component is a standard normal
    bound = torch.special.ndtri(torch.tensor(0.7).double())
    constraint = Inequality(lambda x: bound.to(x) - (x @ n.to(x))[:, None], tolerance=1e-12)

    def sample(count: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(count, generator=generator, dtype=torch.float64)
        beyond = torch.special.ndtri(0.7 + 0.3 * u)
        free = gaussians(torch.zeros(2).double(), cov, count, generator)
        return free + (beyond - free @ n)[:, None] * (cov @ n)

    return Posterior(Gaussian(torch.zeros(2), cov, _schedule()), constraint, (2,), sample)


def empirical(seed: int) -> Posterior:
    """A data set of 64 points, of which every other one is on a circle: there the ideal kernel of
    the paper's Proposition 3.1 can be run as it is (the study's `IdealKernel`)."""
    points = normals(seed)(64, 2)
    points[::2] /= points[::2].norm(dim=1, keepdim=True)
    constraint = Equality(lambda x: (x.square().sum(dim=1) - 1)[:, None], tolerance=1e-6)

    def sample(n: int, generator: torch.Generator) -> Tensor:
        return points[2 * torch.randint(32, (n,), generator=generator)]

    prior, mode = Empirical(points, _schedule()), nearest(points)
    return Posterior(prior, constraint, (2,), sample, mode, 64, atoms=True)


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


def _schedule() -> LogLogit:
    return LogLogit(1e-3, 1e2, spread=2.0)


def normals(seed: int) -> Callable[..., Tensor]:
    """Returns a source of standard normals, of the shape that it is called with."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def conditional(mu: Tensor, cov: Tensor, A: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the covariance of a Gaussian given A x = y."""
    gain = cov @ A.T @ torch.linalg.inv(A @ cov @ A.T)
    return mu + gain @ (y - A @ mu), cov - gain @ A @ cov


def gaussians(mean: Tensor, cov: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Samples of a Gaussian, whose covariance may be singular."""
    values, vectors = torch.linalg.eigh(cov)
    root = vectors * values.clamp_min(0).sqrt()
    noise = torch.randn(n, len(mean), generator=generator, dtype=torch.float64)
    return mean + noise @ root.T


def nearest(points: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns what tells which of some points is the nearest to a sample."""
    return lambda x: torch.cdist(x.double(), points).argmin(dim=1)
