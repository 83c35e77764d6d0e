"""Many values: modes, branches, curved values of one branch, and values beside bounds.

Problems are drawn by a seed. Those of odd seeds are held out.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Composite, Equality, Inequality, Linear
from feasibly.oracles import Gaussian, GaussianMixture

from .exact_base import (
    ACCURACY,
    Posterior,
    Problem,
    conditional,
    gaussians,
    normals,
    schedule,
    smooth,
    under,
)
from .exact_branches import chain

TIMINGS = ("edm", "vp", "loglogit", "cosine")
POINTS = 2048  # of the grid along a hyperbola
CALIBRATION = 2**16  # samples that tell where a bound is


def mixture(seed: int, K: int, m: int, between: bool, own: bool, timing: str) -> Posterior:
    """Normal modes in 64 dimensions under linear values, which are those of a sample of one mode,
    or lie between two modes."""
    D = 64
    normal = normals(seed)
    weights = 0.5 + torch.rand(K, generator=Generator().manual_seed(seed)).double()
    weights = weights / weights.sum()
    mu = 0.6 * normal(K, D)
    cov = 0.25 * torch.eye(D).double().expand(K, D, D)
    if own:  # each mode has its own length
        cov = smooth(0.5 + normal(K).abs(), D)
    A = normal(m, D) / math.sqrt(D)
    S = A @ cov @ A.T
    around = A @ gaussians(mu[0], cov[0], 1, Generator().manual_seed(seed))[0]

    def told(share: float) -> tuple[Tensor, Tensor]:
        """Values so far from the first mode towards the second, and log-weights of modes."""
        y = around + share * A @ (mu[1] - mu[0])
        gap = y - mu @ A.T
        log_w = weights.log() - (torch.linalg.solve(S, gap) * gap).sum(dim=1) / 2
        return y, log_w - torch.logdet(S) / 2

    low, high = 0.0, 2.0 if between else 0.0
    for _ in range(50):  # to where the first mode has three fifths of what both have
        share = (low + high) / 2
        log_w = told(share)[1]
        low, high = (share, high) if log_w[0] - log_w[1] > math.log(1.5) else (low, share)
    y, _ = told((low + high) / 2)
    return under(weights, mu, cov, A, y, schedule(timing))


def moduli(seed: int, m: int, timing: str) -> Posterior:
    """A stationary normal signal with a mean, of which moduli of Fourier coefficients are known.

    The coefficients are independent. Given its modulus, the phase of one has a von Mises
    distribution.
    """
    D = 2 * m + 8
    spectrum = torch.cat([torch.ones(1).double(), (-torch.arange(D // 2).double() / m).exp()])
    power = torch.cat([spectrum, spectrum[1:-1].flip(0)])
    F = torch.fft.fft(torch.eye(D).double(), norm="ortho")
    cov = (F.conj().T @ torch.diag(power).to(F) @ F).real
    mu = gaussians(torch.zeros(D).double(), cov, 1, Generator().manual_seed(seed))[0]
    k = torch.arange(1, m + 1)
    truth = mu + gaussians(torch.zeros(D).double(), cov, 1, Generator().manual_seed(seed + 1))[0]

    def moduli_of(x: Tensor) -> Tensor:
        return torch.fft.fft(x, norm="ortho")[:, k].abs().square()

    known = moduli_of(truth[None])[0]
    mean = torch.fft.fft(mu, norm="ortho")[k]
    kappa = 2 * known.sqrt() * mean.abs() / power[k]

    def sample(n: int, generator: Generator) -> Tensor:
        x = torch.fft.fft(mu + gaussians(torch.zeros(D).double(), cov, n, generator), norm="ortho")
        phase = von_mises(kappa, n, generator) + mean.angle()
        z = torch.polar(known.sqrt().expand(n, -1), phase)
        x[:, k], x[:, D - k] = z, z.conj()
        return torch.fft.ifft(x, norm="ortho").real

    constraint = Equality(
        lambda x: moduli_of(x) - known.to(x), (ACCURACY * known.mean().item()) ** 2 * m
    )
    return Posterior(Gaussian(mu, cov, schedule(timing)), constraint, (D,), sample)


def von_mises(kappa: Tensor, n: int, generator: Generator) -> Tensor:
    """Samples angles with densities proportional to exp(kappa cos), by quadrature, with shape
    (n, m)."""
    angles = (torch.arange(2**12).double() + 0.5) / 2**11 * math.pi - math.pi
    share = (kappa[:, None] * angles.cos()).softmax(dim=1)
    which = torch.multinomial(share, n, replacement=True, generator=generator).T
    jitter = torch.rand(which.shape, generator=generator, dtype=torch.float64) - 0.5
    return angles[which] + jitter * math.pi / 2**11


def pairs_of(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    return x[:, 0 : 2 * m : 2], x[:, 1 : 2 * m : 2]


def neighbours(seed: int, m: int, correlation: float, timing: str) -> Posterior:
    """A Markov chain of normals of which the products of neighbours are known.

    A pair lies on a hyperbola. Along it, forward filtering and backward sampling on a grid in
    the logarithm of its first value give the exact distribution.
    """
    D = 2 * m + 2
    i = torch.arange(D)
    cov = correlation ** (i[:, None] - i).abs().double()
    truth = gaussians(torch.zeros(D).double(), cov, 1, Generator().manual_seed(seed))
    known = torch.mul(*pairs_of(truth, m))[0]
    # the tube's density along the hyperbola is uniform in u = log |x|
    lowest = min(1e-3, known.abs().min().item() / 6)
    u = torch.linspace(math.log(lowest), math.log(6), POINTS // 2).double()
    first = torch.cat([u.exp(), -u.exp()])
    spread = 1 - correlation**2
    second = known[:, None] / first
    inside = -(second - correlation * first).square() / (2 * spread)
    log_p = [inside[0] - first.square() / 2]
    for k in range(1, m):
        step = -(first[None] - correlation * second[k - 1][:, None]).square() / (2 * spread)
        log_p.append(inside[k] + (log_p[-1][:, None] + step).logsumexp(dim=0))

    zero, seen = torch.zeros(D).double(), torch.arange(2 * m)
    A = torch.eye(D).double()[seen]
    gain = cov @ A.T @ torch.linalg.inv(A @ cov @ A.T)
    _, rest = conditional(zero, cov, A, zero[seen])

    def sample(n: int, generator: Generator) -> Tensor:
        now, found = log_p[-1].expand(n, -1), torch.empty(n, 2 * m).double()
        for k in range(m - 1, -1, -1):
            which = torch.multinomial(now.softmax(dim=1), 1, generator=generator)[:, 0]
            shift = (torch.rand(n, generator=generator, dtype=torch.float64) - 0.5) * (u[1] - u[0])
            found[:, 2 * k] = first[which] * shift.exp()
            found[:, 2 * k + 1] = known[k] / found[:, 2 * k]
            if k:
                gap = found[:, 2 * k, None] - correlation * second[k - 1]
                now = log_p[k - 1] - gap.square() / (2 * spread)
        x = found @ gain.T + gaussians(zero, rest, n, generator)
        x[:, seen] = found
        return x

    constraint = Equality(lambda x: torch.mul(*pairs_of(x, m)) - known.to(x), ACCURACY**2 * m)
    return Posterior(Gaussian(zero, cov, schedule(timing)), constraint, (D,), sample)


def energies(seed: int, m: int, timing: str) -> Posterior:
    """Two normal modes of which the energies of pairs of values are known. Given the mode, the
    angle of a pair has a von Mises distribution."""
    D = 2 * m
    normal = normals(seed)
    mu, std = 0.4 * normal(2, D), 0.6
    weights = torch.tensor([0.4, 0.6]).double()
    truth = mu[:1] + std * normal(1, D)

    def energy(x: Tensor) -> Tensor:
        first, second = pairs_of(x, m)
        return (first.square() + second.square()) / 2

    known = energy(truth)[0]
    radius = (2 * known).sqrt()
    a, b = pairs_of(mu, m)
    kappa, towards = radius * torch.hypot(a, b) / std**2, torch.atan2(b, a)
    log_w = weights.log() - mu.square().sum(dim=1) / (2 * std**2)
    log_w = log_w + (torch.special.i0e(kappa).log() + kappa).sum(dim=1)

    def sample(n: int, generator: Generator) -> Tensor:
        which = torch.multinomial(log_w.softmax(dim=0), n, replacement=True, generator=generator)
        angle = torch.stack([von_mises(one, n, generator) for one in kappa]) + towards[:, None]
        angle = angle[which, torch.arange(n)]
        x = torch.empty(n, D).double()
        x[:, 0::2], x[:, 1::2] = radius * angle.cos(), radius * angle.sin()
        return x

    def mode(x: Tensor) -> Tensor:
        return (x.double()[:, None] - mu).square().sum(dim=2).argmin(dim=1)

    constraint = Equality(
        lambda x: energy(x) - known.to(x),
        (ACCURACY * known.mean().item()) ** 2 * m,
    )
    prior = GaussianMixture(weights, mu, std**2 * torch.eye(D).expand(2, D, D), schedule(timing))
    return Posterior(prior, constraint, (D,), sample, mode, 2)


def bounded(seed: int, m: int, share: float, timing: str) -> Posterior:
    """A correlated normal under m linear values and lower bounds on eight combinations, which a
    share of the samples with these values meets."""
    D = 32
    normal = normals(seed)
    U = torch.linalg.qr(normal(D, D)).Q
    cov = (U * torch.logspace(0, -1, D, dtype=torch.float64)) @ U.T
    zero, A, B = torch.zeros(D).double(), normal(m, D) / math.sqrt(D), normal(8, D)
    B = B / B.norm(dim=1, keepdim=True)
    y = A @ gaussians(zero, cov, 1, Generator().manual_seed(seed))[0]
    mean, left = conditional(zero, cov, A, y)
    x = gaussians(mean, left, CALIBRATION, Generator().manual_seed(seed + 1))
    std = (B @ left @ B.T).diagonal().sqrt()
    depth = ((x @ B.T - B @ mean) / std).amin(dim=1)
    bound = B @ mean + depth.quantile(1 - share) * std

    def above(x: Tensor) -> Tensor:
        return (x @ B.to(x).T - bound.to(x)) / std.to(x)

    def sample(n: int, generator: Generator) -> Tensor:
        found: list[Tensor] = []
        while sum(map(len, found)) < n:
            x = gaussians(mean, left, CALIBRATION, generator)
            found.append(x[(above(x) >= 0).all(dim=1)])
        return torch.cat(found)[:n]

    size = ACCURACY**2 * (A @ cov @ A.T).trace().item()
    constraint = Composite([Linear(A, y, size), Inequality(lambda x: -above(x), 1e-12)])
    boundary = lambda x: above(x.double()).amin(dim=1).clamp_min(0)  # noqa: E731
    prior = Gaussian(zero, cov, schedule(timing))
    return Posterior(prior, constraint, (D,), sample, boundary=boundary)


def _problems() -> Iterator[tuple[int, str, str, Callable[..., Posterior], int]]:
    """Yields a seed, a family, a name, what makes it, and the number of values."""
    seed = 0
    for between in (False, True):
        for m, K, own in ((24, 4, True), (40, 3, False), (60, 2, True)):
            for _ in range(2):
                where = "between" if between else "typical"
                name = f"mixture-{m}r-{where}-{seed % 2}"
                make = partial(mixture, 100 + seed, K, m, between, own)
                yield seed, f"many, {where}", name, make, m
                seed += 1
    for name, make, m in (
        ("moduli-16r", partial(moduli, m=16), 16),
        ("moduli-40r", partial(moduli, m=40), 40),
        ("products-15r", partial(neighbours, m=15, correlation=0.9), 15),
        ("products-30r", partial(neighbours, m=30, correlation=0.5), 30),
        ("energies-15r", partial(energies, m=15), 15),
        ("energies-32r", partial(energies, m=32), 32),
        ("sines-8r", partial(chain, kind="sine", correlation=0.8, size=10, left_out=5), 8),
        ("sines-40r", partial(chain, kind="sine", correlation=0.7), 40),
    ):
        for _ in range(2):
            yield seed, "many, branches", f"{name}-{seed % 2}", partial(make, 100 + seed), m
            seed += 1
    for name, kind, size in (
        ("exponentials", "exponential", 20),
        ("cubics", "cubic", 40),
        ("softplus", "softplus", 60),
    ):
        for _ in range(2):
            m = size - size // 6
            make = partial(chain, 100 + seed, kind=kind, correlation=0.8, size=size)
            yield seed, "many, monotone", f"{name}-{m}r-{seed % 2}", make, m
            seed += 1
    for m, share in ((10, 0.05), (15, 0.02), (20, 0.005)):
        for _ in range(2):
            make = partial(bounded, 100 + seed, m, share)
            yield seed, "many, bounds", f"bounds-{m}r-{share:g}-{seed % 2}", make, m
            seed += 1


PROBLEMS = [
    Problem(
        name,
        family,
        "mixed" if "bounds" in family else "linear" if "mixture" in name else "curved",
        partial(make, timing=TIMINGS[(seed // 2) % len(TIMINGS)]),
        m,
        members=512,
    )
    for seed, family, name, make, m in _problems()
]

ASIDE = frozenset(problem.name for problem in PROBLEMS if problem.name.endswith("-1"))
"""The held-out half."""
