"""What the exact problems have in common: what a problem is, schedules, and ways to sample."""

__all__ = [
    "Problem",
    "Region",
    "beyond",
    "mixture",
    "named",
    "on_curve",
    "on_sphere",
    "rejected",
    "schedule",
]

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from feasibly.constraints import Constraint
from feasibly.oracles import GaussianMixture
from feasibly.schedules import EDM, VP, Cosine, Flow, LogLogit, Rectified, Schedule

from .posteriors import Posterior, conditional, gaussians, nearest

MEMBERS = 1024
CELLS = 2**15  # of a curve, between two of which the density hardly changes


@dataclass(frozen=True)
class Problem:
    """One of the problems, which is made when it is needed.

    Attributes:
        name: Its name, which no other problem has.
        family: The family that tables show it under.
        kind: `linear`, `curved`, `inequality`, `mixed` or `field`.
        make: Makes it. Without an exact distribution, `sample` returns what stands for it.
        residuals: The number of equality residuals and of values with errors.
        attainable: Whether a sample of the prior can satisfy the constraint. If not, a warning is
            the right answer.
        members: The members of an ensemble, at most.
    """

    name: str
    family: str
    kind: str
    make: Callable[[], Posterior]
    residuals: int
    attainable: bool = True
    members: int = MEMBERS


def schedule(name: str, scale: float = 1.0) -> Schedule:
    """Returns a noise schedule for data of a scale; those of fixed noise levels for scale 1.

    Raises:
        ValueError: If there is none of that name, or not for that scale.
    """
    if name == "edm":
        return EDM(2e-3 * scale, 80 * scale)
    if name == "loglogit":
        return LogLogit(1e-3 * scale, 1e2 * scale, spread=2.0)
    fixed = {"vp": VP, "cosine": Cosine, "flow": Flow, "rectified": Rectified}
    if name not in fixed or scale != 1:
        raise ValueError(f"There is no schedule {name!r} for data of scale {scale:g}.")
    return fixed[name]()


def mixture(
    weights: Tensor,
    mu: Tensor,
    std: float,
    A: Tensor,
    y: Tensor,
    constraint: Constraint,
    timing: Schedule,
) -> Posterior:
    """Returns clusters of one standard deviation under A x = y.

    Arguments:
        weights: Their weights, with shape (K).
        mu: Their means, with shape (K, D).
        std: The standard deviation of each, in every direction.
        A: The matrix, with shape (m, D).
        y: What is observed, with shape (m).
        constraint: The constraint that says so.
        timing: The schedule.
    """
    K, D = mu.shape
    cov = std**2 * torch.eye(D).double()
    S = A @ cov @ A.T
    gap = y - mu @ A.T
    log_w = weights.log() - (gap @ torch.linalg.inv(S) * gap).sum(dim=1) / 2
    parts = [conditional(mean, cov, A, y) for mean in mu]

    def sample(n: int, generator: Generator) -> Tensor:
        which = torch.multinomial(log_w.softmax(dim=0), n, replacement=True, generator=generator)
        means = torch.stack([mean for mean, _ in parts])
        return means[which] + gaussians(torch.zeros(D).double(), parts[0][1], n, generator)

    prior = GaussianMixture(weights, mu, cov.expand(K, D, D), timing)
    return Posterior(prior, constraint, (D,), sample, nearest(mu), K)


def on_curve(
    curve: Callable[[Tensor], Tensor],
    ends: tuple[float, float],
    constraint: Constraint,
    log_density: Callable[[Tensor], Tensor],
    inside: Callable[[Tensor], Tensor] | None = None,
) -> Callable[[int, Generator], Tensor]:
    r"""Returns how to sample a prior under one residual whose zeros are a curve.

    The density along the curve is that of the tube, :math:`p / |\nabla r|`.

    Arguments:
        curve: The points of the curve, with shape (N, 2), at parameters with shape (N).
        ends: The first and the last parameter.
        constraint: The equality.
        log_density: The log-density of the prior, with shape (N), up to a constant.
        inside: Which points satisfy a second constraint, an inequality; all if None.
    """
    low, high = ends
    h = (high - low) / CELLS
    u = low + h * (torch.arange(CELLS).double() + 0.5)
    x = curve(u)
    speed = (curve(u + h / 4) - curve(u - h / 4)).norm(dim=1)
    with torch.enable_grad():
        z = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(constraint.residual(z).sum(), z)
    log_w = log_density(x) + speed.log() - slope.norm(dim=1).log()
    if inside is not None:
        log_w = log_w.masked_fill(~inside(x), -math.inf)
    share = log_w.softmax(dim=0).cumsum(dim=0)

    def sample(n: int, generator: Generator) -> Tensor:
        v = torch.rand(n, generator=generator, dtype=torch.float64)
        return x[torch.searchsorted(share, v * share[-1]).clamp(max=CELLS - 1)]

    return sample


def on_sphere(
    direction: Tensor, cos: Tensor, log_density: Tensor
) -> Callable[[int, Generator], Tensor]:
    """Returns how to sample the unit sphere by the density of the cosine to an axis. Cosines are
    sampled by quadrature, and the direction across is uniform.

    Arguments:
        direction: The axis, of length one, with shape (D).
        cos: The cosines, evenly spaced, with shape (N).
        log_density: The log-density on the sphere at each, up to a constant.
    """
    D = len(direction)
    log_w = log_density + (D - 3) / 2 * torch.log1p(-cos.square())
    share = log_w.softmax(dim=0).cumsum(dim=0)

    def sample(n: int, generator: Generator) -> Tensor:
        v = torch.rand(n, generator=generator, dtype=torch.float64)
        c = cos[torch.searchsorted(share, v * share[-1]).clamp(max=len(cos) - 1)][:, None]
        z = torch.randn(n, D, generator=generator, dtype=torch.float64)
        z = z - (z @ direction)[:, None] * direction
        across = z / z.norm(dim=1, keepdim=True)
        return c * direction + (1 - c.square()).sqrt() * across

    return sample


def rejected(
    prior: Callable[[int, Generator], Tensor],
    inside: Callable[[Tensor], Tensor],
    batch: int = 2**16,
) -> Callable[[int, Generator], Tensor]:
    """Returns how to sample a prior within a set, by rejection.

    Arguments:
        prior: Samples the prior.
        inside: Which samples are in the set, with shape (N).
        batch: How many samples of the prior are made at a time.
    """

    def sample(n: int, generator: Generator) -> Tensor:
        found: list[Tensor] = []
        while sum(map(len, found)) < n:
            x = prior(batch, generator)
            found.append(x[inside(x)])
        return torch.cat(found)[:n]

    return sample


@dataclass(frozen=True)
class Region:
    r"""The polytope :math:`A x \leq b`.

    Attributes:
        A: The normals, of length one, with shape (m, D).
        b: The bounds, with shape (m).
    """

    A: Tensor
    b: Tensor

    def excess(self, x: Tensor) -> Tensor:
        """Returns A x - b, with shape (N, m)."""
        return x.flatten(start_dim=1) @ self.A.to(x).T - self.b.to(x)

    def inside(self, x: Tensor) -> Tensor:
        """Returns which samples are in it."""
        return (self.excess(x) <= 0).all(dim=1)

    def distance(self, x: Tensor) -> Tensor:
        """Returns the distance to the nearest face of samples inside; 0 of those outside."""
        return (-self.excess(x).amax(dim=1)).clamp_min(0)


def beyond(low: float | Tensor, n: int, generator: Generator) -> Tensor:
    """Samples standard normals above bounds, by the inverse of their distribution function.

    Arguments:
        low: The bounds, with shape () or (D).
        n: The number of samples.
        generator: The generator.
    """
    low = torch.as_tensor(low, dtype=torch.float64)
    u = torch.rand((n, *low.shape), generator=generator, dtype=torch.float64)
    # of the mirrored normal, whose distribution function is accurate far out
    return -torch.special.ndtri(u * torch.special.ndtr(-low))


def named(*parts: str, scale: float = 1.0) -> str:
    """Returns a problem's name; the scale is named if it is not 1."""
    return "-".join([*parts, *([] if scale == 1 else [f"scale{scale:g}"])])
