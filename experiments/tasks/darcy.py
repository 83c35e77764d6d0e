"""Darcy flow through a random medium: a small learned prior of coefficient and pressure."""

import math

import torch
from safetensors.torch import load_file
from torch import Generator, Tensor, nn
from torch.nn.functional import pad

from feasibly.denoisers import Denoiser
from feasibly.nn import FiLM, SineEmbedding
from feasibly.schedules import Schedule

from .learned import HOME


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

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        scale = torch.sqrt(sigma.reshape(-1, 1) ** 2 + self.variance)
        z = (x.flatten(start_dim=1) - self.center) @ self.axes / scale
        F = self.net(z, sigma.log().reshape(-1) / 4)
        size = self.variance.sqrt()
        found = self.variance / scale * z + sigma.reshape(-1, 1) * size / scale * F
        return (self.center + found @ self.axes.T).reshape(x.shape)


def darcy(schedule: Schedule) -> DarcyPrior:
    """Loads the trained denoiser, on a schedule."""
    model = DarcyPrior(schedule)
    model.load_state_dict({k: v.float() for k, v in load_file(HOME / "darcy.safetensors").items()})
    return model.eval().requires_grad_(False)
