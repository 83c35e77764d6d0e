"""What the exact problems have in common: what a problem is, schedules, and ways to sample."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from feasibly.constraints import Constraint, Inequality, Linear
from feasibly.denoisers import Denoiser
from feasibly.oracles import GaussianMixture
from feasibly.schedules import EDM, VP, Cosine, Flow, LogLogit, Rectified, Schedule

MEMBERS = 1024
ACCURACY = 1e-3  # of a feasible residual, in standard deviations of the observed quantity
TOLERANCE = 1e-12  # of inequalities, in squared units of the scale
CELLS = 2**15  # of a curve, between two of which the density hardly changes


@dataclass(frozen=True)
class Posterior:
    """A prior, a constraint, and the exact distribution of the one under the other.

    Attributes:
        denoiser: The exact denoiser of the prior.
        shape: The shape of a sample.
        sample: Returns as many samples of the exact posterior as it is asked for, by a generator,
            with shape (N, *).
        mode: The mode of each sample, integers with shape (N); None if there is only one.
        atoms: Whether it has single points only, of which samples have no nearest neighbours.
        boundary: The distance of each sample to where an inequality ends, with shape (N); None
            without one.
    """

    denoiser: Denoiser
    constraint: Constraint
    shape: tuple[int, ...]
    sample: Callable[[int, Generator], Tensor]
    mode: Callable[[Tensor], Tensor] | None = None
    modes: int = 1
    atoms: bool = False
    boundary: Callable[[Tensor], Tensor] | None = None


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


def normals(seed: int) -> Callable[..., Tensor]:
    """Returns a source of standard normals, of the shape that it is called with."""
    generator = Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def conditional(
    mu: Tensor, cov: Tensor, A: Tensor, y: Tensor, R: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """The mean and the covariance of a Gaussian given A x + e = y, with errors of covariance R."""
    gain = cov @ A.T @ torch.linalg.inv(A @ cov @ A.T + R)
    return mu + gain @ (y - A @ mu), cov - gain @ A @ cov


def gaussians(mean: Tensor, cov: Tensor, n: int, generator: Generator) -> Tensor:
    """Samples of a Gaussian, whose covariance may be singular."""
    values, vectors = torch.linalg.eigh(cov)
    root = vectors * values.clamp_min(0).sqrt()
    noise = torch.randn(n, len(mean), generator=generator, dtype=torch.float64)
    return mean + noise @ root.T


def nearest(points: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns what tells which of some points is the nearest to a sample."""
    return lambda x: torch.cdist(x.double(), points).argmin(dim=1)


def modes(mu: Tensor, stds: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns the log-densities of normal modes, with shape (N, K), as a function of samples.

    Arguments:
        mu: Their means, with shape (K, D).
        stds: Their standard deviations, with shape (K, D).
        weights: Their weights, with shape (K).
    """

    def parts(x: Tensor) -> Tensor:
        z = (x.double()[:, None] - mu) / stds
        return weights.log() - z.square().sum(dim=2) / 2 - stds.log().sum(dim=1)

    return parts


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
        A: The matrix, with shape (m, D).
        y: What is observed, with shape (m).
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


def process(length: float | Tensor, own: float, D: int) -> Tensor:
    """Returns the covariance of a smooth process of variance one and of a correlation length, and
    of noise of its own of a variance, with shape (D, D)."""
    apart = torch.arange(D).double()
    apart = (apart[:, None] - apart).square()
    return (-apart / 2 / length**2).exp() + own * torch.eye(D).double()


def smooth(lengths: Tensor, D: int) -> Tensor:
    """Returns covariances of processes of given correlation lengths, with shape (K, D, D)."""
    return torch.stack([process(one, 2e-2, D) for one in lengths]) / 2


def of_modes(
    log_w: Tensor, known: Sequence[tuple[Tensor, Tensor]]
) -> Callable[[int, Generator], Tensor]:
    """Returns how to sample normal modes, given their log-weights, with shape (K), and the mean
    and the covariance of each."""

    def sample(n: int, generator: Generator) -> Tensor:
        which = torch.multinomial(log_w.softmax(dim=0), n, replacement=True, generator=generator)
        x = torch.empty(n, len(known[0][0]), dtype=torch.float64)
        for k, part in enumerate(known):
            of = which == k
            x[of] = gaussians(*part, int(of.sum()), generator)
        return x

    return sample


def likeliest(mu: Tensor, cov: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns what tells which of some normal modes a sample is likeliest under, given their means
    and covariances."""

    def mode(x: Tensor) -> Tensor:
        gaps = x.double() - mu[:, None]
        squares = (gaps @ torch.linalg.inv(cov) * gaps).sum(dim=2)
        return (squares + torch.logdet(cov)[:, None]).argmin(dim=0)

    return mode


def under(
    weights: Tensor,
    mu: Tensor,
    cov: Tensor,
    A: Tensor,
    y: Tensor,
    timing: Schedule,
    error: float = 0.0,
) -> Posterior:
    """Returns normal modes under A x = y, or A x + e = y with errors of a standard deviation."""
    R = error**2 * torch.eye(len(A)).double()
    S = A @ cov @ A.T + R
    gap = y - mu @ A.T
    log_w = weights.log() - (torch.linalg.solve(S, gap) * gap).sum(dim=1) / 2
    log_w = log_w - torch.logdet(S) / 2
    known = [conditional(mean, one, A, y, R) for mean, one in zip(mu, cov, strict=True)]
    size = ACCURACY**2 * S.diagonal(dim1=1, dim2=2).sum(dim=1).min().item()
    constraint = Linear(A, y, noise=error) if error else Linear(A, y, size)
    return Posterior(
        GaussianMixture(weights, mu, cov, timing),
        constraint,
        A.shape[1:],
        of_modes(log_w, known),
        likeliest(mu, cov),
        len(mu),
    )


def picked(points: Tensor, log_w: Tensor) -> Callable[[int, Generator], Tensor]:
    """Returns how to sample some points, with shape (N, *), by their log-weights."""
    share = log_w.softmax(dim=0).cumsum(dim=0)

    def sample(n: int, generator: Generator) -> Tensor:
        v = torch.rand(n, generator=generator, dtype=torch.float64)
        return points[torch.searchsorted(share, v * share[-1]).clamp(max=len(share) - 1)]

    return sample


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
    return picked(x, log_w)


def on_sphere(
    direction: Tensor, cos: Tensor, log_density: Tensor
) -> Callable[[int, Generator], Tensor]:
    """Returns how to sample the unit sphere by the density of the cosine to an axis. Cosines are
    sampled by quadrature, and the direction across is uniform.

    Arguments:
        direction: The axis, of length one, with shape (D).
        cos: The cosines, evenly spaced, with shape (N).
    """
    D = len(direction)
    cosines = picked(cos, log_density + (D - 3) / 2 * torch.log1p(-cos.square()))

    def sample(n: int, generator: Generator) -> Tensor:
        c = cosines(n, generator)[:, None]
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
        inside: Which samples are in the set, with shape (N).
    """

    def sample(n: int, generator: Generator) -> Tensor:
        found: list[Tensor] = []
        while sum(map(len, found)) < n:
            x = prior(batch, generator)
            found.append(x[inside(x)])
        return torch.cat(found)[:n]

    return sample


def in_tube(
    prior: Callable[[int, Generator], Tensor],
    values: Callable[[Tensor], Tensor],
    level: Tensor,
    width: Tensor,
) -> Callable[[int, Generator], Tensor]:
    """Returns how to sample a prior where values have a level, by rejection from a thin tube and
    Newton's steps. In a tube, densities are those of the prior over the residual's gradient.

    Arguments:
        values: Maps samples to their values, with shape (N, m).
        level: The level, with shape (m).
        width: Half the tube's width, with shape (m).
    """
    tube = rejected(prior, lambda x: ((values(x) - level).abs() <= width).all(dim=1), 2**18)

    def sample(n: int, generator: Generator) -> Tensor:
        x = tube(n, generator)
        for _ in range(4):
            z = x.clone().requires_grad_()
            with torch.enable_grad():
                r = values(z) - level
                rows = [torch.autograd.grad(v.sum(), z, retain_graph=True)[0] for v in r.unbind(1)]
            J = torch.stack(rows, dim=1)
            x = x - (J.mT @ torch.linalg.solve(J @ J.mT, r.detach()[..., None]))[..., 0]
        return x

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


def inside(
    prior: Denoiser,
    region: Region,
    sample: Callable[[int, Generator], Tensor],
    scale: float = 1.0,
) -> Posterior:
    """Returns a prior of vectors in a region, which `sample` samples."""
    constraint = Inequality(region.excess, TOLERANCE * scale**2)
    shape = (region.A.shape[1],)
    return Posterior(prior, constraint, shape, sample, boundary=region.distance)


def beyond(low: float | Tensor, n: int, generator: Generator) -> Tensor:
    """Samples standard normals above bounds, by the inverse of their distribution function.

    Arguments:
        low: The bounds, with shape () or (D).
    """
    low = torch.as_tensor(low, dtype=torch.float64)
    u = torch.rand((n, *low.shape), generator=generator, dtype=torch.float64)
    # of the mirrored normal, whose distribution function is accurate far out
    return -torch.special.ndtri(u * torch.special.ndtr(-low))


def half_space(
    prior: Denoiser, mean: Tensor, cov: Tensor, n: Tensor, bound: Tensor, scale: float = 1.0
) -> Posterior:
    """Returns a Gaussian beyond a hyperplane with the normal n, of length one, which is `bound`
    standard deviations from its mean."""
    std = (n @ cov @ n).sqrt()

    def sample(count: int, generator: Generator) -> Tensor:
        z = beyond(bound, count, generator) * std
        free = gaussians(torch.zeros_like(mean), cov, count, generator)
        return mean + free + (z - free @ n)[:, None] * (cov @ n) / std**2

    return inside(prior, Region(-n[None], -(n @ mean + bound * std)[None]), sample, scale)


def named(*parts: str, scale: float = 1.0) -> str:
    """Returns a problem's name; the scale is named if it is not 1."""
    return "-".join([*parts, *([] if scale == 1 else [f"scale{scale:g}"])])
