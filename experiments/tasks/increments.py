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
        D = steps(torch.eye(x.shape[1]).to(x)).T
        generator = torch.Generator().manual_seed(0)
        s = torch.full_like(x, of.begin)
        first, last = (FIRST, SWEEPS) if of.sweeps else (0, 1)
        means, kept = [], []
        for k in range(last):
            L = factor(D, s, precision[..., None] * torch.eye(len(D)).to(x))
            noise = torch.randn(x.shape[1], generator=generator, dtype=x.dtype)
            mean, sample = gaussian(L, x * precision, noise.expand_as(x))
            if k >= first:
                means.append(mean)
                kept.append(L)
            if of.sweeps:
                s = of.variances(steps(sample), generator, x.shape[1:])
        each = torch.stack(means)
        mean = each.mean(dim=0)
        if not both:
            return mean, None
        some = kept[:: max(1, len(kept) // KEPT)]
        covariance = sum(map(torch.cholesky_inverse, some)) / len(some)
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


def factor(D: Tensor, s: Tensor, data: Tensor) -> Tensor:
    """Returns Cholesky's factors of the precisions of signals, with shape (B, n, n).

    Arguments:
        D: The matrix of increments, with shape (n, n), of variances `s`, with shape (B, n).
        data: What data add to the precision, with shape (n, n) or (B, n, n).
    """
    return torch.linalg.cholesky(D.T @ (D / s[..., None]) + data)


def gaussian(L: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean and a sample of Gaussians, both with shape (B, n), by Cholesky's factors of
    their precisions P.

    Arguments:
        L: The factors, with shape (B, n, n).
        b: The product of P and the mean, with shape (B, n).
        noise: Standard normal numbers, with shape (B, n).
    """
    half = torch.linalg.solve_triangular(L, b[..., None], upper=False)
    both = torch.cat([half, half + noise[..., None]], dim=-1)
    mean, sample = torch.linalg.solve_triangular(L.mT, both, upper=True).unbind(dim=-1)
    return mean, sample


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
        b = (self.y @ self.A / self.noise**2).repeat_interleave(count, dim=0)
        s, means = torch.full_like(b, self.of.begin), []
        sweeps = LONG if self.of.sweeps else 1
        for k in range(sweeps):
            noise = torch.randn(*b.shape, 1, generator=generator, dtype=b.dtype)[..., 0]
            mean, x = gaussian(factor(D, s, data), b, noise)
            if k >= sweeps // 2:
                means.append(mean)
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
