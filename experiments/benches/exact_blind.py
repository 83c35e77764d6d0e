"""Problems that no one has looked at: priors, constraints, schedules and scales drawn by a seed.

All are held out. They are scored once, at the end of a large change.
"""

import math
import random
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Composite, Equality, Inequality
from feasibly.oracles import GaussianMixture

from .exact_base import (
    ACCURACY,
    TOLERANCE,
    Posterior,
    Problem,
    Region,
    in_tube,
    likeliest,
    normals,
    of_modes,
    rejected,
    schedule,
    smooth,
    under,
)

Modes = tuple[Tensor, Tensor, Tensor]
"""Weights with shape (K), means with shape (K, D) and covariances with shape (K, D, D)."""

POOL = 2**16  # prior samples that tell where a constraint is
TUBE = 0.01  # of an exact sample's residual, in the value's interquartile range
TIMINGS = ("vp", "edm", "loglogit", "cosine", "flow", "rectified")


def modes(kind: str, D: int, draw: random.Random) -> Modes:
    """Draws a prior of a kind in D dimensions, of scale one."""
    K = {"normal": 1, "heavy": 24}.get(kind) or draw.randint(2, 6)
    normal = normals(draw.randrange(2**31))
    weights = torch.tensor([draw.uniform(0.05, 1) for _ in range(K)]).double()
    mu = draw.uniform(0.3, 1.0) * normal(K, D)
    if kind == "normal":
        U = torch.linalg.qr(normal(D, D)).Q
        values = torch.logspace(0, -draw.uniform(0, 3), D, dtype=torch.float64)
        cov = ((U * values) @ U.T)[None]
    elif kind == "clusters":
        cov = draw.uniform(0.15, 0.6) ** 2 * torch.eye(D).double().expand(K, D, D)
    elif kind == "lengths":
        cov = smooth(0.3 + normal(K).abs(), D)
    elif kind == "low rank":
        U = normal(K, D, max(1, D // 4)) / math.sqrt(max(1, D // 4))
        cov = U @ U.mT + 0.05**2 * torch.eye(D).double()
    else:  # heavy tails, by one mean and many widths
        mu = mu[:1].expand(K, D)
        cov = (0.6 * normal(K)).exp().square()[:, None, None] * torch.eye(D).double()
    return weights / weights.sum(), mu, cov


def posed(kind: str, of: str, D: int, m: int, seed: int) -> Posterior:
    """Draws a prior of a kind in D dimensions, and a constraint of a kind on it; m is the number
    of linear values."""
    draw = random.Random(seed)
    weights, mu, cov = modes(of, D, draw)
    timing = draw.choice(TIMINGS)
    scale = draw.choice((0.01, 1.0, 100.0)) if timing in ("edm", "loglogit") else 1.0
    mu, cov = scale * mu, scale**2 * cov
    times = schedule(timing, scale)
    normal = normals(draw.randrange(2**31))
    sample = of_modes(weights.log(), [*zip(mu, cov, strict=True)])
    pool = sample(POOL, Generator().manual_seed(seed))
    A = normal(m, D) / math.sqrt(D)
    y = A @ pool[draw.randrange(POOL)]
    if kind == "exact":
        return under(weights, mu, cov, A, y, times)
    if kind == "noisy":
        error = draw.uniform(0.05, 0.5) * (pool @ A.T).std(dim=0).mean().item()
        return under(weights, mu, cov, A, y + error * normal(m), times, error)

    prior, mode = GaussianMixture(weights, mu, cov, times), likeliest(mu, cov)
    if kind in ("energy", "exponential"):
        told: Callable[[Tensor], Tensor]
        if kind == "energy":
            told = lambda x: x.square().mean(dim=1, keepdim=True) / scale**2  # noqa: E731
        else:
            told = lambda x: (x[:, :2] / scale).exp().mean(dim=1, keepdim=True)  # noqa: E731
        found = told(pool)
        level = found.quantile(draw.uniform(0.1, 0.9), dim=0)
        middle = found.quantile(0.75) - found.quantile(0.25)  # exponentials have heavy tails
        exact = in_tube(sample, told, level, TUBE * middle)
        size = (ACCURACY * middle.item()) ** 2
        constraint = Equality(lambda x: told(x) - level.to(x), size)
        return Posterior(prior, constraint, (D,), exact, mode, len(mu))

    # bounds, and exact values too if the kind is mixed
    faces = draw.randint(1, min(4, D - 1))
    B = normal(faces, D)
    B = B / B.norm(dim=1, keepdim=True)
    if kind == "mixed":
        one = under(weights, mu, cov, A[:1], y[:1], times)
        sample = one.sample
        pool = sample(POOL, Generator().manual_seed(seed))
    center = (pool @ B.T).mean(dim=0)
    depth = (pool @ B.T - center).amax(dim=1)
    region = Region(B, center + depth.quantile(draw.uniform(0.02, 0.5)))
    bounds = Inequality(region.excess, TOLERANCE * scale**2)
    if kind == "mixed":
        bounds = Composite([one.constraint, bounds])
    exact = rejected(sample, region.inside)
    return Posterior(prior, bounds, (D,), exact, mode, len(mu), boundary=region.distance)


PRIORS = ("normal", "clusters", "lengths", "low rank", "heavy")
KINDS = {
    "exact": "linear",
    "noisy": "linear",
    "energy": "curved",
    "exponential": "curved",
    "bounds": "inequality",
    "mixed": "mixed",
}


def _problems() -> Iterator[Problem]:
    for i, of in enumerate(PRIORS):
        for j, (kind, shown) in enumerate(KINDS.items()):
            seed = 7000 + 10 * i + j
            draw = random.Random(seed + 1000)
            D = draw.choice((3, 6, 12, 24, 48))
            m = draw.choice([m for m in (1, 2, 4, 8, 16) if m <= D // 2])
            found = {"linear": m, "inequality": 0}.get(shown, 1)
            name = f"blind-{of.replace(' ', '-')}-{kind}"
            make = partial(posed, kind, of, D, m, seed)
            yield Problem(name, "blind", shown, make, found, members=1024)


PROBLEMS = [*_problems()]
