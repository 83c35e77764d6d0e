"""Two normal modes, of which the rare one is what the constraint favours."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Energy, Linear
from feasibly.oracles import GaussianMixture

from .exact_base import Posterior, Problem, modes, named, normals, on_sphere, schedule
from .exact_curves import Curve, Prior, circle, ellipse, graph, isotropic, on, wave

APART = 2.0  # how far apart modes are, across the values


def linear(
    seed: int, D: int, m: int, weight: float, width: float, timing: str, scale: float = 1.0
) -> Posterior:
    """A standard normal and a rare one, under m linear values that make both nearly as likely."""
    normal = normals(seed)
    A, across = torch.linalg.qr(normal(D, m)).Q.T, normal(D)
    across -= A.T @ (A @ across)
    across *= APART / across.norm()
    # how far the values are from the wide mode's, so that its density there is the rare one's
    odds = math.log(weight / (1 - weight)) - m * math.log(width)
    y = A.new_full((m,), math.sqrt(-2 * odds / m)) if odds < 0 else A.new_zeros(m)
    mu = torch.stack([-across / 2, A.T @ y + across / 2])
    stds = torch.tensor([1.0, width]).double()[:, None].expand(2, D)
    return given(mu, stds, weight, A, y, timing, scale)


def given(
    mu: Tensor, stds: Tensor, weight: float, A: Tensor, y: Tensor, timing: str, scale: float = 1.0
) -> Posterior:
    """Two modes of independent elements under A x = y, where the rows of A are orthonormal, and
    eigenvectors of each mode's covariance.

    Arguments:
        mu: The modes' means, with shape (2, D).
        stds: Their standard deviations, with shape (2, D).
        A: The rows, with shape (m, D).
    """
    weights = torch.tensor([1 - weight, weight]).double()
    along = (A.square() @ stds.T.square()).sqrt()  # (m, K)
    gap = (y[:, None] - A @ mu.T) / along
    share = (weights.log() - (gap.square() / 2 + along.log()).sum(dim=0)).softmax(dim=0)

    def sample(n: int, generator: Generator) -> Tensor:
        which = torch.multinomial(share, n, replacement=True, generator=generator)
        x = mu[which] + stds[which] * torch.randn(n, len(mu[0]), generator=generator).double()
        return scale * (x - (x @ A.T - y) @ A)

    cov = torch.diag_embed((scale * stds).square())
    prior = GaussianMixture(weights, scale * mu, cov, schedule(timing, scale))
    parts = modes(scale * mu, scale * stds, weights)
    constraint = Linear(A, scale * y, 1e-8 * scale**2)
    shape = (mu.shape[1],)
    return Posterior(prior, constraint, shape, sample, lambda x: parts(x).argmax(dim=1), 2)


def sphere(seed: int, D: int, weight: float, width: float, timing: str) -> Posterior:
    r"""A standard normal and a rare one on the sphere of radius :math:`\sqrt D`.

    There both are von Mises-Fisher distributions. Cosines to the rare mode's mean are sampled by
    quadrature.
    """
    direction, R = normals(seed)(D), math.sqrt(D)
    direction /= direction.norm()
    mu = torch.stack([torch.zeros(D).double(), R * direction])
    stds = torch.tensor([1.0, width]).double()
    weights = torch.tensor([1 - weight, weight]).double()
    cos = (torch.arange(2**16).double() + 0.5) / 2**15 - 1
    lengths = mu.norm(dim=1, keepdim=True)
    squares = D - 2 * R * lengths * cos + lengths.square()  # (K, cosines)
    log_p = (weights.log() - D * stds.log())[:, None] - squares / (2 * stds[:, None].square())
    on = on_sphere(direction, cos, log_p.logsumexp(dim=0))

    def sample(n: int, generator: Generator) -> Tensor:
        return R * on(n, generator)

    cov = stds.square()[:, None, None] * torch.eye(D).double()
    prior = GaussianMixture(weights, mu, cov, schedule(timing))
    parts = modes(mu, stds[:, None].expand(2, D), weights)
    constraint = Energy((-1,), torch.tensor(0.5, dtype=torch.float64), 1e-8)
    return Posterior(prior, constraint, (D,), sample, lambda x: parts(x).argmax(dim=1), 2)


def plane(at: tuple[float, float], weight: float, width: float, timing: str) -> Prior:
    """A standard normal in the plane and a rare one at a place."""
    mu = torch.tensor([[0.0, 0.0], at], dtype=torch.float64)
    stds = torch.tensor([1.0, width], dtype=torch.float64)
    weights = torch.tensor([1 - weight, weight], dtype=torch.float64)
    return isotropic(weights, mu, stds, schedule(timing))


LINEAR: tuple[tuple[int, int, float, float, str, float], ...] = (
    (2, 1, 0.05, 0.25, "vp", 1.0),
    (4, 2, 0.05, 0.25, "edm", 100.0),
    (8, 1, 0.1, 0.1, "flow", 1.0),
    (8, 4, 0.05, 0.5, "cosine", 1.0),
    (16, 2, 0.02, 0.25, "rectified", 1.0),
    (32, 2, 0.02, 0.2, "loglogit", 0.01),
    (64, 1, 0.02, 0.25, "vp", 1.0),
    (64, 8, 0.05, 0.75, "edm", 1.0),
)
"""Dimension, values, the rare mode's weight and width, schedule and scale."""

CURVED: dict[str, tuple[Curve, tuple[float, float], float, float, str]] = {
    "circle": (circle(1.5), (0.9, 1.2), 0.05, 0.06, "vp"),
    "ellipse": (ellipse(1.5, 0.75, 0.5), (-1.27, -0.18), 0.05, 0.06, "flow"),
    "parabola": (graph(lambda x: x.square() - 1), (1.2, 0.44), 0.1, 0.2, "edm"),
    "wave": (graph(wave, 4.0), (-1.5, 0.44), 0.05, 0.1, "loglogit"),
}
"""The curve, where the rare mode is, its weight and width, and the schedule."""

SPHERES: tuple[tuple[int, float, float, str], ...] = (
    (8, 0.1, 0.1, "cosine"),
    (32, 0.1, 0.15, "edm"),
)
"""Dimension, the rare mode's weight and width, and the schedule."""


def planar(weight: float, y: float, stds: tuple[float, float]) -> Posterior:
    """Two modes in the plane, apart across the one value."""
    mu = torch.tensor([[0.0, -1.0], [y, 1.0]], dtype=torch.float64)
    rows, value = torch.eye(2)[:1].double(), torch.tensor([y], dtype=torch.float64)
    wide = torch.tensor([[1.0, 0.3], stds], dtype=torch.float64)
    return given(mu, wide, weight, rows, value, "vp")


def _problems() -> Iterator[Problem]:
    add = partial(Problem, family="rare modes")
    for name, spec in (("", (0.05, 1.0, (0.083, 0.3))), ("narrow", (0.02, 0.0, (0.02, 0.3)))):
        full = named("rare", *([name] if name else []), "planar-vp")
        yield add(full, kind="linear", make=partial(planar, *spec), residuals=1)
    for seed, spec in enumerate(LINEAR):
        D, m, weight, width, timing, scale = spec
        name = named("rare", f"{D}d", f"{m}r", f"{weight:g}", timing, scale=scale)
        yield add(name, kind="linear", make=partial(linear, 60 + seed, *spec), residuals=m)
    for name, (path, at, weight, width, timing) in CURVED.items():
        make = partial(on, partial(plane, at, weight, width, timing), path)
        yield add(f"rare-{name}-{timing}", kind="curved", make=make, residuals=1)
    for seed, spec in enumerate(SPHERES):
        make = partial(sphere, 80 + seed, *spec)
        yield add(f"rare-sphere-{spec[0]}-{spec[3]}", kind="curved", make=make, residuals=1)


PROBLEMS = [*_problems()]
