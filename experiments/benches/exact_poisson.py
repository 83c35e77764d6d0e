"""Poisson's equation on a square: source and solution unknown, each equation a constraint.

They are not among the problems of the study `defaults`; see the study `equations`.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from feasibly.constraints import Composite, Constraint, Equality, Linear, Observation
from feasibly.denoisers import Denoiser
from feasibly.schedules import Schedule

from .exact_base import Posterior, Problem, conditional, gaussians, schedule

POINTS = 20  # where the solution is known
ACCURACY = 1e-3  # of a feasible residual, in standard deviations of the source
NOISE = {"noise": (0.1, 0.05), "little noise": (0.01, 0.005), "noisy points": (0.0, 0.05)}
"""The errors of equation and points, in standard deviations of the source and of the solution."""
LENGTH, SMOOTH = 0.3, 2.0  # of the source's spectrum


class Poisson(Denoiser):
    r"""The denoiser of Gaussian fields u and f on n x n points within a square, both zero on its
    edge, in units of their standard deviations.

    The discrete equation is :math:`- \Delta_h u = f`. Sines diagonalise it, and both covariances.
    """

    sines: Tensor
    values: Tensor
    vectors: Tensor

    def __init__(self, n: int, schedule: Schedule, solved: bool) -> None:
        super().__init__(schedule)
        i, self.n, self.h = torch.arange(1, n + 1).double(), n, 1 / (n + 1)
        self.register_buffer(
            "sines", math.sqrt(2 * self.h) * (math.pi * self.h * i[:, None] * i).sin()
        )
        line = 4 / self.h**2 * (math.pi * self.h * i / 2).sin().square()
        self.eigen = line[:, None] + line  # of the negative Laplacian
        spectrum = (1 + LENGTH**2 * (i[:, None].square() + i.square())).pow(-SMOOTH)
        self.of_f = spectrum / spectrum.mean()
        self.of_u = self.of_f / self.eigen.square()
        self.unit = self.of_u.mean().sqrt().item()
        self.given = self.of_u if solved else self.of_u / 2  # of u, if the equation holds
        cross = self.of_f / self.eigen / self.unit * solved
        rows = (self.of_u / self.unit**2, cross), (cross, self.of_f)
        C = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
        values, vectors = torch.linalg.eigh(C)
        self.register_buffer("values", values.clamp_min(0))
        self.register_buffer("vectors", vectors)

    def waves(self, x: Tensor) -> Tensor:
        """Returns the coefficients of sines, or the fields of coefficients."""
        return self.sines @ x @ self.sines

    def filtered(self, factor: Tensor, x: Tensor) -> Tensor:
        """Multiplies the principal components of each pair of waves, with shape (B, 2, n, n)."""
        z = torch.einsum("ijkl,bkij->bijl", self.vectors, self.waves(x.double()))
        z = torch.einsum("ijkl,bijl->bkij", self.vectors, factor * z)
        return self.waves(z)

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma.double().reshape(-1, 1, 1, 1)
        return self.filtered(self.values / (self.values + sigma**2), x).to(x.dtype)

    def sample(self, count: int, generator: Generator) -> Tensor:
        """Samples the prior, in double precision."""
        noise = torch.randn(count, 2, self.n, self.n, generator=generator, dtype=torch.float64)
        return self.filtered(self.values.sqrt(), noise)

    def equation(self, x: Tensor) -> Tensor:
        """Returns the equation's residual, with shape (B, n * n)."""
        u, f = pad(self.unit * x[:, 0], (1, 1, 1, 1)), x[:, 1]
        around = u[:, 2:, 1:-1] + u[:, :-2, 1:-1] + u[:, 1:-1, 2:] + u[:, 1:-1, :-2]
        return ((around - 4 * u[:, 1:-1, 1:-1]) / self.h**2 + f).flatten(start_dim=1)

    def solutions(self, where: Tensor, y: Tensor, count: int, generator: Generator) -> Tensor:
        """Samples what solves the equation, with u = y at some points."""
        noise = torch.randn(count, self.n, self.n, generator=generator, dtype=torch.float64)
        u = self.waves(self.given.sqrt() * noise)
        unit = torch.eye(self.n**2).double()[where].reshape(-1, self.n, self.n)
        C = self.waves(self.given * self.waves(unit)).flatten(start_dim=1)
        gap = y - u.flatten(start_dim=1)[:, where]
        u = u + (gap @ torch.linalg.solve(C[:, where], C)).reshape(u.shape)
        return torch.stack([u / self.unit, self.waves(self.eigen * self.waves(u))], dim=1)


def poisson(n: int, solved: bool, timing: str, form: str) -> Posterior:
    """The equation at all points, and the solution at some, as a user may write them."""
    generator = Generator().manual_seed(0)
    prior = Poisson(n, schedule(timing), solved)
    where = torch.randperm(n * n, generator=generator)[:POINTS]
    zero = torch.zeros(POINTS).double()
    truth = prior.solutions(where[:0], zero[:0], 1, generator)
    tolerance = ACCURACY**2 * n * n

    def seen(x: Tensor) -> Tensor:
        return prior.unit * x[:, 0].flatten(start_dim=1)[:, where]

    y = seen(truth)[0]
    sample: Callable[[int, Generator], Tensor] = partial(prior.solutions, where, y)
    both = lambda x: torch.cat([prior.equation(x), seen(x) - y.to(x)], dim=1)  # noqa: E731
    if form == "one":
        constraint = Equality(both, tolerance)
    elif form == "two":
        small = ACCURACY**2 * POINTS * prior.unit**2
        constraint = Composite([Equality(prior.equation, tolerance), Observation(seen, y, small)])
    else:
        unit = torch.eye(2 * n * n).double().reshape(-1, 2, n, n)
        A, b = both(unit) - both(0 * unit[:1]), -both(0 * unit[:1])[0]
        A = A.T
        constraint = Linear(A, b, tolerance)
        if form in NOISE:
            std = NOISE[form][0], prior.unit * NOISE[form][1]
            noise = torch.cat([std[0] * torch.ones(n * n), std[1] * torch.ones(POINTS)])
            error = noise * torch.randn(len(noise), generator=generator)
            y = y + error[-POINTS:]
            equation: Constraint = Equality(prior.equation, tolerance)
            if std[0]:
                equation = Observation(prior.equation, torch.zeros(n * n), noise=std[0])
            constraint = Composite([equation, Observation(seen, y, noise=std[1])])
            C = prior.filtered(prior.values, unit).flatten(start_dim=1)
            R, zero = noise.double().square().diag(), torch.zeros(len(C)).double()
            mean, cov = conditional(zero, C, A, torch.cat([b[:-POINTS], y]), R)
            sample = lambda k, g: gaussians(mean, cov, k, g).reshape(-1, 2, n, n)  # noqa: E731
    return Posterior(prior, constraint, (2, n, n), sample)


def problem(n: int, solved: bool, timing: str, form: str) -> Problem:
    """Returns one of the problems: the size, whether the data solve the equation, the schedule,
    and how the constraint is written."""
    name = f"{n} x {n}, {'solved' if solved else 'coupled'}, {timing}, {form}"
    make = partial(poisson, n, solved, timing, form)
    return Problem(name, "Poisson", "field", make, n * n + POINTS)
