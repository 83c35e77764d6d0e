"""What the pages share: a smoke form, a training loop, small networks, paths and turbulence."""

__all__ = [
    "SMOKE",
    "ConvNet",
    "PathNet",
    "fit",
    "kept",
    "paths",
    "ran",
    "short",
    "told",
    "turbulence",
]

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import interpolate, silu

from feasibly import Result
from feasibly.nn import FiLM, SineEmbedding

if TYPE_CHECKING:
    from diffusers import UNet2DModel

WEIGHTS = Path(__file__).parent.parent / "weights"
SMOKE = bool(os.environ.get("FEASIBLY_SMOKE"))
"""Whether the pages only have to run, with few steps and members."""

torch.set_num_threads(1)


def short(full: int, smoke: int) -> int:
    """Returns a number of steps or members, smaller in the smoke form."""
    return smoke if SMOKE else full


def fit(
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    sample: Callable[[int], Tensor],
    steps: int,
    batch: int = 64,
    rate: float = 2e-3,
) -> list[float]:
    """Trains a network, and leaves the running average of its weights in it.

    Arguments:
        module: The network.
        loss: The loss of a batch of data.
        sample: Samples a batch of a given size.
        steps: The number of steps.
        batch: The batch size.
        rate: The highest learning rate, from which it falls as a cosine.

    Returns:
        The loss of each step.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)
    average = {name: value.clone() for name, value in module.state_dict().items()}
    losses = []
    for step in range(steps):
        value = loss(sample(batch))
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
        keep = min(0.995, step / (step + 10))
        for name, value in module.state_dict().items():
            average[name].lerp_(value, 1 - keep)
    module.load_state_dict(average)
    return losses


def kept(name: str, module: nn.Module, train: Callable[[int], list[float]], steps: int) -> None:
    """Loads the stored weights of a network; trains it and stores them if there are none.

    The smoke form makes two steps of the training, and then loads the stored weights.
    """
    path = WEIGHTS / f"{name}.safetensors"
    if SMOKE:
        train(2)
    if not path.exists():
        train(steps)
        path.parent.mkdir(exist_ok=True)
        save_file(module.state_dict(), path)
    module.load_state_dict(load_file(path))
    module.eval().requires_grad_(False)


def ran(name: str, sample: Callable[[], Result]) -> Result:
    """Loads the stored result of a long run; samples and stores it if there is none.

    The smoke form samples, and stores nothing.
    """
    path = WEIGHTS / f"{name}.safetensors"
    if SMOKE:
        return sample()
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        sample().save(path)
    return Result.load(path)


def told(name: str, run: Callable[[], object]) -> str:
    """Reads the stored text of a long run; runs it and stores its text if there is none."""
    path = WEIGHTS / f"{name}.txt"
    if not path.exists():
        path.write_text(f"{run()}\n")
    return path.read_text().strip()


class Block(nn.Module):
    """A residual block of two convolutions, modulated by the noise level."""

    def __init__(self, width: int, features: int, conv: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(width // 8, width)
        self.first = conv(width, width)
        self.film = FiLM(features, width)
        self.second = conv(width, width)

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        y = self.first(silu(self.norm(h)))
        condition = condition.reshape(len(h), *(1,) * (h.ndim - 2), -1)
        y = self.film(y.movedim(1, -1), condition).movedim(-1, 1)
        return h + self.second(silu(y))


class ConvNet(nn.Module):
    """A small U-shaped network on two scales, for periodic fields in the plane, or series.

    Arguments:
        channels: The channels of a sample.
        width: The width on the fine scale; the coarse one has twice as many.
        depth: The number of blocks on the coarse scale.
        series: Whether samples are series, with shape (B, channels, T), and not fields, with
            shape (B, channels, X, Y).
    """

    def __init__(
        self, channels: int, width: int = 32, depth: int = 3, series: bool = False
    ) -> None:
        super().__init__()
        features = 64
        kind = nn.Conv1d if series else nn.Conv2d
        conv = partial(kind, kernel_size=3, padding=1, padding_mode="circular")
        if series:
            conv = partial(kind, kernel_size=5, padding=2)
        self.embed = SineEmbedding(16, low=0.5, high=16.0)
        self.condition = nn.Sequential(nn.Linear(32, features), nn.SiLU())
        self.lift = conv(channels, width)
        self.encode = Block(width, features, conv)
        self.down = kind(width, 2 * width, 2, stride=2)
        self.middle = nn.ModuleList(Block(2 * width, features, conv) for _ in range(depth))
        self.up = kind(2 * width, width, 1)
        self.decode = Block(width, features, conv)
        self.last = conv(width, channels)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        condition = self.condition(self.embed(noise.expand(len(x))))
        fine = self.encode(self.lift(x), condition)
        h = self.down(fine)
        for block in self.middle:
            h = block(h, condition)
        h = fine + interpolate(self.up(h), scale_factor=2.0)
        return self.last(silu(self.decode(h, condition)))


class PathNet(ConvNet):
    """The same for paths in the plane, with shape (B, T, 2)."""

    def __init__(self) -> None:
        super().__init__(channels=2, series=True)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        return super().forward(x.mT, noise).mT


def image_net(size: int) -> "UNet2DModel":
    """Returns a network of diffusers for grey images of `size` x `size` pixels."""
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=size,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(24, 48),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=16,
    )


def paths(n: int, points: int = 24, step: float = 0.14, seed: int = 0) -> Tensor:
    """Returns paths of a vehicle of constant speed, with shape (n, points, 2).

    They start at the left and head to the right; the steering is a random walk that returns to
    straight on, and turns by at most 0.4 a step.
    """
    generator = torch.Generator().manual_seed(seed)
    steering = 0.1 * torch.randn(n, generator=generator)
    heading = 1.2 * torch.rand(n, generator=generator) - 0.6
    x = torch.stack((torch.full((n,), -1.6), torch.rand(n, generator=generator) - 0.5), dim=1)
    found = [x]
    for _ in range(points - 1):
        steering = 0.85 * steering + 0.09 * torch.randn(n, generator=generator)
        heading = 0.97 * heading + steering.clamp(-0.4, 0.4)
        x = x + step * torch.stack((heading.cos(), heading.sin()), dim=1)
        found.append(x)
    return torch.stack(found, dim=1)


def coarse(u: Tensor, n: int) -> Tensor:
    """Keeps the waves that n x n points resolve."""
    k = torch.arange(1 - n // 2, n // 2)
    u_hat = torch.fft.fft2(u, norm="forward")
    kept_hat = u_hat.new_zeros(*u.shape[:-2], n, n)
    kept_hat[..., k[:, None], k] = u_hat[..., k[:, None], k]
    return torch.fft.ifft2(kept_hat, norm="forward").real


def turbulence(runs: int, frames: int, n: int = 48, dt: float = 0.025, seed: int = 0) -> Tensor:
    """Returns velocities with shape (runs, frames, 2, 24, 24), three units of time apart."""
    viscosity, drag, stirring = 1.5e-3, 0.1, 5.0
    spin_up, every = short(2400, 20), short(120, 2)
    generator = torch.Generator().manual_seed(seed)
    k_x, k_y = torch.fft.fftfreq(n, 1 / n)[:, None], torch.fft.rfftfreq(n, 1 / n)
    squares = k_x**2 + k_y**2
    inverse = torch.where(squares == 0, 0.0, 1 / squares)
    resolved = (k_x.abs() < n / 3) & (k_y < n / 3)
    ring = (squares >= 4) & (squares <= 12)
    decay = torch.exp(-dt * (viscosity * squares + drag))

    def grid(w: Tensor) -> Tensor:
        return torch.fft.irfft2(w, s=(n, n))

    w = torch.zeros(runs, n, n // 2 + 1, dtype=torch.complex64)
    last, kept_frames = torch.zeros_like(w), []
    for step in range(1, spin_up + every * frames + 1):
        psi = w * inverse
        u, v = grid(1j * k_y * psi), grid(-1j * k_x * psi)
        now = resolved * torch.fft.rfft2(u * grid(1j * k_x * w) + v * grid(1j * k_y * w))
        kick = ring * torch.fft.rfft2(torch.randn(runs, n, n, generator=generator))
        w = decay * (w - dt * (1.5 * now - 0.5 * last)) + stirring * math.sqrt(dt) * kick
        last = now
        if step > spin_up and (step - spin_up) % every == 0:
            kept_frames.append(coarse(torch.stack((u, v), dim=1), 24))
    return torch.stack(kept_frames, dim=1)
