"""Solutions of the heat equation, as in the PCFM benchmark, and a learned flow of them."""

import json
import math

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from feasibly.denoisers.adapter import Adapter
from feasibly.models.flow import flow
from feasibly.nn import FiLM, SineEmbedding

from .learned import HOME

SIZE = 32  # points per side of the learned flow


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
    interval."""
    from scipy.stats import kstest

    return kstest((values.double() - low) / (high - low), "uniform").pvalue.item()


def heat() -> Adapter:
    """Loads the trained flow, wrapped."""
    path = HOME / "heat.safetensors"
    net = FNO(**json.loads((HOME / "heat.json").read_text()))
    net.load_state_dict(load_file(path))
    return flow(net.eval().requires_grad_(False), None, "torchcfm")
