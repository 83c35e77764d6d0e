r"""Signals with independent increments under linear observations with errors.

A signal is a sum of independent numbers, :math:`x_i = x_{i-1} + u_i`, each a normal whose variance
is random. Given the variances all is Gaussian. So Gibbs' sampler gives the posterior of an
observation, and the denoiser with its derivatives, as exactly as it is run for. For normal
increments nothing is random, and both are exact.

The task is that of a statistical benchmark of posterior samplers, after its paper. The code is
ours.

References:
    | A Statistical Benchmark for Diffusion Posterior Sampling Algorithms (ICLR 2026)
    | https://arxiv.org/abs/2509.12821
    | The Bayesian Lasso (Park & Casella, 2008), https://doi.org/10.1198/016214508000000337
"""

__all__ = ["INCREMENTS", "LENGTH", "Increments", "Law", "Task", "operators", "task"]

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from feasibly.denoisers import Denoiser
from feasibly.schedules import EDM, Schedule

LENGTH = 64
NOISE = 10 ** (-25 / 10)
"""The variance of errors, in units of the median power of what is observed: 25 dB."""

SWEEPS, FIRST, KEPT = 160, 32, 32
"""Gibbs sweeps of an estimate, those that are left out, and those whose covariances are taken."""

LONG = 240
"""The sweeps of each chain of the exact posterior. Half of them are left out of its mean."""


@dataclass(frozen=True)
class Law:
    """A law of increments.

    Attributes:
        variances: Samples variances given increments, in their shape.
        begin: The variances to begin with.
        increments: Samples increments, of a shape.
        log_density: The log-density of increments.
        sweeps: Whether variances are random.
    """

    variances: Callable[[Tensor, Generator], Tensor]
    begin: float
    increments: Callable[[tuple[int, ...], Generator], Tensor]
    log_density: Callable[[Tensor], Tensor]
    sweeps: bool = True


def normal(variance: float) -> Law:
    """Normal increments."""

    def increments(shape: tuple[int, ...], generator: Generator) -> Tensor:
        return math.sqrt(variance) * torch.randn(shape, generator=generator, dtype=torch.float64)

    return Law(
        lambda u, generator: torch.full_like(u, variance),
        variance,
        increments,
        lambda u: -u.square() / (2 * variance),
        sweeps=False,
    )


def laplace(b: float) -> Law:
    """Laplace's increments of scale b: variances are exponential, and given an increment one over
    them is inverse Gaussian (Park & Casella, 2008)."""

    def variances(u: Tensor, generator: Generator) -> Tensor:
        mean = 1 / (b * u.abs().clamp_min(1e-12))
        squares = torch.randn(u.shape, generator=generator, dtype=u.dtype).square()
        phi = mean * b**2 * squares
        root = mean / (1 + phi / 2 + (phi + phi.square() / 4).sqrt())
        other = torch.rand(u.shape, generator=generator, dtype=u.dtype) > mean / (mean + root)
        return 1 / torch.where(other, mean.square() / root, root)

    def increments(shape: tuple[int, ...], generator: Generator) -> Tensor:
        signs = torch.randint(2, shape, generator=generator) * 2 - 1
        return signs * exponential(shape, generator) * b

    return Law(variances, 2 * b**2, increments, lambda u: -u.abs() / b)


def exponential(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Samples the exponential distribution of mean one."""
    return -torch.log1p(-torch.rand(shape, generator=generator, dtype=torch.float64))


def student(degrees: int) -> Law:
    """Student's increments, of an odd number of degrees of freedom."""

    def gamma(half: int, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Samples a gamma distribution of a shape that is half of a whole number."""
        found = exponential((half // 2, *shape), generator).sum(dim=0)
        if half % 2:
            z = torch.randn(shape, generator=generator, dtype=torch.float64)
            found = found + z.square() / 2
        return found

    def variances(u: Tensor, generator: Generator) -> Tensor:
        return (degrees + u.square()) / 2 / gamma(degrees + 1, tuple(u.shape), generator)

    def increments(shape: tuple[int, ...], generator: Generator) -> Tensor:
        z = torch.randn(shape, generator=generator, dtype=torch.float64)
        return z * (degrees / 2 / gamma(degrees, shape, generator)).sqrt()

    return Law(
        variances,
        1.0,
        increments,
        lambda u: -(degrees + 1) / 2 * torch.log1p(u.square() / degrees),
    )


INCREMENTS: Mapping[str, Law] = {
    "normal": normal(0.25),
    "Laplace": laplace(1.0),
    "Student, 3": student(3),
}
"""The laws of the benchmark whose variance is finite, but for one with atoms."""


class Increments(Denoiser):
    """The denoiser of signals, by Gibbs' sampler. Its derivative is the covariance that it finds.

    Two calls have independent Monte Carlo errors.

    Arguments:
        law: The law of increments.
        schedule: The noise schedule.
    """

    def __init__(self, law: Law, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.law, self._generator = law, torch.Generator().manual_seed(0)

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        variance = sigma.detach().double().square().reshape(-1, 1)
        found: Tensor = Estimate.apply(x, variance, self)
        return found

    def moments(self, x: Tensor, variance: Tensor, both: bool) -> tuple[Tensor, Tensor | None]:
        """Returns the mean of x_0, and with `both` its covariance, given x = x_0 + noise.

        Arguments:
            x: The noisy signals, in double precision with shape (B, n).
            variance: The variance of the noise, with shape (1, 1) or (B, 1).
            both: Whether to return both.
        """
        law, precision = self.law, 1 / variance
        s = torch.full_like(x, law.begin)
        first, last = (FIRST, SWEEPS) if law.sweeps else (0, 1)
        means, kept = [], []
        for k in range(last):
            diagonal, beside = tridiagonal(s, precision)
            mean, sample = gaussian(diagonal, beside, x * precision, self._generator)
            if k >= first:
                means.append(mean)
                kept.append((diagonal, beside))
            if law.sweeps:
                s = law.variances(steps(sample), self._generator)
        each = torch.stack(means)
        mean = each.mean(dim=0)
        if not both:
            return mean, None
        some = kept[:: max(1, len(kept) // KEPT)]
        covariance = torch.zeros(*x.shape, x.shape[1]).to(x)
        for diagonal, beside in some:
            P = torch.diag_embed(diagonal)
            P = P + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
            covariance += torch.linalg.inv(P) / len(some)
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
    inverse = 1 / s
    following = torch.cat([inverse[:, 1:], torch.zeros_like(inverse[:, :1])], dim=1)
    return inverse + following + precision, -inverse[:, 1:]


def gaussian(
    diagonal: Tensor, beside: Tensor, b: Tensor, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Returns the mean and a sample of Gaussians, by Cholesky's factors of their precisions P.

    Arguments:
        diagonal: The diagonal of P, with shape (B, n).
        beside: What is beside it, with shape (B, n - 1).
        b: The product of P and the mean, with shape (B, n).
        generator: The source of noise.
    """
    n = b.shape[1]
    d, e, right = (v.unbind(dim=1) for v in (diagonal, beside, b))
    noise = torch.randn(b.shape, generator=generator, dtype=b.dtype).unbind(dim=1)
    root, low, half = [d[0].sqrt()], [], [right[0] / d[0].sqrt()]
    for i in range(1, n):
        low.append(e[i - 1] / root[-1])
        root.append((d[i] - low[-1].square()).sqrt())
        half.append((right[i] - low[-1] * half[-1]) / root[-1])
    mean, sample = [half[-1] / root[-1]], [(half[-1] + noise[-1]) / root[-1]]
    for i in range(n - 2, -1, -1):
        mean.append((half[i] - low[i] * mean[-1]) / root[i])
        sample.append((half[i] + noise[i] - low[i] * sample[-1]) / root[i])
    return torch.stack(mean[::-1], dim=1), torch.stack(sample[::-1], dim=1)


def operators() -> dict[str, Tensor]:
    """Returns the matrices of the observations, with shape (m, n) each."""
    eye = torch.eye(LENGTH, dtype=torch.float64)
    taps = torch.exp(-((torch.arange(13).double() - 6) ** 2) / (2 * 2**2))
    blur = torch.nn.functional.conv1d(eye[:, None], (taps / taps.sum())[None, None])[:, 0].T
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(LENGTH, generator=generator)[: LENGTH * 2 // 5].sort().values
    waves = torch.fft.rfft(eye, dim=0, norm="ortho")
    high = 5 + torch.randperm(LENGTH // 2 - 5, generator=generator)[:10].sort().values
    chosen = waves[torch.cat([torch.arange(5), high])]
    parts = torch.cat([chosen.real, chosen.imag[1:]]) * math.sqrt(2)
    return {"denoising": eye, "deconvolution": blur, "imputation": eye[some], "Fourier": parts}


@dataclass(frozen=True)
class Task:
    """Signals that were observed.

    Attributes:
        law: The law of increments.
        A: The matrix of the observation, with shape (m, n).
        noise: The standard deviation of its errors.
        truths: The signals, with shape (N, n).
        y: What was observed of them, with shape (N, m).
    """

    law: Law
    A: Tensor
    noise: float
    truths: Tensor
    y: Tensor

    def denoiser(self) -> Increments:
        """Returns the denoiser, on EDM's schedule."""
        return Increments(self.law, EDM(2e-3, 80.0))

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
        s, means = torch.full_like(b[..., 0], self.law.begin), []
        sweeps = LONG if self.law.sweeps else 1
        for k in range(sweeps):
            L = torch.linalg.cholesky(torch.einsum("ki,bk,kj->bij", D, 1 / s, D) + data)
            half = torch.linalg.solve_triangular(L, b, upper=False)
            if k >= sweeps // 2:
                means.append(torch.linalg.solve_triangular(L.mT, half, upper=True))
            half = half + torch.randn(half.shape, generator=generator, dtype=b.dtype)
            x = torch.linalg.solve_triangular(L.mT, half, upper=True)[..., 0]
            s = self.law.variances(steps(x), generator)
        shape = (len(self.y), count, n)
        return x.reshape(shape), torch.stack(means).mean(dim=0).reshape(shape).mean(dim=1)

    def log_density(self, x: Tensor) -> Tensor:
        """Returns the log-density of the posterior up to constants, of x with shape (N, M, n)."""
        misfit = (x @ self.A.T - self.y[:, None]) / self.noise
        return self.law.log_density(steps(x)).sum(dim=2) - misfit.square().sum(dim=2) / 2


def task(law: str, operator: str, signals: int, seed: int = 0) -> Task:
    """Returns signals of a law, and an observation of them."""
    generator = torch.Generator().manual_seed(seed)
    A, found = operators()[operator], INCREMENTS[law]
    truths = found.increments((signals, LENGTH), generator).cumsum(dim=1)
    values = truths @ A.T
    noise = math.sqrt(NOISE * values.square().mean(dim=1).median().item())
    errors = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    return Task(found, A, noise, truths, values + noise * errors)
