"""Fields: stationary Gaussian ones on a periodic grid, and the solutions of a heat equation."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from numpy.polynomial.legendre import leggauss
from torch import Generator, Tensor

from feasibly.constraints import DivergenceFree, Equality, Integral, Linear, Mask
from feasibly.denoisers import Denoiser
from feasibly.schedules import Schedule

from ..tasks.heat import fields
from .exact_base import MEMBERS, Posterior, Problem, named, schedule

ACCURACY = 1e-3  # of a feasible residual, in standard deviations of the field


class Stationary(Denoiser):
    r"""The denoiser of a stationary Gaussian field of mean zero on a periodic square grid, whose
    covariance is diagonal in Fourier space.

    The spectrum is :math:`(1 + (|k| \ell)^2)^{-s}`, normalised so that each value has variance
    :math:`a^2`.
    """

    variance: Tensor

    def __init__(
        self, n: int, length: float, schedule: Schedule, smooth: float = 2.0, scale: float = 1.0
    ) -> None:
        super().__init__(schedule)
        k = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
        squares = k[:, None].square() + k.square()
        spectrum = (1 + length**2 * squares).pow(-smooth)
        self.register_buffer("variance", scale**2 * spectrum / spectrum.mean())

    def filtered(self, factor: Tensor, x: Tensor) -> Tensor:
        """Multiplies the waves of fields by a real factor."""
        return torch.fft.ifft2(factor * torch.fft.fft2(x)).real

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        v = self.variance.to(x)
        sigma = sigma.reshape(-1, *[1] * (x.ndim - 1)) if sigma.ndim else sigma
        return self.filtered(v / (v + sigma**2), x)

    def sample(self, shape: tuple[int, ...], generator: Generator) -> Tensor:
        """Samples the prior, in double precision."""
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self.filtered(self.variance.sqrt(), noise)


def matheron(
    prior: Stationary, A: Tensor, y: Tensor, shape: tuple[int, ...]
) -> Callable[[int, Generator], Tensor]:
    r"""Returns how to sample a field given A x = y, by :math:`x + C A^\top S^{-1} (y - A x)` with
    x from the prior and :math:`S = A C A^\top`."""
    C_A = prior.filtered(prior.variance, A.reshape(-1, *shape)).flatten(start_dim=1)  # (m, D)
    gain = torch.linalg.solve(A @ C_A.T, C_A)

    def sample(n: int, generator: Generator) -> Tensor:
        x = prior.sample((n, *shape), generator)
        return x + ((y - x.flatten(start_dim=1) @ A.T) @ gain).reshape(x.shape)

    return sample


def points(seed: int, n: int, length: float, share: float, timing: str, scale: float) -> Posterior:
    """A field of which a share of the values is known, from another of its samples."""
    generator = torch.Generator().manual_seed(seed)
    prior = Stationary(n, length, schedule(timing, scale), scale=scale)
    (x,) = prior.sample((1, n, n), generator)
    mask = torch.zeros(n * n, dtype=torch.bool)
    m = round(share * n * n)
    mask[torch.randperm(n * n, generator=generator)[:m]] = True
    A, y = torch.eye(n * n).double()[mask], x.flatten()[mask]
    constraint = Mask(mask.reshape(n, n), x, (ACCURACY * scale) ** 2 * m)
    return Posterior(prior, constraint, (n, n), matheron(prior, A, y, (n, n)))


def total(n: int, length: float, far: float, timing: str, scale: float) -> Posterior:
    """A field whose mean is known, `far` standard deviations from zero."""
    prior = Stationary(n, length, schedule(timing, scale), scale=scale)
    A = torch.full((1, n * n), 1 / n**2, dtype=torch.float64)
    std = math.sqrt(prior.variance[0, 0].item()) / n  # of the mean
    y = torch.tensor([far * std], dtype=torch.float64)
    constraint = Integral((-2, -1), y[0], (ACCURACY * std) ** 2)
    return Posterior(prior, constraint, (n, n), matheron(prior, A, y, (n, n)))


def waves(seed: int, n: int, length: float, most: int, timing: str, scale: float) -> Posterior:
    """A field whose longest waves are known, those of wavenumbers up to `most` in both
    directions, from another of its samples."""
    prior = Stationary(n, length, schedule(timing, scale), scale=scale)
    (x,) = prior.sample((1, n, n), torch.Generator().manual_seed(seed))
    angle = 2 * math.pi / n * torch.arange(n).double()
    rows = [torch.ones(n, n).double() / n]
    for k in range(most + 1):
        for l in range(-most, most + 1):
            if k == 0 and l <= 0:
                continue  # the other half of the plane has the same waves
            phase = k * angle[:, None] + l * angle
            rows += [math.sqrt(2) / n * f for f in (phase.cos(), phase.sin())]
    A = torch.stack(rows).flatten(start_dim=1)
    y = A @ x.flatten()
    mean_square = prior.variance.mean().item()
    constraint = Linear(A, y, ACCURACY**2 * mean_square * len(A))
    return Posterior(prior, constraint, (n, n), matheron(prior, A, y, (n, n)))


def still(n: int, length: float, timing: str, scale: float) -> Posterior:
    """A field of two components without divergence. Both have the same spectrum, so that the
    exact samples are the prior's, projected."""
    prior = Stationary(n, length, schedule(timing, scale), scale=scale)
    spacing = 2 * math.pi / n
    constraint = DivergenceFree((spacing, spacing), (ACCURACY * scale) ** 2)

    def sample(count: int, generator: Generator) -> Tensor:
        return constraint.projection(prior.sample((count, 2, n, n), generator))

    return Posterior(prior, constraint, (2, n, n), sample)


class Heat(Denoiser):
    r"""The denoiser of :math:`u(x, t) = \sin(x + \phi) e^{- \nu t}` with
    :math:`\phi \sim \mathcal{U}(0, 2 \pi)` and :math:`\nu \sim \mathcal{U}(1, 5)`.

    Samples are on a grid of n points in :math:`x \in [0, 2 \pi)`, the first axis, and n in
    :math:`t \in [0, 1]`, both ends included. Given :math:`\nu`, the posterior of :math:`\phi` is
    von Mises'. That of :math:`\nu` is integrated by Gauss and Legendre's rule over where its
    density is not negligible.
    """

    low, high = 1.0, 5.0
    waves: Tensor
    t: Tensor
    node: Tensor
    log_weight: Tensor

    def __init__(self, n: int, schedule: Schedule, nodes: int = 32) -> None:
        super().__init__(schedule)
        self.n = n
        x = 2 * math.pi / n * torch.arange(n).double()
        values, weights = map(torch.from_numpy, leggauss(nodes))
        self.register_buffer("waves", torch.stack([x.sin(), x.cos()]))
        self.register_buffer("t", torch.linspace(0, 1, n, dtype=torch.float64))
        self.register_buffer("node", values)
        self.register_buffer("log_weight", weights.log())

    def fields(self, phi: Tensor, nu: Tensor) -> Tensor:
        """Returns the solutions of some parameters, with shape (N, n, n)."""
        return fields(phi, nu, self.n)

    def phase_and_decay(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the parameters of solutions, by the first two times."""
        c = torch.einsum("kx,bxt->bkt", self.waves, u.double())
        size = c.norm(dim=1)
        nu = (size[:, 0] / size[:, 1]).log() / self.t[1]
        return torch.atan2(c[:, 1, 0], c[:, 0, 0]), nu

    def _terms(self, c: Tensor, nu: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-density of nu, the direction of the mean of (cos phi, sin phi), and decays."""
        decay = torch.exp(-nu[..., None] * self.t)  # (B, Q, n)
        ab = torch.einsum("bkt,bqt->bqk", c, decay)
        R = ab.square().sum(dim=-1).clamp_min(1e-300).sqrt()
        energy = self.n / 2 * decay.square().sum(dim=-1)
        kappa = R / variance
        scaled = torch.special.i0e(kappa)
        log_p = kappa + scaled.log() - energy / (2 * variance)
        ratio = torch.special.i1e(kappa) / scaled
        return log_p, (ratio / R)[..., None] * ab, decay

    @torch.no_grad()
    def _window(self, c: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Where the density of nu is not negligible: its ends, with shape (B, 1)."""
        low = torch.full_like(c[:, :1, 0], self.low)
        high = torch.full_like(low, self.high)
        u = torch.linspace(0, 1, 33, dtype=c.dtype, device=c.device)
        while True:
            nu = low + (high - low) * u
            log_p = self._terms(c, nu, variance)[0]
            kept = log_p >= log_p.amax(dim=1, keepdim=True) - 40
            first = kept.double().argmax(dim=1, keepdim=True)
            last = 32 - kept.flip(1).double().argmax(dim=1, keepdim=True)
            ends = (first - 1).clamp_min(0), (last + 1).clamp_max(32)
            narrow = ends[1] - ends[0] < 12
            low, high = (
                torch.where(narrow, nu.gather(1, end), old)
                for end, old in zip(ends, (low, high), strict=True)
            )
            if not narrow.any() or (high - low).max() < 1e-9:
                return low, high

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        variance = sigma.double().reshape(-1, 1) ** 2
        c = torch.einsum("kx,bxt->bkt", self.waves, x.double())
        low, high = self._window(c.detach(), variance.expand(len(c), 1))
        nu = (low + high) / 2 + (high - low) / 2 * self.node
        log_p, direction, decay = self._terms(c, nu, variance)
        w = (log_p + self.log_weight).softmax(dim=1)
        time = torch.einsum("bq,bqk,bqt->bkt", w, direction, decay)
        return torch.einsum("kx,bkt->bxt", self.waves, time).to(x.dtype)


def initial(n: int, timing: str) -> Posterior:
    """Solutions from a given initial state: the decay is as in the prior."""
    prior = Heat(n, schedule(timing))
    phi = torch.tensor([0.9], dtype=torch.float64)
    (u,) = prior.fields(phi, torch.tensor([2.0], dtype=torch.float64))
    mask = torch.zeros(n, n, dtype=torch.bool)
    mask[:, 0] = True

    def sample(count: int, generator: Generator) -> Tensor:
        nu = 1 + 4 * torch.rand(count, generator=generator, dtype=torch.float64)
        return prior.fields(phi.expand(count), nu)

    return Posterior(prior, Mask(mask, u, 1e-6), (n, n), sample)


def seen_once(n: int, timing: str) -> Posterior:
    """Solutions with one value known, at x = 0 and some later time: a curve of parameters, with
    two phases for each decay."""
    prior = Heat(n, schedule(timing))
    j, value = n // 4, 0.15
    t = prior.t[j].item()
    nu = 1 + 4 * (torch.arange(2**15).double() + 0.5) / 2**15
    sin = value * torch.exp(nu * t)
    share = (1 - sin.square()).rsqrt() * torch.exp(nu * t)  # 1 / |dr / dphi|

    def sample(count: int, generator: Generator) -> Tensor:
        which = torch.multinomial(share, count, replacement=True, generator=generator)
        other = torch.randint(2, (count,), generator=generator).bool()
        angle = sin[which].asin()
        return prior.fields(torch.where(other, math.pi - angle, angle), nu[which])

    constraint = Equality(lambda u: u[:, 0, j, None] - value, 1e-8)
    return Posterior(prior, constraint, (n, n), sample)


def energy(n: int, timing: str) -> Posterior:
    """Solutions with the mean square at one time known: the decay is given, the phase is not."""
    prior = Heat(n, schedule(timing))
    j, nu = n // 4, 2.5
    value = math.exp(-2 * nu * prior.t[j].item()) / 2

    def sample(count: int, generator: Generator) -> Tensor:
        phi = 2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64)
        return prior.fields(phi, torch.full_like(phi, nu))

    constraint = Equality(lambda u: u[:, :, j].square().mean(dim=1, keepdim=True) - value, 1e-8)
    return Posterior(prior, constraint, (n, n), sample)


LARGE = 256  # members where samples have 4096 elements


def _gaussian() -> Iterator[Problem]:
    known = (
        (16, 1.0, 0.1, "vp", 1.0),
        (16, 0.5, 0.1, "edm", 1.0),
        (16, 1.0, 0.3, "edm", 100.0),
        (16, 2.0, 0.05, "cosine", 1.0),
        (64, 0.5, 0.1, "loglogit", 1.0),
    )
    for seed, (n, length, share, timing, scale) in enumerate(known):
        name = named("field", f"{n}x{n}", f"{share:g}known", f"l{length:g}", timing, scale=scale)
        make = partial(points, seed, n, length, share, timing, scale)
        yield _field(name, n, make, round(share * n * n))
    for n, length, far, timing, scale in (
        (16, 0.5, 3.0, "vp", 1.0),
        (16, 0.0, 4.0, "rectified", 1.0),
        (64, 0.2, 3.0, "edm", 0.01),
    ):
        name = named("field", f"{n}x{n}", f"mean{far:g}std", f"l{length:g}", timing, scale=scale)
        yield _field(name, n, partial(total, n, length, far, timing, scale), 1)
    for seed, (n, length, most, timing, scale) in enumerate(
        ((16, 0.5, 1, "flow", 1.0), (16, 1.0, 2, "edm", 0.01), (64, 0.2, 2, "vp", 1.0)), start=10
    ):
        name = named("field", f"{n}x{n}", f"waves{most}", f"l{length:g}", timing, scale=scale)
        make = partial(waves, seed, n, length, most, timing, scale)
        yield _field(name, n, make, (2 * most + 1) ** 2)
    for n, length, timing, scale in ((16, 0.5, "edm", 1.0), (16, 1.0, "vp", 1.0)):
        name = named("field", f"{n}x{n}", "still", f"l{length:g}", timing, scale=scale)
        yield _field(name, n, partial(still, n, length, timing, scale), n * n)


def _field(name: str, n: int, make: Callable[[], Posterior], residuals: int) -> Problem:
    members = LARGE if n == 64 else MEMBERS
    return Problem(name, "fields", "field", make, residuals, members=members)


def _heat() -> Iterator[Problem]:
    for n, timing in ((16, "loglogit"), (16, "flow"), (32, "loglogit"), (32, "vp")):
        yield Problem(
            f"heat-{n}-initial-{timing}", "heat", "field", partial(initial, n, timing), n
        )
    for n, timing in ((16, "edm"), (32, "cosine")):
        make = partial(seen_once, n, timing)
        yield Problem(f"heat-{n}-value-{timing}", "heat", "field", make, 1)
    for n, timing in ((16, "vp"), (32, "rectified")):
        yield Problem(f"heat-{n}-energy-{timing}", "heat", "field", partial(energy, n, timing), 1)


PROBLEMS = [*_gaussian(), *_heat()]
