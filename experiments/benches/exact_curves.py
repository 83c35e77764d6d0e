r"""Curved equalities: curves in the plane, by quadrature, and spheres.

All posteriors are those of the tube, :math:`p / |\nabla r|` on the curve.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Generator, Tensor

from feasibly.constraints import Constraint, Energy, Equality, LevelSet
from feasibly.denoisers import Denoiser
from feasibly.oracles import Checkerboard, Gaussian, GaussianMixture
from feasibly.problems.distributions import Banana
from feasibly.problems.distributions import Checkerboard as Board
from feasibly.schedules import Schedule

from .exact_base import Posterior, Problem, modes, nearest, normals, on_curve, on_sphere, schedule

TOLERANCE = 1e-8  # of residuals that vary by about one over the data

Prior = tuple[Denoiser, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor] | None, int]
"""A denoiser, its log-density, the mode of each sample (None if one) and the number of modes."""

Curve = tuple[Callable[[Tensor], Tensor], tuple[float, float], Callable[[Tensor], Tensor]]
"""Points by a parameter, the parameter's ends, and the residual, with shape (N, 1)."""


class BananaOracle(Denoiser):
    r"""The denoiser of Data2D's banana.

    Given :math:`z_1`, which is the first coordinate, the second is a Gaussian. The posterior of
    :math:`z_1` in a component is integrated by Gauss and Hermite's rule around the posterior that
    the first coordinate alone gives.
    """

    node: Tensor
    log_weight: Tensor

    def __init__(self, schedule: Schedule, nodes: int = 64) -> None:
        super().__init__(schedule)
        self.banana = Banana()
        values, weights = map(torch.from_numpy, hermegauss(nodes))
        self.register_buffer("node", values)
        self.register_buffer("log_weight", weights.log())

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        b, (s_1, s_2) = self.banana, self.banana.stds
        z = x.double() * b.std  # (B, 2), with noise of sigma * std
        noise = sigma.double().reshape(-1, 1, 1) * b.std  # (B or 1, 1, 2)
        v_1, v_2 = noise[..., 0].square(), noise[..., 1].square()
        mu_1, mu_2 = b.means.unbind(dim=1)
        v = 1 / (1 / s_1**2 + 1 / v_1)
        middle = v * (mu_1 / s_1**2 + z[:, :1] / v_1)  # (B, K)
        log_1 = -((z[:, :1] - mu_1) ** 2) / (2 * (s_1**2 + v_1))
        z_1 = middle[..., None] + v.sqrt()[..., None] * self.node  # (B, K, nodes)
        centre = mu_2[:, None] + b.curvature * z_1.square() - b.shift
        gap, total = z[:, 1, None, None] - centre, (s_2**2 + v_2)[..., None]
        log_w = log_1[..., None] + self.log_weight - gap.square() / (2 * total)
        w = log_w.flatten(start_dim=1).softmax(dim=1).reshape(log_w.shape)
        z_2 = centre + s_2**2 / total * gap
        mean = torch.stack([(w * u).sum(dim=(1, 2)) for u in (z_1, z_2)], dim=1) / b.std
        return mean.to(x.dtype)


def normal(correlation: float, timing: str, scale: float = 1.0) -> Prior:
    """A correlated Gaussian in the plane, around (0.3, -0.2)."""
    cov = torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=torch.float64)
    mu, inverse = torch.tensor([0.3, -0.2], dtype=torch.float64), torch.linalg.inv(cov)

    def log_density(x: Tensor) -> Tensor:
        z = x / scale - mu
        return -(z @ inverse * z).sum(dim=1) / 2

    prior = Gaussian(scale * mu, scale**2 * cov, schedule(timing, scale))
    return prior, log_density, None, 1


def isotropic(weights: Tensor, mu: Tensor, stds: Tensor, timing: Schedule) -> Prior:
    """Clusters in the plane, each with a weight, a mean and a standard deviation."""
    cov = stds.square()[:, None, None] * torch.eye(2).double()
    parts = modes(mu, stds[:, None].expand(-1, 2), weights)
    prior = GaussianMixture(weights, mu, cov, timing)
    mode = lambda x: parts(x).argmax(dim=1)  # noqa: E731
    return prior, lambda x: parts(x).logsumexp(dim=1), mode, len(mu)


def clusters(seed: int, timing: str, scale: float = 1.0) -> Prior:
    """Five clusters of standard deviation 0.35 in the plane."""
    even, std = torch.ones(5).double() / 5, 0.35 * scale * torch.ones(5).double()
    return isotropic(even, scale * normals(seed)(5, 2), std, schedule(timing, scale))


def widths(timing: str) -> Prior:
    """Two clusters in the plane, of standard deviations 0.25 and 0.45. Far out the second one has
    more of the density than its weight."""
    weights = torch.tensor([0.6, 0.4], dtype=torch.float64)
    mu = torch.tensor([[1.0, 0.8], [-1.0, -0.7]], dtype=torch.float64)
    stds = torch.tensor([0.06, 0.2], dtype=torch.float64).sqrt()
    return isotropic(weights, mu, stds, schedule(timing))


def board(timing: str) -> Prior:
    """Data2D's checkerboard."""
    board = Board(4)

    def log_density(x: Tensor) -> Tensor:
        return torch.where(board.in_support(x), 0.0, -math.inf).double()

    return Checkerboard(4, schedule(timing)), log_density, board.mode, board.modes


def banana(timing: str) -> Prior:
    """Data2D's banana, with its exact denoiser."""
    oracle = BananaOracle(schedule(timing))
    return oracle, oracle.banana.log_density, oracle.banana.mode, oracle.banana.modes


def circle(radius: float, x: float = 0.0, y: float = 0.0, scale: float = 1.0) -> Curve:
    """A circle around (x, y)."""
    centre = torch.tensor([x, y], dtype=torch.float64)

    def residual(v: Tensor) -> Tensor:
        z = v / scale - centre.to(v)
        return ((z.square().sum(dim=1) - radius**2) / (2 * radius))[:, None]

    def curve(u: Tensor) -> Tensor:
        return scale * (centre + radius * torch.stack([u.cos(), u.sin()], dim=1))

    return curve, (0.0, 2 * math.pi), residual


def ellipse(a: float, b: float, turn: float = 0.0) -> Curve:
    """An ellipse around the origin, whose residual is steeper at some places than at others."""
    c, s = math.cos(turn), math.sin(turn)
    axes = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    lengths = torch.tensor([a, b], dtype=torch.float64)

    def residual(x: Tensor) -> Tensor:
        return ((x @ axes.to(x) / lengths.to(x)).square().sum(dim=1) - 1)[:, None]

    def curve(u: Tensor) -> Tensor:
        return lengths * torch.stack([u.cos(), u.sin()], dim=1) @ axes.T

    return curve, (0.0, 2 * math.pi), residual


def graph(f: Callable[[Tensor], Tensor], end: float = 6.0, scale: float = 1.0) -> Curve:
    """The graph of a function: the second coordinate by the first."""

    def residual(x: Tensor) -> Tensor:
        z = x / scale
        return z[:, 1:] - f(z[:, :1])

    def curve(u: Tensor) -> Tensor:
        return scale * torch.stack([u, f(u)], dim=1)

    return curve, (-end, end), residual


def hyperbola(c: float) -> Curve:
    """Both branches of x y = c, with c > 0; the parameter's sign is the branch's."""

    def curve(u: Tensor) -> Tensor:
        x = u.sign() * torch.exp(u.abs() - 4)
        return torch.stack([x, c / x], dim=1)

    return curve, (-6.0, 6.0), lambda x: x[:, :1] * x[:, 1:] - c


def on(prior: Callable[[], Prior], path: Curve, level: bool = False) -> Posterior:
    """Makes a prior in the plane under a curve."""
    denoiser, log_density, mode, modes = prior()
    curve, ends, residual = path
    constraint: Constraint = Equality(residual, TOLERANCE)
    if level:
        constraint = LevelSet(lambda x: residual(x)[:, 0])
    sample = on_curve(curve, ends, constraint, log_density)
    return Posterior(denoiser, constraint, (2,), sample, mode, modes)


def square_1d(timing: str) -> Posterior:
    """Two clusters on the line with their square fixed: two points are left."""
    mu, std = torch.tensor([-0.8, 1.5], dtype=torch.float64), 0.5
    weights = torch.tensor([0.4, 0.6], dtype=torch.float64)
    points = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    log_p = weights.log() - (points[:, None] - mu).square() / (2 * std**2)
    share = log_p.logsumexp(dim=1).softmax(dim=0)  # the slopes are equal

    def sample(n: int, generator: Generator) -> Tensor:
        return points[torch.multinomial(share, n, replacement=True, generator=generator)][:, None]

    cov = torch.full((2, 1, 1), std**2, dtype=torch.float64)
    prior = GaussianMixture(weights, mu[:, None], cov, schedule(timing))
    constraint = Equality(lambda x: (x.square() - 1) / 2, TOLERANCE)
    return Posterior(prior, constraint, (1,), sample, nearest(points[:, None]), 2, atoms=True)


def sphere(
    seed: int, D: int, radius: float, offset: float, timing: str, scale: float
) -> Posterior:
    r"""A standard normal around a mean, with its mean square fixed.

    On the sphere its density is :math:`e^{\kappa u \cdot \mu / |\mu|}`. The cosine is sampled by
    quadrature, and the direction across is uniform.

    Arguments:
        radius: The root mean square of a sample's elements, in units of the scale.
    """
    direction = normals(seed)(D)
    direction /= direction.norm()
    mu = offset * math.sqrt(D) * direction
    R = radius * math.sqrt(D)
    cos = (torch.arange(2**16).double() + 0.5) / 2**15 - 1
    on = on_sphere(direction, cos, R * mu.norm() * cos)

    def sample(n: int, generator: Generator) -> Tensor:
        return scale * R * on(n, generator)

    prior = Gaussian(scale * mu, scale**2 * torch.eye(D), schedule(timing, scale))
    unit = scale**2 * radius**2 / 2
    constraint = Energy((-1,), torch.tensor(unit, dtype=torch.float64), (1e-3 * unit) ** 2)
    return Posterior(prior, constraint, (D,), sample)


def bingham(seed: int, D: int, condition: float, timing: str) -> Posterior:
    r"""A correlated Gaussian with its mean square fixed at the mean of that: a Bingham
    distribution.

    It is sampled by rejection from an angular central Gaussian.

    References:
        | A new method to simulate the Bingham and related distributions (Kent, Ganeiber & Mardia,
        | 2013), https://arxiv.org/abs/1310.8110
    """
    U = torch.linalg.qr(normals(seed)(D, D)).Q
    values = torch.logspace(0, -math.log10(condition), D, dtype=torch.float64)
    square = values.sum()
    a = square / (2 * values)  # exp(-u a u) on the unit sphere
    a = a - a.min()
    low, high = 1e-9, float(D)  # of b, with sum 1 / (b + 2 a) = 1
    for _ in range(200):
        b = (low + high) / 2
        low, high = (b, high) if (1 / (b + 2 * a)).sum() > 1 else (low, b)
    omega = 1 + 2 * a / b
    log_bound = -(D - b) / 2 + D / 2 * math.log(D / b)

    def sample(n: int, generator: Generator) -> Tensor:
        found: list[Tensor] = []
        while sum(map(len, found)) < n:
            z = torch.randn(2**13, D, generator=generator, dtype=torch.float64) / omega.sqrt()
            u = z / z.norm(dim=1, keepdim=True)
            w = u.square()
            log_ratio = -(w @ a) + D / 2 * (w @ omega).log() - log_bound
            v = torch.rand(len(u), generator=generator, dtype=torch.float64)
            found.append(u[v.log() <= log_ratio])
        return square.sqrt() * torch.cat(found)[:n] @ U.T

    cov = (U * values) @ U.T
    unit = square / (2 * D)
    constraint = Energy((-1,), unit, (1e-3 * unit.item()) ** 2)
    return Posterior(Gaussian(torch.zeros(D), cov, schedule(timing)), constraint, (D,), sample)


def ring(radius: float, height: float, timing: str) -> Posterior:
    """A Gaussian in space, correlated in the plane, on the circle where a sphere and a plane
    meet."""
    cov = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.0, 0.1], [0.2, 0.1, 0.5]], dtype=torch.float64)
    inverse = torch.linalg.inv(cov)
    u = torch.arange(2**15).double() / 2**15 * 2 * math.pi
    r = math.sqrt(radius**2 - height**2)
    x = torch.stack([r * u.cos(), r * u.sin(), torch.full_like(u, height)], dim=1)
    # both residuals are equally steep all along
    share = (-(x @ inverse * x).sum(dim=1) / 2).softmax(dim=0)

    def sample(n: int, generator: Generator) -> Tensor:
        return x[torch.multinomial(share, n, replacement=True, generator=generator)]

    def residual(x: Tensor) -> Tensor:
        sphere = (x.square().sum(dim=1) - radius**2) / (2 * radius)
        return torch.stack([sphere, x[:, 2] - height], dim=1)

    prior = Gaussian(torch.zeros(3), cov, schedule(timing))
    return Posterior(prior, Equality(residual, 2 * TOLERANCE), (3,), sample)


def wave(x: Tensor) -> Tensor:
    """The function of the problems called `wave`."""
    return 0.6 * torch.sin(2.5 * x) + 0.1


Spec = tuple[Callable[[], Prior], Curve]

CURVES: dict[str, Spec] = {
    "circle-gaussian-vp": (partial(normal, 0.8, "vp"), circle(1.2)),
    "circle-gaussian-edm-100": (
        partial(normal, 0.5, "edm", 100.0),
        circle(1.5, 0.5, 0.0, 100.0),
    ),
    "circle-far-gaussian-cosine": (partial(normal, 0.0, "cosine"), circle(0.8, 3.0)),
    "ellipse-gaussian-flow": (partial(normal, 0.6, "flow"), ellipse(1.5, 0.75, 0.5)),
    "ellipse-clusters-loglogit": (partial(clusters, 0, "loglogit"), ellipse(1.5, 0.75, 1.0)),
    "circle-clusters-edm-0.01": (
        partial(clusters, 1, "edm", 0.01),
        circle(1.0, 0.0, 0.2, 0.01),
    ),
    "parabola-gaussian-edm": (partial(normal, 0.3, "edm"), graph(lambda x: x.square() - 1)),
    "cubic-clusters-rectified": (
        partial(clusters, 2, "rectified"),
        graph(lambda x: x.pow(3) / 2 - x / 2, 3.0),
    ),
    "hyperbola-gaussian-vp": (partial(normal, 0.4, "vp"), hyperbola(0.5)),
}
"""Gaussians and clusters under curves."""

TAILS: dict[str, Spec] = {
    "hyperbola-1.5-widths-vp": (partial(widths, "vp"), hyperbola(1.5)),
    "hyperbola-2-widths-cosine": (partial(widths, "cosine"), hyperbola(2.0)),
    "hyperbola-3-widths-loglogit": (partial(widths, "loglogit"), hyperbola(3.0)),
    "circle-2-widths-edm": (partial(widths, "edm"), circle(2.0)),
    "ellipse-1.8-widths-flow": (partial(widths, "flow"), ellipse(1.8, 2.4, 0.4)),
    "circle-1.5-offset-widths-vp": (partial(widths, "vp"), circle(1.5, -0.2, 0.6)),
}
"""Clusters of different widths under curves in their tails."""

BOARDS: dict[str, Spec] = {
    "circle-board-loglogit": (partial(board, "loglogit"), circle(1.1)),
    "wave-board-vp": (partial(board, "vp"), graph(wave, 3.0)),
    "ellipse-board-edm": (partial(board, "edm"), ellipse(1.5, 0.8, 0.6)),
    "cubic-board-cosine": (partial(board, "cosine"), graph(lambda x: x.pow(3) / 3 - x / 2, 3.0)),
    "circle-banana-loglogit": (partial(banana, "loglogit"), circle(1.0)),
    "wave-banana-edm": (partial(banana, "edm"), graph(wave, 4.0)),
    "ellipse-banana-vp": (partial(banana, "vp"), ellipse(1.2, 0.9, 0.3)),
    "parabola-banana-flow": (
        partial(banana, "flow"),
        graph(lambda x: 0.4 * x.square() - 0.5, 4.0),
    ),
}
"""Data2D's priors, with exact denoisers, under smooth curves."""

SPHERES: dict[str, tuple[Callable[[], Posterior], int]] = {
    "square-line-vp": (partial(square_1d, "vp"), 1),
    "sphere-8-offset-edm": (partial(sphere, 0, 8, 1.0, 0.5, "edm", 1.0), 1),
    "sphere-30-vp": (partial(sphere, 1, 30, 1.0, 0.0, "vp", 1.0), 1),
    "sphere-30-large-edm-0.01": (partial(sphere, 2, 30, 1.4, 0.3, "edm", 0.01), 1),
    "sphere-256-cosine": (partial(sphere, 3, 256, 1.05, 0.0, "cosine", 1.0), 1),
    "bingham-8-flow": (partial(bingham, 4, 8, 10.0, "flow"), 1),
    "ring-edm": (partial(ring, 1.5, 0.5, "edm"), 2),
}
"""Fixed mean squares, and the number of residuals."""


def unattainable() -> Posterior:
    """A circle around the checkerboard, which it does not touch; samples of the circle stand for
    a posterior that there is not."""
    denoiser = Checkerboard(4, schedule("loglogit"))
    curve, ends, residual = circle(3.0)
    constraint = LevelSet(lambda x: residual(x)[:, 0])
    sample = on_curve(curve, ends, constraint, lambda x: torch.zeros(len(x)).double())
    return Posterior(denoiser, constraint, (2,), sample)


PROBLEMS = [
    *(
        Problem(name, family, "curved", partial(on, *spec, level=family == "Data2D"), 1)
        for family, specs in (("curves", CURVES), ("tails", TAILS), ("Data2D", BOARDS))
        for name, spec in specs.items()
    ),
    *(Problem(name, "spheres", "curved", make, m) for name, (make, m) in SPHERES.items()),
    Problem("circle-off-board-loglogit", "unattainable", "curved", unattainable, 1, False),
]
