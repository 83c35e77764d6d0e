"""A flow of solutions of the heat equation, of the kind of the PCFM benchmark."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn

from feasibly.denoisers.adapter import Adapter
from feasibly.models.flow import flow
from feasibly.nn import FiLM, SineEmbedding
from feasibly.samplers import Ancestral
from feasibly.schedules import Flow

from .base import Recipe, TrainConfig
from .learned import HOME

CARD = """| data | sin(x + phi) exp(-nu t), phi uniform on [0, 2 pi), nu uniform on [1, 5], \
{size} x {size} points in x and t |
| network | Fourier neural operator, {layers} x {width}, {modes} modes, velocity of a straight \
flow, {parameters:,} parameters |

## Unconditional quality

{n:,} samples (second order, 64 steps). For each, the nearest solution is fitted.

| measure | prior | data |
|---|---|---|
| distance to the nearest solution, root mean square | {off:.4f} | 0 |
| mean of nu | {mean:.3f} | 3.000 |
| standard deviation of nu | {std:.3f} | 1.155 |
"""


class SpectralConv(nn.Module):
    """Multiplies the lowest waves of fields by matrices over the channels.

    References:
        | Fourier Neural Operator for Parametric Partial Differential Equations (Li et al., 2021)
        | https://arxiv.org/abs/2010.08895
    """

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (2, width, width, modes, modes, 2)  # of positive and negative waves along x
        self.weight = nn.Parameter(torch.randn(shape) / width)

    def forward(self, h: Tensor) -> Tensor:
        m = self.modes
        waves = torch.fft.rfft2(h, norm="ortho")
        found = torch.zeros_like(waves)
        weight = torch.view_as_complex(self.weight)
        for rows, w in zip((slice(None, m), slice(-m, None)), weight, strict=True):
            found[:, :, rows, :m] = torch.einsum("bixt,ioxt->boxt", waves[:, :, rows, :m], w)
        return torch.fft.irfft2(found, s=h.shape[-2:], norm="ortho")


class FNO(nn.Module):
    """A Fourier neural operator of fields over x, which is periodic, and t."""

    def __init__(self, width: int = 24, layers: int = 4, modes: int = 8) -> None:
        super().__init__()
        self.embed = SineEmbedding(16, low=0.5, high=16.0)
        self.input = nn.Conv2d(4, width, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.film = nn.ModuleList(FiLM(32, width) for _ in range(layers))
        self.output = nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))

    def forward(self, s: Tensor, u: Tensor) -> Tensor:
        """Maps the flow's times, with shape (B) or (), and fields, with shape (B, n, n), to
        velocities."""
        B, n, _ = u.shape
        x = 2 * math.pi / n * torch.arange(n).to(u)
        t = torch.linspace(0, 1, n).to(u)
        places = torch.stack(
            [x.sin()[:, None].expand(n, n), x.cos()[:, None].expand(n, n), t.expand(n, n)]
        )
        h = self.input(torch.cat([u[:, None], places.expand(B, 3, n, n)], dim=1))
        condition = self.embed(s.expand(B).to(u))
        parts = zip(self.spectral, self.skip, self.film, strict=True)
        for spectral, skip, film in parts:
            mixed = (spectral(h) + skip(h)).movedim(1, -1)
            h = h + nn.functional.gelu(film(mixed, condition[:, None, None])).movedim(-1, 1)
        return self.output(h)[:, 0]


def fields(phi: Tensor, nu: Tensor, n: int) -> Tensor:
    """Returns solutions of some parameters, with shape (N, n, n)."""
    x = 2 * math.pi / n * torch.arange(n).to(phi)
    t = torch.linspace(0, 1, n, dtype=phi.dtype, device=phi.device)
    return (x + phi[:, None]).sin()[:, :, None] * torch.exp(-nu[:, None] * t)[:, None]


def fitted(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the phase and the decay of the solutions that are nearest to fields, with shape
    (N, n, n), and their root mean square distances. The decay is in [0, 10], to 0.005."""
    n = u.shape[1]
    x, t = 2 * math.pi / n * torch.arange(n).double(), torch.linspace(0, 1, n).double()
    c = torch.einsum("kx,bxt->bkt", torch.stack([x.sin(), x.cos()]), u.double())
    nu = torch.linspace(0, 10, 2001).double()
    decay = torch.exp(-nu[:, None] * t)
    a = torch.einsum("bkt,qt->bqk", c, decay)
    gain = a.norm(dim=2) - n / 4 * decay.square().sum(dim=1)  # half the misfit, turned round
    best = gain.argmax(dim=1)
    chosen = a[torch.arange(len(a)), best]
    phi = torch.atan2(chosen[:, 1], chosen[:, 0])
    off = (u.double() - fields(phi, nu[best], n)).square().mean(dim=(1, 2)).sqrt()
    return phi, nu[best], off


def p_uniform(values: Tensor, low: float, high: float) -> float:
    """Returns the p-value of Kolmogorov and Smirnov's test that values are uniform on an
    interval.

    References:
        | Use of the Kolmogorov-Smirnov, Cramer-von Mises and Related Statistics Without Extensive
        | Tables (Stephens, 1970), https://doi.org/10.1111/j.2517-6161.1970.tb00821.x
    """
    n = len(values)
    u = ((values.double() - low) / (high - low)).clamp(0, 1).sort().values
    steps = torch.arange(n + 1).double() / n
    gap = torch.maximum(steps[1:] - u, u - steps[:-1]).max().item()
    z = gap * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    if z < 0.2:  # where the series has not begun to converge, and the value is 1
        return 1.0
    return 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * z) ** 2) for k in range(1, 101))


def heat() -> Adapter:
    """Loads the trained flow, wrapped."""
    path = HOME / "heat.safetensors"
    net = FNO(**json.loads((HOME / "heat.json").read_text()))
    net.load_state_dict(load_file(path))
    return flow(net.eval().requires_grad_(False), None, "torchcfm")


class HeatFlow(Recipe[FNO]):
    """Solutions of the heat equation."""

    config = TrainConfig("heat", steps=3_000, batch=64, lr_muon=2e-3, lr_adam=2e-3)
    backbone = {"width": 24, "layers": 4, "modes": 8}  # noqa: RUF012
    ends = ("input", "output", "embed", "film", "spectral")
    size = 32
    home = HOME

    def model(self) -> FNO:
        return FNO(**self.backbone)

    def compile(self, model: FNO) -> None:
        model.compile()

    def batch(self, n: int, generator: Generator, symmetries: bool) -> Tensor:
        u, v = torch.rand(2, n, generator=generator)
        return fields(2 * math.pi * u, 1 + 4 * v, self.size)

    def loss(self, model: FNO, x_0: Tensor, generator: Generator) -> Tensor:
        n = len(x_0)
        s = (torch.arange(n) + torch.rand(n, generator=generator)) / n
        noise = torch.randn(x_0.shape, generator=generator)
        x_s = s[:, None, None] * x_0 + (1 - s)[:, None, None] * noise
        return (model(s, x_s) - (x_0 - noise)).square().mean(dim=(1, 2))

    def save(self, model: FNO, path: Path) -> None:
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
        path.with_suffix(".json").write_text(json.dumps(self.backbone) + "\n")

    def load(self, name: str) -> FNO:
        net = self.model()
        net.load_state_dict(load_file(name))
        return net

    def about(self, model: FNO) -> str:
        return f"| schedule | {Flow()} |\n"

    def card(self, model: FNO, n: int) -> str:
        denoiser = flow(model, None, "torchcfm")
        n = min(n, 256)
        x = Ancestral(denoiser, steps=64).sample(n, (self.size,) * 2, seed=1).samples
        _, nu, off = fitted(x)
        return CARD.format(
            size=self.size,
            parameters=sum(p.numel() for p in model.parameters()),
            n=n,
            off=off.square().mean().sqrt(),
            mean=nu.mean(),
            std=nu.std(),
            **self.backbone,
        )
