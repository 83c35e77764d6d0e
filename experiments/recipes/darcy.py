"""Darcy flow through a random medium: a small learned prior of coefficient and pressure."""

import math
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn
from torch.nn.functional import pad

from feasibly.denoisers import Denoiser
from feasibly.nn import FiLM, SineEmbedding
from feasibly.samplers import Ancestral
from feasibly.schedules import LogLogit, Schedule

from .base import Recipe, TrainConfig
from .learned import HOME

CARD = """| data | log a and p of - div (a grad p) = 1 on {n} x {n} points, p = 0 outside |
| network | residual MLP, {layers} x {width}, EDM preconditioning of each principal component, \
{parameters:,} parameters |

## Unconditional quality

{count:,} samples (second order, 64 steps), and as many fresh data.

| measure | prior | data |
|---|---|---|
{rows}
"""


class Physics:
    r"""The equation :math:`- \nabla \cdot (a \nabla p) = 1` on the unit square, with :math:`p = 0`
    on its boundary, by finite volumes around n x n points.

    Samples have shape (B, 2, n, n): the logarithm of :math:`a`, a Gaussian field with Matérn's
    covariance of smoothness 3/2, and :math:`p`, both standardised.
    """

    n = 12
    std, length = 0.7, 0.3  # of log a
    mean_p, std_p = 0.0424, 0.0281

    def flux(self, log_a: Tensor, p: Tensor) -> Tensor:
        """Returns what flows out of each cell, relative to its area, with the shape of `p`."""

        def along(a: Tensor, p: Tensor) -> Tensor:  # the last axis; a wall has its cell's a
            face = torch.cat([a[..., :1], (a[..., 1:] + a[..., :-1]) / 2, a[..., -1:]], dim=-1)
            return -(face * pad(p, (1, 1)).diff()).diff()

        a = log_a.exp()
        return (along(a, p) + along(a.mT, p.mT).mT) * (self.n + 1) ** 2

    def residual(self, x: Tensor) -> Tensor:
        """Returns the equation's residual at each point, with shape (B, n, n)."""
        return self.flux(self.std * x[:, 0], self.mean_p + self.std_p * x[:, 1]) - 1

    def sample(self, count: int, generator: Generator) -> Tensor:
        """Samples data, in double precision."""
        n, h = self.n, 1 / (self.n + 1)
        i = h * torch.arange(n).double()
        places = torch.cartesian_prod(i, i)
        d = math.sqrt(3) * torch.cdist(places, places) / self.length
        root = torch.linalg.cholesky((1 + d) * torch.exp(-d) + 1e-9 * torch.eye(n * n))
        found = []
        unit = torch.eye(n * n).double().reshape(-1, n, n)
        for part in torch.randn(count, n * n, generator=generator).double().split(64):
            z = (part @ root.T).reshape(-1, 1, n, n)
            log_a = (self.std * z).expand(-1, n * n, n, n)
            L = self.flux(log_a, unit.expand(log_a.shape)).flatten(start_dim=2)  # symmetric
            p = torch.linalg.solve(L, torch.ones_like(L[:, 0])).reshape(z.shape)
            found.append(torch.cat([z, (p - self.mean_p) / self.std_p], dim=1))
        return torch.cat(found)


class MLP(nn.Module):
    """A residual MLP whose layers are modulated by the noise level."""

    def __init__(self, dim: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = SineEmbedding(16, low=0.5, high=16.0)
        self.input = nn.Linear(dim, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.film = nn.ModuleList(FiLM(32, width) for _ in range(layers))
        self.output = nn.Linear(width, dim)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, z: Tensor, noise: Tensor) -> Tensor:
        h, condition = self.input(z), self.embed(noise.expand(len(z)))
        for hidden, film in zip(self.hidden, self.film, strict=True):
            h = h + nn.functional.silu(film(hidden(h), condition))
        return self.output(h)


class DarcyPrior(Denoiser):
    r"""A network with EDM's preconditioning of each principal component of the data, of variance
    :math:`\lambda`: the best linear denoiser, and a correction of its error's size."""

    center: Tensor
    axes: Tensor
    variance: Tensor

    def __init__(self, schedule: Schedule, width: int = 224, layers: int = 2) -> None:
        super().__init__(schedule)
        D = 2 * Physics.n**2
        self.register_buffer("center", torch.zeros(D))
        self.register_buffer("axes", torch.eye(D))
        self.register_buffer("variance", torch.ones(D))
        self.net = MLP(D, width, layers)

    def scaled(self, x: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the components of states in units of their size, and these sizes."""
        scale = torch.sqrt(sigma.reshape(-1, 1) ** 2 + self.variance)
        return (x.flatten(start_dim=1) - self.center) @ self.axes / scale, scale

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        z, scale = self.scaled(x, sigma)
        F = self.net(z, sigma.log().reshape(-1) / 4)
        size = self.variance.sqrt()
        found = self.variance / scale * z + sigma.reshape(-1, 1) * size / scale * F
        return (self.center + found @ self.axes.T).reshape(x.shape)


def darcy(schedule: Schedule) -> DarcyPrior:
    """Loads the trained denoiser, on a schedule."""
    model = DarcyPrior(schedule)
    model.load_state_dict({k: v.float() for k, v in load_file(HOME / "darcy.safetensors").items()})
    return model.eval().requires_grad_(False)


class DarcyFlow(Recipe[DarcyPrior]):
    """Coefficient and pressure of Darcy flow."""

    config = TrainConfig("darcy", steps=8_000, batch=256)
    ends = ("net",)  # all of it: Adam takes a tenth of the time, on matrices as small
    bands = 16
    order = " by noise level, lowest first (relative to the best linear denoiser's)"
    home = HOME
    pool, least = 8192, 1e-6  # data, of each of which training shows eight images

    def __init__(self) -> None:
        self.data_ = Physics().sample(self.pool, Generator().manual_seed(0)).float()

    def model(self) -> DarcyPrior:
        model = DarcyPrior(LogLogit())
        x = self.data_.flatten(start_dim=1).double()
        values, vectors = torch.linalg.eigh(x.T.cov())
        model.center.copy_(x.mean(dim=0))
        model.axes.copy_(vectors)
        model.variance.copy_(values.clamp_min(self.least))
        return model

    def compile(self, model: DarcyPrior) -> None:
        model.net.compile()

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        x = self.data_[torch.randint(self.pool, (n,), generator=generator)]
        for axes, chosen in zip(((2,), (3,)), torch.rand(2, generator=generator), strict=True):
            x = x.flip(axes) if symmetries and chosen < 0.5 else x
        return x.mT if symmetries and torch.rand((), generator=generator) < 0.5 else x

    def loss(self, model: DarcyPrior, x_0: Tensor, generator: Generator) -> Tensor:
        n = len(x_0)
        t = (torch.arange(n) + torch.rand(n, generator=generator)) / n
        _, sigma = LogLogit()(t)
        noise = torch.randn(x_0.shape, generator=generator).flatten(start_dim=1)
        z, scale = model.scaled(x_0.flatten(start_dim=1) + sigma[:, None] * noise, sigma)
        z_0 = (x_0.flatten(start_dim=1) - model.center) @ model.axes
        size = sigma[:, None] * model.variance.sqrt() / scale
        target = (z_0 - model.variance / scale * z) / size
        return (model.net(z, sigma.log() / 4) - target).square().mean(dim=1)

    def save(self, model: DarcyPrior, path: Any) -> None:
        weights = {k: v.contiguous() for k, v in model.state_dict().items()}
        weights |= {k: v.half().contiguous() for k, v in model.named_parameters()}
        save_file(weights, path)

    def load(self, name: str) -> DarcyPrior:
        model = DarcyPrior(LogLogit())
        model.load_state_dict(load_file(name))
        return model

    def card(self, model: DarcyPrior, n: int) -> str:
        count, physics = min(n, 2048), Physics()
        fresh = physics.sample(count, Generator().manual_seed(1))
        x = Ancestral(model, steps=64).sample(count, fresh.shape[1:], seed=1).samples.double()

        def measures(x: Tensor) -> dict[str, float]:
            return {
                "residual of the equation, root mean square (source 1)": physics.residual(x)
                .square()
                .mean()
                .sqrt()
                .item(),
                "standard deviation of log a": x[:, 0].std().item(),
                "standard deviation of p": x[:, 1].std().item(),
                "mean of p": x[:, 1].mean().item(),
            }

        own, data = measures(x), measures(fresh)
        return CARD.format(
            n=physics.n,
            width=model.net.input.out_features,
            layers=len(model.net.hidden),
            parameters=sum(p.numel() for p in model.net.parameters()),
            count=count,
            rows="\n".join(f"| {k} | {own[k]:.4f} | {data[k]:.4f} |" for k in own),
        )
