r"""Signals with independent increments under linear observations with errors.

A signal is a sum of independent numbers, :math:`x_i = x_{i-1} + u_i`. Each is a normal whose
variance is random. With known variances all is Gaussian, so Gibbs' sampler gives the posterior of
an observation, and the denoiser with its derivative. For normal increments both are exact.
Else the mean of the denoiser is off by at most 5 % of the posterior's standard deviation, and its
derivative by at most 11 %, which was measured at six noise levels.

The task is that of a statistical benchmark of posterior samplers, after its paper. The code is
ours.

References:
    | A Statistical Benchmark for Diffusion Posterior Sampling Algorithms (ICLR 2026)
    | https://arxiv.org/abs/2509.12821
    | The Bayesian Lasso (Park & Casella, 2008), https://doi.org/10.1198/016214508000000337
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from feasibly.denoisers import Denoiser
from feasibly.schedules import EDM, Schedule

Shape = tuple[int, ...]

LENGTH = 64
NOISE = 10 ** (-25 / 10)
"""The variance of errors, in units of the median power of what is observed: 25 dB."""

SWEEPS, FIRST, KEPT = 160, 32, 32
"""Gibbs sweeps of an estimate, those that are left out, and those whose covariances are taken."""

LONG = 240
"""The sweeps of each chain of the exact posterior. Half of them are left out of its mean."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of increments.

    Attributes:
        variances: Samples variances given increments, in their shape, by random numbers of a
            shape that broadcasts to it.
        increments: Samples increments, of a shape.
    """

    variances: Callable[[Tensor, Generator, Shape], Tensor]
    begin: float
    increments: Callable[[Shape, Generator], Tensor]
    log_density: Callable[[Tensor], Tensor]
    sweeps: bool = True


def normal(variance: float) -> Distribution:
    """Normal increments."""

    def increments(shape: Shape, generator: Generator) -> Tensor:
        return math.sqrt(variance) * torch.randn(shape, generator=generator, dtype=torch.float64)

    return Distribution(
        lambda u, generator, shape: torch.full_like(u, variance),
        variance,
        increments,
        lambda u: -u.square() / (2 * variance),
        sweeps=False,
    )


def laplace(b: float) -> Distribution:
    """Laplace's increments of scale b: variances are exponential, and given an increment one over
    them is inverse Gaussian (Park & Casella, 2008)."""

    def variances(u: Tensor, generator: Generator, shape: Shape) -> Tensor:
        mean = 1 / (b * u.abs().clamp_min(1e-12))
        squares = torch.randn(shape, generator=generator, dtype=u.dtype).square()
        phi = mean * b**2 * squares
        root = mean / (1 + phi / 2 + (phi + phi.square() / 4).sqrt())
        other = torch.rand(shape, generator=generator, dtype=u.dtype) > mean / (mean + root)
        return 1 / torch.where(other, mean.square() / root, root)

    def increments(shape: Shape, generator: Generator) -> Tensor:
        signs = torch.randint(2, shape, generator=generator) * 2 - 1
        return signs * exponential(shape, generator) * b

    return Distribution(variances, 2 * b**2, increments, lambda u: -u.abs() / b)


def exponential(shape: Shape, generator: Generator) -> Tensor:
    """Samples the exponential distribution of mean one."""
    return -torch.log1p(-torch.rand(shape, generator=generator, dtype=torch.float64))


def student(degrees: int) -> Distribution:
    """Student's increments."""

    def gamma(half: int, shape: Shape, generator: Generator) -> Tensor:
        """Samples a gamma distribution of a shape that is half of a whole number."""
        found = exponential((half // 2, *shape), generator).sum(dim=0)
        if half % 2:
            z = torch.randn(shape, generator=generator, dtype=torch.float64)
            found = found + z.square() / 2
        return found

    def variances(u: Tensor, generator: Generator, shape: Shape) -> Tensor:
        return (degrees + u.square()) / 2 / gamma(degrees + 1, shape, generator)

    def increments(shape: Shape, generator: Generator) -> Tensor:
        z = torch.randn(shape, generator=generator, dtype=torch.float64)
        return z * (degrees / 2 / gamma(degrees, shape, generator)).sqrt()

    return Distribution(
        variances,
        1.0,
        increments,
        lambda u: -(degrees + 1) / 2 * torch.log1p(u.square() / degrees),
    )


INCREMENTS: Mapping[str, Distribution] = {
    "normal": normal(0.25),
    "Laplace": laplace(1.0),
    "Student, 3": student(3),
}
"""The distributions of the benchmark with a finite variance, but for one with atoms."""


class Increments(Denoiser):
    """The denoiser of signals, by Gibbs' sampler. Its derivative is the covariance that it finds.

    All samples and all calls have the same random numbers, so that it is a function of a sample.
    """

    def __init__(self, of: Distribution, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.of = of

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        variance = sigma.detach().double().square().reshape(-1, 1)
        found: Tensor = Estimate.apply(x, variance, self)
        return found

    def moments(self, x: Tensor, variance: Tensor, both: bool) -> tuple[Tensor, Tensor | None]:
        """Returns the mean of x_0, and with `both` its covariance, given x = x_0 + noise.

        Arguments:
            x: The noisy signals, in double precision with shape (B, n).
            variance: The variance of the noise, with shape (1, 1) or (B, 1).
        """
        of, precision = self.of, 1 / variance
        generator = torch.Generator().manual_seed(0)
        s = torch.full_like(x, of.begin)
        first, last = (FIRST, SWEEPS) if of.sweeps else (0, 1)
        means, kept = [], []
        for k in range(last):
            diagonal, beside = tridiagonal(s, precision)
            noise = torch.randn(x.shape[1], generator=generator, dtype=x.dtype)
            mean, sample = gaussian(diagonal, beside, x * precision, noise)
            if k >= first:
                means.append(mean)
                kept.append((diagonal, beside))
            if of.sweeps:
                s = of.variances(steps(sample), generator, x.shape[1:])
        each = torch.stack(means)
        mean = each.mean(dim=0)
        if not both:
            return mean, None
        some = kept[:: max(1, len(kept) // KEPT)]
        covariance = torch.zeros(*x.shape, x.shape[1]).to(x)
        for diagonal, beside in some:
            covariance += inverse(diagonal, beside) / len(some)
        off = each - mean
        return mean, covariance + torch.einsum("kbi,kbj->bij", off, off) / len(each)


class Estimate(torch.autograd.Function):
    """The mean of a posterior, whose derivative is its covariance over the noise's variance."""

    @staticmethod
    def forward(ctx, x: Tensor, variance: Tensor, denoiser: Increments) -> Tensor:  # noqa: ANN001
        mean, covariance = denoiser.moments(x.double(), variance, ctx.needs_input_grad[0])
        ctx.covariance, ctx.variance = covariance, variance
        return mean.to(x.dtype)

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN001
        (v,) = grad_outputs
        product = torch.einsum("bij,bj->bi", ctx.covariance, v.double()) / ctx.variance
        return product.to(v.dtype), None, None


def steps(x: Tensor) -> Tensor:
    """Returns the increments of signals, in their shape."""
    return x.diff(dim=-1, prepend=torch.zeros_like(x[..., :1]))


def tridiagonal(s: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the diagonal of the precision of signals, and what is beside it. Increments have
    variances s, and each value has an error of a precision."""
    own = 1 / s
    following = torch.cat([own[:, 1:], torch.zeros_like(own[:, :1])], dim=1)
    return own + following + precision, -own[:, 1:]


def inverse(diagonal: Tensor, beside: Tensor) -> Tensor:
    """Returns the inverses of tridiagonal matrices, with shape (B, n, n).

    A matrix is the precision of a Markov chain. A value given the next is that times a factor,
    and noise. The factors are positive, since what is beside the diagonal is negative.

    Arguments:
        diagonal: The diagonal, with shape (B, n).
        beside: What is beside it, negative, with shape (B, n - 1).
    """
    d, e = diagonal.unbind(dim=1), beside.unbind(dim=1)
    pivots = [d[0]]
    for i, low in enumerate(e):
        pivots.append(d[i + 1] - low.square() / pivots[i])
    factors = [-low / pivot for low, pivot in zip(e, pivots[:-1], strict=True)]
    variances = [1 / pivots[-1]]
    for factor, pivot in zip(factors[::-1], pivots[-2::-1], strict=True):
        variances.append(1 / pivot + factor.square() * variances[-1])
    logs = torch.stack([torch.zeros_like(d[0]), *(v.log() for v in factors)], dim=1).cumsum(dim=1)
    along = -(logs[:, :, None] - logs[:, None]).abs()
    variance = torch.stack(variances[::-1], dim=1)
    n = torch.arange(diagonal.shape[1], device=diagonal.device)
    return along.exp() * variance[:, torch.maximum(n[:, None], n)]


def gaussian(diagonal: Tensor, beside: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean and a sample of Gaussians, both with shape (B, n), by Cholesky's factors of
    their precisions P.

    Arguments:
        diagonal: The diagonal of P, with shape (B, n).
        beside: What is beside it, with shape (B, n - 1).
        b: The product of P and the mean, with shape (B, n).
        noise: Standard normal numbers, with shape (n) or (B, n).
    """
    n = b.shape[1]
    d, e, right, z = (v.unbind(dim=1) for v in (diagonal, beside, b, noise.expand_as(b)))
    root, low, half = [d[0].sqrt()], [], [right[0] / d[0].sqrt()]
    for i in range(1, n):
        low.append(e[i - 1] / root[-1])
        root.append((d[i] - low[-1].square()).sqrt())
        half.append((right[i] - low[-1] * half[-1]) / root[-1])
    mean, sample = [half[-1] / root[-1]], [(half[-1] + z[-1]) / root[-1]]
    for i in range(n - 2, -1, -1):
        mean.append((half[i] - low[i] * mean[-1]) / root[i])
        sample.append((half[i] + z[i] - low[i] * sample[-1]) / root[i])
    return torch.stack(mean[::-1], dim=1), torch.stack(sample[::-1], dim=1)


def operators() -> dict[str, Tensor]:
    """Returns the matrices of the observations, with shape (m, n) each. The rows of Fourier's are
    orthonormal: the lowest five coefficients and ten higher ones."""
    eye = torch.eye(LENGTH, dtype=torch.float64)
    taps = torch.exp(-((torch.arange(13).double() - 6) ** 2) / (2 * 2**2))
    blur = torch.nn.functional.conv1d(eye[:, None], (taps / taps.sum())[None, None])[:, 0].T
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(LENGTH, generator=generator)[: LENGTH * 2 // 5].sort().values
    waves = torch.fft.rfft(eye, dim=0, norm="ortho")
    high = 5 + torch.randperm(LENGTH // 2 - 5, generator=generator)[:10].sort().values
    chosen = waves[torch.cat([torch.arange(5), high])]
    waved = math.sqrt(2) * chosen[1:]
    parts = torch.cat([chosen[:1].real, waved.real, waved.imag])
    return {"denoising": eye, "deconvolution": blur, "imputation": eye[some], "Fourier": parts}


@dataclass(frozen=True)
class Task:
    """Signals that were observed.

    Attributes:
        A: The matrix of the observation, with shape (m, n).
        truths: The signals, with shape (N, n).
        y: What was observed of them, with shape (N, m).
    """

    of: Distribution
    A: Tensor
    noise: float
    truths: Tensor
    y: Tensor

    def denoiser(self) -> Increments:
        """Returns the denoiser, on EDM's schedule up to five times the scale of the signals."""
        return Increments(self.of, EDM(2e-3, 400.0))

    def posterior(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Samples the posterior of each signal, by one chain for each sample.

        Returns:
            The samples, with shape (N, count, n), and the mean, with shape (N, n), of conditional
            means of all chains and later sweeps.
        """
        n = self.truths.shape[1]
        D = steps(torch.eye(n).double()).T
        data = self.A.T @ self.A / self.noise**2
        b = (self.y @ self.A / self.noise**2).repeat_interleave(count, dim=0)[..., None]
        s, means = torch.full_like(b[..., 0], self.of.begin), []
        sweeps = LONG if self.of.sweeps else 1
        for k in range(sweeps):
            L = torch.linalg.cholesky(torch.einsum("ki,bk,kj->bij", D, 1 / s, D) + data)
            half = torch.linalg.solve_triangular(L, b, upper=False)
            if k >= sweeps // 2:
                means.append(torch.linalg.solve_triangular(L.mT, half, upper=True))
            half = half + torch.randn(half.shape, generator=generator, dtype=b.dtype)
            x = torch.linalg.solve_triangular(L.mT, half, upper=True)[..., 0]
            s = self.of.variances(steps(x), generator, tuple(x.shape))
        shape = (len(self.y), count, n)
        return x.reshape(shape), torch.stack(means).mean(dim=0).reshape(shape).mean(dim=1)

    def log_density(self, x: Tensor) -> Tensor:
        """Returns the log-density of the posterior up to constants, with shape (N, M), of x with
        shape (N, M, n)."""
        misfit = (x @ self.A.T - self.y[:, None]) / self.noise
        return self.of.log_density(steps(x)).sum(dim=2) - misfit.square().sum(dim=2) / 2


def task(name: str, operator: str, signals: int, seed: int = 0) -> Task:
    """Returns signals, and an observation of them."""
    generator = torch.Generator().manual_seed(seed)
    A, found = operators()[operator], INCREMENTS[name]
    truths = found.increments((signals, LENGTH), generator).cumsum(dim=1)
    values = truths @ A.T
    noise = math.sqrt(NOISE * values.square().mean(dim=1).median().item())
    errors = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    return Task(found, A, noise, truths, values + noise * errors)
