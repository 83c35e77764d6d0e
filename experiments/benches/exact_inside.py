"""Inequalities, alone and beside equalities."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Bounds, Composite, Equality, Inequality, Linear
from feasibly.denoisers import Denoiser
from feasibly.oracles import Checkerboard, Empirical, Gaussian, GaussianMixture
from feasibly.problems.distributions import Checkerboard as Board
from feasibly.schedules import Schedule

from .exact_base import (
    TOLERANCE,
    Posterior,
    Problem,
    Region,
    conditional,
    gaussians,
    half_space,
    inside,
    named,
    nearest,
    normals,
    on_curve,
    rejected,
    schedule,
)
from .exact_curves import board, circle, graph, normal, wave

CALIBRATION = 2**18  # samples of the prior that tell where a bound is

Source = Callable[[int, Generator], Tensor]
Prior = tuple[Denoiser, Source, Callable[[Tensor], Tensor] | None, int]
"""A denoiser, how to sample it, the mode of each sample (None if one) and the number of modes."""


def outside(
    seed: int, D: int, share: float, timing: str, scale: float = 1.0, condition: float = 10.0
) -> Posterior:
    """A correlated Gaussian beyond a hyperplane, where a share of its samples are."""
    normal = normals(seed)
    U = torch.linalg.qr(normal(D, D)).Q
    values = scale**2 * torch.logspace(0, -math.log10(condition), D, dtype=torch.float64)
    cov, n = (U * values) @ U.T, normal(D)
    bound = -torch.special.ndtri(torch.tensor(share).double())
    prior = Gaussian(torch.zeros(D), cov, schedule(timing, scale))
    return half_space(prior, torch.zeros(D).double(), cov, n / n.norm(), bound, scale)


def box(D: int, low: float, high: float, timing: str, scale: float = 1.0) -> Posterior:
    """A standard normal in a box, by the inverse of its distribution function."""
    a, b = torch.tensor([low, high], dtype=torch.float64)
    ends = torch.special.ndtr(-torch.stack([a, b]))  # of the mirrored normal

    def sample(n: int, generator: Generator) -> Tensor:
        u = torch.rand(n, D, generator=generator, dtype=torch.float64)
        x = -torch.special.ndtri(ends[1] + u * (ends[0] - ends[1]))
        return scale * x.clamp(low, high)

    def boundary(x: Tensor) -> Tensor:
        gap = torch.minimum(x - scale * low, scale * high - x)
        return gap.amin(dim=1).clamp_min(0)

    prior = Gaussian(torch.zeros(D), scale**2 * torch.eye(D), schedule(timing, scale))
    constraint = Bounds(scale * low, scale * high, TOLERANCE * scale**2)
    return Posterior(prior, constraint, (D,), sample, boundary=boundary)


def gaussian(D: int, timing: Schedule) -> Prior:
    """A standard normal."""
    prior = Gaussian(torch.zeros(D), torch.eye(D), timing)
    return prior, lambda n, g: torch.randn(n, D, generator=g, dtype=torch.float64), None, 1


def clusters(seed: int, D: int, timing: Schedule) -> Prior:
    """Four clusters of standard deviation 0.3."""
    K, std, mu = 4, 0.3, normals(seed)(4, D)

    def sample(n: int, generator: Generator) -> Tensor:
        which = torch.randint(K, (n,), generator=generator)
        noise = torch.randn(n, D, generator=generator, dtype=torch.float64)
        return mu[which] + std * noise

    cov = std**2 * torch.eye(D).double().expand(K, D, D)
    return GaussianMixture(torch.ones(K) / K, mu, cov, timing), sample, nearest(mu), K


def squares(timing: Schedule) -> Prior:
    """Data2D's checkerboard."""
    board = Board(4)
    return Checkerboard(4, timing), board.sample, board.mode, board.modes


def polytope(seed: int, D: int, faces: int, share: float, prior: Callable[[], Prior]) -> Posterior:
    """A prior where some random linear functions are all below one bound, which a share of its
    samples satisfies, by rejection.
    """
    denoiser, source, mode, modes = prior()
    A = normals(seed)(faces, D)
    A = A / A.norm(dim=1, keepdim=True)
    x = source(CALIBRATION, torch.Generator().manual_seed(seed))
    bound = (x @ A.T).amax(dim=1).sort().values[round(share * CALIBRATION)]
    region = Region(A, bound.expand(faces))
    found = inside(denoiser, region, rejected(source, region.inside))
    return replace(found, mode=mode, modes=modes)


def positive(
    D: int, mean: float, std: float, fixed: float, timing: str, scale: float
) -> Posterior:
    """A Gaussian of independent elements that are not negative and have a given mean, by rejection
    from the Gaussian on the hyperplane.
    """
    A, y = torch.full((1, D), 1 / D).double(), torch.tensor([scale * fixed]).double()
    mu, cov = torch.full((D,), scale * mean).double(), (scale * std) ** 2 * torch.eye(D).double()
    centre, left = conditional(mu, cov, A, y)
    above = Bounds(0.0, math.inf, TOLERANCE * scale**2)
    constraint = Composite([Linear(A, y, 1e-8 * scale**2), above])
    sample = rejected(
        lambda n, g: gaussians(centre, left, n, g), lambda x: (x >= 0).all(dim=1), 2**14
    )
    prior = Gaussian(mu, cov, schedule(timing, scale))
    return Posterior(
        prior, constraint, (D,), sample, boundary=lambda x: x.amin(dim=1).clamp_min(0)
    )


def cut(seed: int, D: int, m: int, share: float, timing: str) -> Posterior:
    """A correlated Gaussian under m linear residuals, beyond a hyperplane where a share of the
    conditional Gaussian is."""
    normal = normals(seed)
    U = torch.linalg.qr(normal(D, D)).Q
    cov = (U * torch.logspace(0, -1, D, dtype=torch.float64)) @ U.T
    A = normal(m, D) / math.sqrt(D)
    y = A @ normal(D) / 2
    mean, left = conditional(torch.zeros(D).double(), cov, A, y)
    n = normal(D)
    bound = -torch.special.ndtri(torch.tensor(share).double())
    prior = Gaussian(torch.zeros(D), cov, schedule(timing))
    found = half_space(prior, mean, left, n / n.norm(), bound)
    return replace(found, constraint=Composite([Linear(A, y, 1e-6 * m), found.constraint]))


def arc(kind: str, timing: str) -> Posterior:
    """A curve in the plane beyond a line: a circle on a Gaussian, or a wave on the
    checkerboard."""
    on_board = kind == "board"
    denoiser, log_density, mode, modes = board(timing) if on_board else normal(0.6, timing)
    curve, ends, residual = graph(wave, 3.0) if on_board else circle(1.3)
    n = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    region = Region(-n, torch.tensor([-0.5], dtype=torch.float64))
    equality = Equality(residual, 1e-8)
    sample = on_curve(curve, ends, equality, log_density, region.inside)
    constraint = Composite([equality, Inequality(region.excess, TOLERANCE)])
    return Posterior(denoiser, constraint, (2,), sample, mode, modes, boundary=region.distance)


def off_board() -> Posterior:
    """A half-plane beyond the checkerboard; uniform samples there stand for a posterior that there
    is not."""
    n = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    region = Region(-n, torch.tensor([-2.2], dtype=torch.float64))
    denoiser = Checkerboard(4, schedule("vp"))

    def sample(count: int, generator: Generator) -> Tensor:
        return torch.rand(count, 2, generator=generator, dtype=torch.float64) + n * 2.2

    return inside(denoiser, region, sample)


def off_data() -> Posterior:
    """A finite data set under a linear constraint that none of its points comes near; Gaussian
    samples there stand for a posterior that there is not."""
    points = normals(5)(64, 8)
    A = torch.full((1, 8), 8**-0.5).double()
    y = torch.tensor([6.0]).double()
    mean, left = conditional(torch.zeros(8).double(), torch.eye(8).double(), A, y)
    prior = Empirical(points, schedule("edm"))
    return Posterior(prior, Linear(A, y, 1e-8), (8,), lambda n, g: gaussians(mean, left, n, g))


def _inequalities() -> Iterator[Problem]:
    def problem(name: str, make: Callable[[], Posterior]) -> Problem:
        return Problem(name, "inequalities", "inequality", make, 0)

    for seed, (D, share, timing, scale) in enumerate(
        (
            (1, 0.1, "vp", 1.0),
            (2, 0.5, "vp", 1.0),
            (2, 0.1, "edm", 0.01),
            (2, 0.025, "loglogit", 1.0),
            (2, 0.005, "cosine", 1.0),
            (2, 0.001, "vp", 1.0),
            (8, 0.005, "flow", 1.0),
            (30, 0.025, "edm", 100.0),
        )
    ):
        name = named("beyond", f"{D}d", f"share{share:g}", timing, scale=scale)
        yield problem(name, partial(outside, seed, D, share, timing, scale))
    for D, low, high, timing, scale in (
        (2, -1.05, 1.05, "vp", 1.0),
        (2, 1.0, 2.0, "edm", 1.0),
        (8, -1.15, 1.15, "rectified", 1.0),
        (30, -1.4, math.inf, "loglogit", 100.0),
        (2, 1.6, 2.5, "cosine", 1.0),
    ):
        name = named("box", f"{D}d", f"from{low:g}", timing, scale=scale)
        yield problem(name, partial(box, D, low, high, timing, scale))
    for name, D, faces, share, prior in (
        ("triangle-2d-share0.1-vp", 2, 3, 0.1, partial(gaussian, 2, schedule("vp"))),
        ("polytope-8d-share0.025-edm", 8, 12, 0.025, partial(gaussian, 8, schedule("edm"))),
        ("clusters-2d-share0.1-edm", 2, 1, 0.1, partial(clusters, 1, 2, schedule("edm"))),
        ("clusters-2d-share0.005-vp", 2, 2, 0.005, partial(clusters, 3, 2, schedule("vp"))),
        ("clusters-8d-share0.025-flow", 8, 4, 0.025, partial(clusters, 2, 8, schedule("flow"))),
        ("board-share0.1-loglogit", 2, 1, 0.1, partial(squares, schedule("loglogit"))),
        ("board-share0.025-edm", 2, 3, 0.025, partial(squares, schedule("edm"))),
        ("board-share0.005-vp", 2, 2, 0.005, partial(squares, schedule("vp"))),
    ):
        yield problem(f"within-{name}", partial(polytope, len(name), D, faces, share, prior))


def _mixed() -> Iterator[Problem]:
    def problem(name: str, make: Callable[[], Posterior], residuals: int) -> Problem:
        return Problem(name, "mixed", "mixed", make, residuals)

    for D, mean, std, fixed, timing, scale in (
        (2, 0.0, 1.0, 0.5, "vp", 1.0),
        (8, 0.5, 1.0, 1.0, "edm", 1.0),
        (30, 1.0, 0.5, 0.8, "cosine", 1.0),
        (8, 0.0, 1.0, 0.8, "edm", 100.0),
    ):
        name = named("positive", f"{D}d", f"mean{fixed:g}", timing, scale=scale)
        yield problem(name, partial(positive, D, mean, std, fixed, timing, scale), 1)
    for seed, (D, m, share, timing) in enumerate(
        ((8, 2, 0.1, "vp"), (30, 4, 0.025, "loglogit"), (30, 1, 0.005, "flow"))
    ):
        name = f"cut-{D}d-{m}r-share{share:g}-{timing}"
        yield problem(name, partial(cut, seed, D, m, share, timing), m)
    yield problem("arc-gaussian-edm", partial(arc, "gaussian", "edm"), 1)
    yield problem("arc-board-loglogit", partial(arc, "board", "loglogit"), 1)


PROBLEMS = [
    *_inequalities(),
    *_mixed(),
    Problem("beyond-board-vp", "unattainable", "inequality", off_board, 0, False),
    Problem("off-data-edm", "unattainable", "linear", off_data, 1, False),
]
