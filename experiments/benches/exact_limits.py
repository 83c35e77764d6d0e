"""What users found to be hard: each limit of the page of the default that has an exact answer.

None is held out: they say what to expect, and no policy is tuned on them.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Equality, Linear
from feasibly.oracles import Gaussian, GaussianMixture
from feasibly.schedules import EDM, Schedule

from .exact_base import (
    ACCURACY,
    Posterior,
    Problem,
    conditional,
    gaussians,
    in_tube,
    likeliest,
    normals,
    of_modes,
    process,
    schedule,
    under,
)

TUBE = 0.01  # of an exact sample's residual, in standard deviations of the value


def one(value: float) -> Tensor:
    return torch.tensor([value]).double()


def known_part(parts: int) -> Posterior:
    """A smooth process of 64 points, a half of which is known in one part or in several."""
    D = 64
    seen = (torch.arange(D) * parts // (D // 2)) % 2 == 0
    return _normal(process(6.0, 1e-4, D), torch.eye(D).double()[seen], schedule("edm"))


def nugget(lowest: float) -> Posterior:
    """A smooth process nearly fixed by 90 values, whose own noise has a standard deviation of
    1e-3, with a lowest noise level."""
    D = 128
    A = normals(3)(90, D) / math.sqrt(D)
    return _normal(process(4.0, 1e-6, D), A, EDM(lowest, 80.0))


def _normal(cov: Tensor, A: Tensor, times: Schedule) -> Posterior:
    """A normal prior, of a sample of which A x is known."""
    zero = torch.zeros(len(cov)).double()
    y = A @ gaussians(zero, cov, 1, Generator().manual_seed(1))[0]
    mean, left = conditional(zero, cov, A, y)
    size = ACCURACY**2 * (A @ cov @ A.T).trace().item()
    constraint = Linear(A, y, size)
    prior = Gaussian(zero, cov, times)
    return Posterior(prior, constraint, (len(cov),), lambda n, g: gaussians(mean, left, n, g))


def low_rank() -> Posterior:
    """Two modes of rank 5 and noise of 0.05 in 48 dimensions, with three values."""
    normal, D = normals(4), 48
    U = normal(2, D, 5) / math.sqrt(5)
    cov = U @ U.mT + 0.05**2 * torch.eye(D).double()
    mu, A = 0.5 * normal(2, D), normal(3, D) / math.sqrt(D)
    return under(one(0.5).expand(2), mu, cov, A, A @ mu.mean(dim=0), schedule("edm"))


def narrow() -> Posterior:
    """Forty narrow modes with two values."""
    normal, D, K = normals(5), 16, 40
    mu = normal(K, D)
    cov = 0.15**2 * torch.eye(D).double().expand(K, D, D)
    A = normal(2, D) / math.sqrt(D)
    return under(one(1 / K).expand(K), mu, cov, A, A @ (mu[0] + 0.05 * normal(D)), schedule("edm"))


def widths(m: int) -> Posterior:
    """Two modes of one mean and different widths, which the values make equally likely."""
    normal, D = normals(6), 30
    A, stds = normal(m, D) / math.sqrt(D), torch.tensor([0.5, 1.3]).double()
    u = torch.linalg.cholesky(A @ A.T) @ normal(m)
    square = u @ torch.linalg.solve(A @ A.T, u)
    gap = m * (stds[1] / stds[0]).log() / (square * (1 / stds[0] ** 2 - 1 / stds[1] ** 2))
    cov = stds.square()[:, None, None] * torch.eye(D).double()
    y = u * (2 * gap).sqrt()
    return under(one(0.5).expand(2), torch.zeros(2, D).double(), cov, A, y, schedule("edm"))


def thin() -> Posterior:
    """Two modes apart along a direction that is fifty times thinner than the others."""
    normal, D = normals(7), 8
    std = torch.ones(D).double()
    std[0] = 0.02
    mu = torch.zeros(2, D).double()
    mu[1, 0] = 0.12
    A = normal(2, D) / math.sqrt(D)
    cov = torch.diag(std.square()).expand(2, D, D)
    return under(torch.tensor([0.75, 0.25]).double(), mu, cov, A, A @ normal(D), schedule("edm"))


def student() -> Posterior:
    """Student's t with 4 degrees of freedom in 15 dimensions, by 48 widths, under a far value."""
    D, K = 15, 48
    share = (torch.arange(K).double() + 0.5) / K
    gamma = torch.distributions.Gamma(torch.tensor(2.0).double(), torch.tensor(2.0).double())
    grid = torch.linspace(1e-3, 12, 2**16).double()
    total = gamma.log_prob(grid).exp().cumsum(0)
    precision = grid[torch.searchsorted(total / total[-1], share)]
    cov = (1 / precision)[:, None, None] * torch.eye(D).double()
    A = normals(8)(1, D) / math.sqrt(D)
    y = 5 * (A @ A.T).sqrt()[0]
    return under(one(1 / K).expand(K), torch.zeros(K, D).double(), cov, A, y, schedule("edm"))


def sparse() -> Posterior:
    """Eight elements that are small or not, independently, under four values with errors."""
    D, rare, normal = 8, 0.3, normals(9)
    on = (torch.arange(2**D)[:, None] >> torch.arange(D)) % 2
    weights = torch.where(on == 1, rare, 1 - rare).double().prod(dim=1)
    cov = torch.diag_embed(torch.where(on == 1, 1.0, 0.05).double().square())
    A = normal(4, D) / math.sqrt(D)
    x = torch.zeros(D).double()
    x[[1, 5, 6]] = torch.tensor([1.2, -0.8, 1.0]).double()
    return under(
        weights, torch.zeros(2**D, D).double(), cov, A, A @ x, schedule("edm"), error=0.02
    )


def several(product: bool) -> Posterior:
    """Modes under an energy in the tail of the data, with a product or without."""
    K, D = (7, 4) if product else (3, 8)
    normal = normals(10 + product)
    mu, std = 1.2 * normal(K, D), 0.4
    weights = 0.5 + normal(K).abs()
    weights = weights / weights.sum()
    cov = std**2 * torch.eye(D).double().expand(K, D, D)
    prior = of_modes(weights.log(), [*zip(mu, cov, strict=True)])

    def values(x: Tensor) -> Tensor:
        told = [x.square().mean(dim=1), x[:, 0] * x[:, 1]]
        return torch.stack(told[: 1 + product], dim=1)

    found = values(prior(2**16, Generator().manual_seed(0)))
    level, scale = found.quantile(0.5 if product else 0.95, dim=0), found.std(dim=0)
    width = TUBE * (1 + 2 * product)

    constraint = Equality(
        lambda x: (values(x) - level.to(x)) / scale.to(x), ACCURACY**2 * len(level)
    )
    oracle = GaussianMixture(weights, mu, cov, schedule("edm"))
    exact = in_tube(prior, values, level, width * scale)
    return Posterior(oracle, constraint, (D,), exact, likeliest(mu, cov), K)


def funnel(square: float) -> Posterior:
    """Neal's funnel in nine dimensions as 41 modes: the logarithm of a scale is nearly standard
    normal, and given it eight elements are normal, whose sum of squares is known."""
    D, step, rest = 8, 0.2, 0.2
    tau = step * torch.arange(-20, 21).double()
    variance = (2 * tau).exp()
    mu = torch.nn.functional.pad(tau[:, None], (0, D))
    cov = torch.cat([one(rest**2).expand(41, 1), variance[:, None].expand(41, D)], dim=1)
    log_w = -tau.square() / 2
    log_p = log_w - (square / variance + D * variance.log()) / 2  # of chi-square's density

    modes = of_modes(log_p, [*zip(mu, cov.diag_embed(), strict=True)])

    def exact(n: int, generator: Generator) -> Tensor:
        x = modes(n, generator)
        x[:, 1:] = math.sqrt(square) * torch.nn.functional.normalize(x[:, 1:])
        return x

    def gap(x: Tensor) -> Tensor:
        return x[:, 1:].square().sum(dim=1) / square - 1

    oracle = GaussianMixture(log_w.softmax(dim=0), mu, cov.diag_embed(), schedule("vp"))
    return Posterior(oracle, Equality(gap, ACCURACY**2), (D + 1,), exact)


def _problems() -> Iterator[Problem]:
    for name, make, m, kind in (
        ("known-half", partial(known_part, 1), 32, "linear"),
        ("known-two-quarters", partial(known_part, 2), 32, "linear"),
        ("nugget", partial(nugget, 1e-5), 90, "linear"),
        ("nugget-below-noise", partial(nugget, 2e-3), 90, "linear"),
        ("low-rank-3r", low_rank, 3, "linear"),
        ("narrow-40k-2r", narrow, 2, "linear"),
        ("widths-14r", partial(widths, 14), 14, "linear"),
        ("widths-24r", partial(widths, 24), 24, "linear"),
        ("thin-2r", thin, 2, "linear"),
        ("student-t4-1r", student, 1, "linear"),
        ("sparse-4r-noisy", sparse, 4, "linear"),
        ("energy-in-tail", partial(several, False), 1, "curved"),
        ("energy-and-product", partial(several, True), 2, "curved"),
        ("funnel-neck", partial(funnel, 0.05), 1, "curved"),
    ):
        yield Problem(name, "limits", kind, make, m, members=1024)


PROBLEMS = [*_problems()]
