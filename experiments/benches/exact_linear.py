"""Gaussians, mixtures and finite data under linear equalities, and values with errors."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Linear
from feasibly.oracles import Empirical, Gaussian

from .exact_base import (
    ACCURACY,
    MEMBERS,
    Posterior,
    Problem,
    conditional,
    gaussians,
    mixture,
    named,
    nearest,
    normals,
    schedule,
    smooth,
    under,
)


def gaussian(
    seed: int, D: int, condition: float, m: int, far: float, timing: str, scale: float = 1.0
) -> Posterior:
    """A Gaussian under m linear residuals, which its mean misses by `far` standard deviations."""
    normal = normals(seed)
    U = torch.linalg.qr(normal(D, D)).Q
    values = scale**2 * torch.logspace(0, -math.log10(condition), D, dtype=torch.float64)
    cov, mu = (U * values) @ U.T, scale / 2 * normal(D)
    A = normal(m, D) / math.sqrt(D)
    S = A @ cov @ A.T
    towards = normal(m)
    y = A @ mu + far * torch.linalg.cholesky(S) @ (towards / towards.norm())
    mean, left = conditional(mu, cov, A, y)
    constraint = Linear(A, y, ACCURACY**2 * S.trace().item())
    prior = Gaussian(mu, cov, schedule(timing, scale))
    return Posterior(prior, constraint, (D,), lambda n, g: gaussians(mean, left, n, g))


GAUSSIANS: tuple[tuple[int, float, int, float, str, float], ...] = (
    (2, 1.0, 1, 0.0, "vp", 1.0),
    (2, 1.0, 1, 5.0, "vp", 1.0),
    (2, 10.0, 1, 3.0, "edm", 1.0),
    (8, 1.0, 2, 1.0, "cosine", 1.0),
    (8, 10.0, 2, 5.0, "flow", 1.0),
    (8, 10.0, 4, 2.0, "edm", 0.01),
    (8, 1000.0, 1, 1.0, "edm", 100.0),
    (30, 1.0, 1, 5.0, "vp", 1.0),
    (30, 1.0, 4, 0.0, "rectified", 1.0),
    (30, 1.0, 12, 3.0, "cosine", 1.0),
    (30, 10.0, 2, 3.0, "loglogit", 100.0),
    (30, 10.0, 12, 4.0, "edm", 1.0),
    (30, 1000.0, 1, 0.0, "vp", 1.0),
    (30, 1000.0, 4, 3.0, "loglogit", 1.0),
    (30, 1000.0, 12, 4.0, "edm", 0.01),
    (256, 10.0, 1, 2.0, "flow", 1.0),
    (256, 1000.0, 12, 3.0, "edm", 1.0),
)
"""Dimension, condition number, residuals, how far, schedule and scale."""


def two(axis: bool, value: float, timing: str, scale: float = 1.0) -> Posterior:
    """Two modes of weights 0.7 and 0.3 in the plane, with the mean of both coordinates fixed."""
    modes = [[-2.0, 0.0], [2.0, 0.0]] if axis else [[-2.0, -2.0], [2.0, 2.0]]
    mu = scale * torch.tensor(modes, dtype=torch.float64)
    A, y = torch.full((1, 2), 0.5).double(), torch.tensor([scale * value]).double()
    weights = torch.tensor([0.7, 0.3]).double()
    constraint = Linear(A, y, 1e-8 * scale**2)
    times = schedule(timing, scale)
    posterior = mixture(weights, mu, scale / 2, A, y, constraint, times)
    # on the diagonal, what is left of both modes is the same
    return posterior if axis else replace(posterior, mode=None, modes=1)


TWO: tuple[tuple[bool, float, str, float], ...] = (
    (False, 2.0, "vp", 1.0),
    (False, 1.0, "vp", 1.0),
    (False, 0.3, "vp", 1.0),
    (False, 0.0, "vp", 1.0),
    (False, 3.0, "cosine", 1.0),
    (False, 4.0, "edm", 100.0),
    (True, 0.0, "vp", 1.0),
    (True, 0.3, "flow", 1.0),
    (True, 1.0, "edm", 0.01),
    (True, -1.5, "rectified", 1.0),
)
"""Whether on an axis, the mean, schedule and scale."""


def clusters(
    seed: int, D: int, K: int, m: int, single: bool, timing: str, scale: float = 1.0
) -> Posterior:
    """Clusters of standard deviation 0.3 under m linear residuals."""
    normal = normals(seed)
    mu = scale * normal(K, D)
    A = normal(m, D) / math.sqrt(D)
    if not single:  # what is seen of the clusters differs by less than they do
        seen = mu @ A.T
        pull = 0.75 * (seen.mean(dim=0) - seen)
        mu = mu + pull @ torch.linalg.pinv(A).T
    std = 0.3 * scale
    y = A @ (mu[0] + std * normal(D)) if single else A @ mu.mean(dim=0)
    weights = torch.linspace(1, 2, K).double()
    constraint = Linear(A, y, ACCURACY**2 * std**2 * A.square().sum().item())
    weights = weights / weights.sum()
    return mixture(weights, mu, std, A, y, constraint, schedule(timing, scale))


CLUSTERS: tuple[tuple[int, int, int, bool, str, float], ...] = (
    (8, 4, 1, False, "vp", 1.0),
    (8, 4, 2, False, "edm", 1.0),
    (8, 6, 2, True, "cosine", 1.0),
    (8, 8, 4, False, "flow", 1.0),
    (8, 5, 1, True, "edm", 0.01),
    (30, 4, 1, False, "rectified", 1.0),
    (30, 8, 2, False, "loglogit", 1.0),
    (30, 6, 4, False, "edm", 100.0),
    (30, 8, 10, True, "vp", 1.0),
    (30, 5, 10, False, "edm", 1.0),
)
"""Dimension, clusters, residuals, whether one is singled out, schedule and scale."""


def regimes(seed: int, D: int, K: int, m: int, error: float, timing: str) -> Posterior:
    """Normals of different means and correlations under many linear values, which lie between what
    two of them say.
    """
    normal = normals(seed)
    mu, lengths = 0.6 * normal(K, D), 0.3 + normal(K).abs()
    cov = smooth(lengths, D)
    A = normal(m, D) / math.sqrt(D)
    middle = 0.6 * mu[0] + 0.4 * mu[1]
    y = A @ gaussians(middle, cov[0], 1, torch.Generator().manual_seed(seed))[0]
    y = y + error * normal(m)
    weights = torch.full((K,), 1 / K).double()
    return under(weights, mu, cov, A, y, schedule(timing), error)


REGIMES: tuple[tuple[int, int, int, float, str], ...] = (
    (16, 2, 13, 0.0, "cosine"),
    (16, 2, 14, 0.3, "edm"),
    (20, 3, 16, 0.0, "loglogit"),
    (24, 3, 16, 0.5, "vp"),
    (32, 2, 24, 0.0, "flow"),
    (32, 4, 20, 0.3, "edm"),
    (48, 2, 28, 0.2, "loglogit"),
    (64, 2, 32, 0.5, "cosine"),
    (64, 3, 16, 0.0, "edm"),
)
"""Dimension, normals, values, the standard deviation of their errors and schedule."""


def data_set(seed: int, N: int, D: int, kept: int, m: int, timing: str) -> Posterior:
    """A finite data set of which some points satisfy a linear constraint exactly. The residuals of
    all others are larger than a gap.
    """
    normal = normals(seed)
    points, A = normal(N, D), normal(m, D) / math.sqrt(D)
    y, inverse = A @ normal(D) / 2, torch.linalg.pinv(A)
    r = points @ A.T - y
    r[kept:] = -GAP * r[kept:] / r[kept:].norm(dim=1, keepdim=True)
    points = points - r @ inverse.T  # on the constraint, and others away from it
    chosen = points[:kept].clone()

    def sample(n: int, generator: Generator) -> Tensor:
        return chosen[torch.randint(kept, (n,), generator=generator)]

    prior = Empirical(points, schedule(timing))
    constraint = Linear(A, y, 1e-8)
    return Posterior(prior, constraint, (D,), sample, nearest(points), N, atoms=True)


GAP = 0.1

DATA: tuple[tuple[int, int, int, int, str], ...] = (
    (64, 2, 16, 1, "vp"),
    (64, 30, 32, 4, "edm"),
    (4096, 8, 256, 1, "cosine"),
    (4096, 2, 64, 1, "loglogit"),
)
"""Points, dimension, how many are kept, residuals and schedule."""


def _gaussians() -> Iterator[Problem]:
    for seed, spec in enumerate(GAUSSIANS):
        D, condition, m, far, timing, scale = spec
        parts = (f"{D}d", f"cond{condition:g}", f"{m}r", f"{far:g}std", timing)
        make = partial(gaussian, seed, *spec)
        yield Problem(named("gaussian", *parts, scale=scale), "Gaussian", "linear", make, m)


def _mixtures() -> Iterator[Problem]:
    for axis, value, timing, scale in TWO:
        parts = ("axis" if axis else "diagonal", f"mean{value:g}", timing)
        make = partial(two, axis, value, timing, scale)
        yield Problem(named("modes", *parts, scale=scale), "two modes", "linear", make, 1)
    for seed, spec in enumerate(CLUSTERS):
        D, K, m, single, timing, scale = spec
        parts = (f"{D}d", f"{K}k", f"{m}r", "one" if single else "all", timing)
        make = partial(clusters, seed, *spec)
        yield Problem(named("clusters", *parts, scale=scale), "clusters", "linear", make, m)


def _regimes() -> Iterator[Problem]:
    for seed, spec in enumerate(REGIMES):
        D, K, m, error, timing = spec
        name = named("regimes", f"{D}d", f"{K}k", f"{m}r", f"{error:g}error", timing)
        make = partial(regimes, 40 + seed, *spec)
        yield Problem(name, "many values", "linear", make, m)


def _data() -> Iterator[Problem]:
    for seed, spec in enumerate(DATA):
        N, D, kept, m, timing = spec
        parts = (f"{N}n", f"{D}d", f"{m}r", f"{kept}kept", timing)
        make = partial(data_set, seed, *spec)
        members = min(MEMBERS, 2**21 // N)
        name = named("data", *parts)
        yield Problem(name, "finite data", "linear", make, m, members=members)


PROBLEMS = [*_gaussians(), *_mixtures(), *_regimes(), *_data()]
