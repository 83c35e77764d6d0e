"""Eight tasks of the benchmark of simulation-based inference, sbibm.

Each has parameters theta with a prior, and a simulator that samples data x. Ten observations have
10,000 reference samples of theta given x. These come with the package `sbibm`, of which the files
alone are read: `pip install --no-deps sbibm` (MIT licence). The simulators are ours, after the
paper's appendix.

A state is theta and x, in coordinates that suit a denoiser: lognormal parameters and the data of
Lotka-Volterra by their logarithms, and parameters that are uniform on a box by a normal's
quantiles. Those of two moons and of the Gaussian mixture stay as they are, since the mixture's
small scale would be distorted; posteriors that reach a side are less accurate then. Counts are
spread over unit intervals, so that they have a density; conditioned on the middle of an interval,
theta has the distribution that it has given the count.

References:
    | Benchmarking Simulation-Based Inference (Lueckmann et al., 2021)
    | https://arxiv.org/abs/2101.04653
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Generator, Tensor

from ..peers import data_of

POOL = 2**20
"""The simulations that a prior is trained on."""


def uniform(n: int, D: int, generator: Generator) -> Tensor:
    return 2 * torch.rand(n, D, generator=generator) - 1


def normal(n: int, D: int, generator: Generator) -> Tensor:
    return torch.randn(n, D, generator=generator)


def same(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True)
class Task:
    """A simulator with a prior.

    Attributes:
        name: Its name in the benchmark.
        parameters: How many parameters it has.
        data: How many data.
        prior: Samples coordinates of theta: `(n, D, generator) -> z`, with shape (n, D).
        simulate: Samples coordinates of x given theta: `(theta, generator) -> x`.
        theta: Maps coordinates to parameters.
        x: Maps data of the benchmark to coordinates.
        published: The C2ST of CBG, for the tasks that it has.
    """

    name: str
    parameters: int
    data: int
    prior: Callable[[int, int, Generator], Tensor]
    simulate: Callable[[Tensor, Generator], Tensor]
    theta: Callable[[Tensor], Tensor] = same
    x: Callable[[Tensor], Tensor] = same
    published: float | None = None

    @property
    def dim(self) -> int:
        return self.parameters + self.data

    def sample(self, n: int, generator: Generator) -> Tensor:
        """Samples states in their coordinates, with shape (n, dim)."""
        z = self.prior(n, self.parameters, generator)
        return torch.cat([z, self.simulate(self.theta(z), generator)], dim=1)

    def pool(self) -> Tensor:
        """Returns the training data, standardized, with shape (POOL, dim)."""
        mean, std = _standard(self.name)
        return (self.sample(POOL, Generator().manual_seed(0)) - mean) / std

    def observation(self, number: int) -> Tensor:
        """Returns the standardized coordinates of x_o, with shape (data)."""
        mean, std = _standard(self.name)
        x = self.x(self._read(number, "observation.csv"))[0]
        return (x - mean[self.parameters :]) / std[self.parameters :]

    def reference(self, number: int) -> Tensor:
        """Returns the reference samples of theta, with shape (10000, parameters)."""
        return self._read(number, "reference_posterior_samples.csv.bz2")

    def parameters_of(self, state: Tensor) -> Tensor:
        """Returns the parameters theta of standardized states, with shape (n, parameters)."""
        mean, std = _standard(self.name)
        D = self.parameters
        return self.theta(state[:, :D] * std[:D] + mean[:D])

    def _read(self, number: int, file: str) -> Tensor:
        path = (
            data_of("sbibm") / "tasks" / self.name / "files" / f"num_observation_{number}" / file
        )
        values = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)  # opens bz2 too
        return torch.from_numpy(values).float()


@lru_cache
def _standard(name: str) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of a task's states, of other simulations."""
    state = TASKS[name].sample(2**14, Generator().manual_seed(1))
    return state.mean(dim=0), state.std(dim=0)


def two_moons(theta: Tensor, generator: Generator) -> Tensor:
    n = len(theta)
    angle = math.pi / 2 * uniform(n, 1, generator)
    radius = 0.1 + 0.01 * normal(n, 1, generator)
    first, second = theta.unbind(1)
    shift = torch.stack([-(first + second).abs(), second - first], dim=1) / math.sqrt(2)
    crescent = torch.cat([radius * angle.cos() + 0.25, radius * angle.sin()], dim=1)
    return crescent + shift


def gaussian_mixture(theta: Tensor, generator: Generator) -> Tensor:
    wide = torch.rand(len(theta), 1, generator=generator) < 0.5
    return theta + torch.where(wide, 1.0, 0.1) * normal(*theta.shape, generator)


def gaussian_linear(theta: Tensor, generator: Generator) -> Tensor:
    return theta + math.sqrt(0.1) * normal(*theta.shape, generator)


def slcp(theta: Tensor, generator: Generator) -> Tensor:
    """Four points in the plane, from one normal distribution."""
    first, second = theta[:, 2:3].square(), theta[:, 3:4].square()
    rho = theta[:, 4:5].tanh()
    u, v = normal(len(theta), 8, generator).chunk(2, dim=1)
    x = theta[:, 0:1] + first * u
    y = theta[:, 1:2] + second * (rho * u + (1 - rho.square()).sqrt() * v)
    return squeezed(torch.stack([x, y], dim=2).flatten(start_dim=1))


def squeezed(x: Tensor) -> Tensor:
    """The points of SLCP have heavy tails: the scale is a square of up to 9."""
    return torch.asinh(x)


def bernoulli_glm(theta: Tensor, generator: Generator) -> Tensor:
    """A hundred spikes of a linear model, by their sufficient statistics, of which the first is
    their number."""
    X = design()
    spikes = torch.rand(len(theta), len(X), generator=generator) < (theta @ X.T).sigmoid()
    x = spikes.float() @ X
    x[:, 0] += uniform(len(x), 1, generator)[:, 0] / 2
    return x


@lru_cache(maxsize=1)
def design() -> Tensor:
    """A one, and the stimulus at the last nine times, with shape (100, 10)."""
    stimulus = np.random.RandomState(42).randn(100)
    past = [np.concatenate([np.zeros(k), stimulus[: 100 - k]]) for k in range(9)]
    return torch.from_numpy(np.stack([np.ones(100), *past], axis=1)).float()


@lru_cache(maxsize=1)
def smoothness() -> Tensor:
    """The root of the prior covariance of the linear model's parameters, with shape (10, 10)."""
    difference = torch.eye(9) - torch.diag(torch.ones(8), -1)
    F = difference @ difference + torch.diag(torch.arange(9) / 9).sqrt()
    precision = torch.zeros(10, 10)
    precision[0, 0] = 0.5
    precision[1:, 1:] = F.T @ F
    return torch.linalg.cholesky(torch.linalg.inv(precision))


def smooth(z: Tensor) -> Tensor:
    return z @ smoothness().T


def sir(theta: Tensor, generator: Generator) -> Tensor:
    """An epidemic: of a thousand people, how many are infected, at ten times."""
    beta, gamma = theta.unbind(1)
    total = 1e6

    def rate(u: Tensor) -> Tensor:
        new, left = beta * u[:, 0] * u[:, 1] / total, gamma * u[:, 1]
        return torch.stack([-new, new - left], dim=1)

    start = torch.tensor([total - 1, 1.0]).expand(len(theta), 2)
    infected = integrated(rate, start, 17.0, 10, 34)[:, :, 1]
    counts = torch.binomial(
        torch.full_like(infected, 1000.0), (infected / total).clamp(0, 1), generator=generator
    )
    return counted(counts + uniform(*counts.shape, generator) / 2)


def counted(x: Tensor) -> Tensor:
    return (x + 1).log()


def lotka_volterra(theta: Tensor, generator: Generator) -> Tensor:
    """Prey and predators, at ten times each, with lognormal errors."""
    alpha, beta, gamma, delta = theta.unbind(1)

    def rate(u: Tensor) -> Tensor:  # of logarithms
        prey, predators = u.exp().unbind(1)
        return torch.stack([alpha - beta * predators, delta * prey - gamma], dim=1)

    start = torch.tensor([30.0, 1.0]).log().expand(len(theta), 2)
    exact = integrated(rate, start, 2.1, 10, 105).clamp(math.log(1e-10), math.log(1e4))
    x = exact.transpose(1, 2).flatten(start_dim=1)
    return x + 0.1 * normal(*x.shape, generator)


def integrated(
    rate: Callable[[Tensor], Tensor], u: Tensor, apart: float, times: int, steps: int
) -> Tensor:
    """Returns the states at some times, so far apart, by Runge and Kutta's method with so many
    steps between two of them, with shape (n, times, D)."""
    found, step = [u], apart / steps
    while len(found) < times:
        for _ in range(steps):
            a = rate(u)
            b = rate(u + step / 2 * a)
            c = rate(u + step / 2 * b)
            u = u + step / 6 * (a + 2 * b + 2 * c + rate(u + step * c))
        found.append(u)
    return torch.stack(found, dim=1)


def lognormal(location: list[float], scale: list[float]) -> Callable[[Tensor], Tensor]:
    def there(z: Tensor) -> Tensor:
        return (torch.tensor(location) + torch.tensor(scale) * z).exp()

    return there


def boxed(half: float) -> Callable[[Tensor], Tensor]:
    """Returns the map from a standard normal to a uniform on [-half, half]."""
    return lambda z: half * torch.erf(z / math.sqrt(2))


def scaled(half: float) -> Callable[[Tensor], Tensor]:
    return lambda z: half * z


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("two_moons", 2, 2, uniform, two_moons, published=0.525),
        Task("gaussian_mixture", 2, 2, uniform, gaussian_mixture, scaled(10.0), published=0.507),
        Task(
            "gaussian_linear", 10, 10, normal, gaussian_linear, scaled(0.1**0.5), published=0.505
        ),
        Task(
            "gaussian_linear_uniform", 10, 10, normal, gaussian_linear, boxed(1.0), published=0.513
        ),
        Task("slcp", 5, 8, normal, slcp, boxed(3.0), squeezed, published=0.584),
        Task("bernoulli_glm", 10, 10, normal, bernoulli_glm, smooth),
        Task(
            "sir",
            2,
            10,
            normal,
            sir,
            lognormal([math.log(0.4), math.log(0.125)], [0.5, 0.2]),
            counted,
        ),
        Task(
            "lotka_volterra",
            4,
            20,
            normal,
            lotka_volterra,
            lognormal([-0.125, -3.0, -0.125, -3.0], [0.5] * 4),
            torch.log,
        ),
    )
}
