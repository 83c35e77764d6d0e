"""Small learned priors of data whose distribution is known. The truth is the data's, so that
distances hold the errors of the denoisers too."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly import priors
from feasibly.constraints import Composite, Inequality, Integral, Linear
from feasibly.problems.distributions import Banana
from feasibly.schedules import LogLogit

from ..tasks.heat import SIZE, heat
from ..tasks.learned import Clusters, Field, known
from .exact_base import (
    MEMBERS,
    Posterior,
    Problem,
    conditional,
    gaussians,
    mixture,
    nearest,
    normals,
    rejected,
)
from .exact_curves import Curve, banana, board, circle, ellipse, graph, on
from .exact_fields import energy, initial, seen_once

SLOW = 64  # members of the flow of solutions
ACCURACY = 1e-3  # of a feasible residual, in standard deviations of what is observed


def clusters(m: int, cluster: int, far: float) -> Posterior:
    """The clusters under m linear residuals, `far` standard deviations from one of them."""
    data, normal = Clusters(), normals(m + 10 * cluster)
    A = normal(m, 8) / math.sqrt(8)
    std = data.std * A.norm(dim=1)
    y = A @ data.mu[cluster] + far * std / math.sqrt(m)
    constraint = Linear(A, y, ACCURACY**2 * std.square().sum().item())
    found = mixture(data.weights, data.mu, data.std, A, y, constraint, LogLogit())
    return replace(found, denoiser=known("clusters"))


def beyond(share: float) -> Posterior:
    """The clusters beyond a plane, where a share of them is."""
    data = Clusters()
    a = normals(5)(8)
    a /= a.norm()
    x = data.sample(2**18, Generator().manual_seed(5))
    bound = (x @ a).quantile(1 - share)
    constraint = Inequality(lambda v: bound.to(v) - (v @ a.to(v))[:, None], tolerance=1e-10)
    sample = rejected(data.sample, lambda v: v @ a >= bound)
    mode = nearest(data.mu)
    return Posterior(known("clusters"), constraint, (8,), sample, mode, 5)


def points(m: int) -> Posterior:
    """The field with every (32 / m)-th value known, from another sample."""
    A = torch.eye(32).double()[:: 32 // m]
    (x,) = Field().sample(1, Generator().manual_seed(m))
    return observed(A, A @ x)


def average(far: float) -> Posterior:
    """The field with its mean known, `far` standard deviations from zero."""
    A = torch.full((1, 32), 1 / 32).double()
    return observed(A, far * (A @ Field().cov @ A.T).sqrt()[0])


def observed(A: Tensor, y: Tensor) -> Posterior:
    """The field given A x = y."""
    cov = Field().cov
    mean, left = conditional(torch.zeros(32).double(), cov, A, y)
    constraint = Linear(A, y, ACCURACY**2 * (A @ cov @ A.T).trace().item())
    sample = lambda n, generator: gaussians(mean, left, n, generator)  # noqa: E731
    return Posterior(known("field"), constraint, (32,), sample)


def above(far: float) -> Posterior:
    """The field with its mean above a bound, `far` standard deviations from zero."""
    data = Field()
    bound = far * math.sqrt(data.cov.mean().item())
    constraint = Inequality(lambda x: bound - x.mean(dim=1, keepdim=True), tolerance=1e-10)
    sample = rejected(data.sample, lambda x: x.mean(dim=1) >= bound, batch=2**14)
    return Posterior(known("field"), constraint, (32,), sample)


def curve(name: str, path: Curve) -> Posterior:
    """A shipped prior of Data2D under a curve."""
    prior = {"checkerboard": board, "banana": banana}[name]
    return replace(on(partial(prior, "loglogit"), path), denoiser=priors.load(name))


def right(bound: float) -> Posterior:
    """The shipped banana right of a line."""
    data = Banana()
    constraint = Inequality(lambda x: bound - x[:, :1], tolerance=1e-10)

    def sample(n: int, generator: Generator) -> Tensor:
        return data.sample(n, generator).double()

    inside = rejected(sample, lambda x: x[:, 0] >= bound)
    return Posterior(priors.load("banana"), constraint, (2,), inside, data.mode, data.modes)


def solution(make: Callable[[int, str], Posterior]) -> Posterior:
    """The flow of solutions of the heat equation under what an exact denoiser is tested on."""
    return replace(make(SIZE, "flow"), denoiser=heat())


def initial_and_mass(n: int, timing: str) -> Posterior:
    """Solutions from a given initial state, whose mass is zero at all times."""
    found = initial(n, timing)
    mass = Integral((-2,), torch.zeros(n), 1e-6 * n)
    return replace(found, constraint=Composite([found.constraint, mass]))


def _problems() -> Iterator[Problem]:
    def problem(
        name: str,
        make: Callable[[], Posterior],
        m: int,
        kind: str = "linear",
        members: int = MEMBERS,
    ) -> Problem:
        return Problem(f"learned-{name}", "learned", kind, make, m, members=members)

    for m, cluster, far in ((1, 0, 0.0), (2, 3, 1.0), (1, 4, 3.0)):
        name = f"clusters-{m}r-{far:g}std"
        yield problem(name, partial(clusters, m, cluster, far), m)
    yield problem("clusters-share0.05", partial(beyond, 0.05), 0, "inequality")
    for m in (4, 16):
        yield problem(f"field-{m}known", partial(points, m), m)
    yield problem("field-mean2.5std", partial(average, 2.5), 1)
    yield problem("field-above1.5std", partial(above, 1.5), 0, "inequality")
    for name, which, path in (
        ("circle-checkerboard", "checkerboard", circle(1.1, 0.2, -0.3)),
        ("line-checkerboard", "checkerboard", graph(lambda u: 0.7 * u - 0.2)),
        ("ellipse-banana", "banana", ellipse(1.5, 0.8, 0.4)),
    ):
        yield problem(name, partial(curve, which, path), 1, "curved")
    yield problem("banana-right0.8", partial(right, 0.8), 0, "inequality")
    n = SIZE
    for name, make, m in (
        ("initial", initial, n),
        ("initial-mass", initial_and_mass, 2 * n),
        ("value", seen_once, 1),
        ("energy", energy, 1),
    ):
        yield problem(f"heat-{name}", partial(solution, make), m, "field", SLOW)


PROBLEMS = list(_problems())
