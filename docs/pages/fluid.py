# ---
# jupytext:
#   text_representation:
#     extension: .py
#     format_name: percent
# kernelspec:
#   display_name: Python 3
#   name: python3
# ---

# %% [markdown]
# # Fluid
#
# A field of velocities is known at twenty-four points, and the fluid is incompressible. What does
# the rest of the field look like? A diffusion model knows how turbulence looks. Divergence and
# observations are constraints.
#
# This page makes the data, trains a small prior on them, and samples. With the stored weights it
# takes some minutes on one core; without them, about ten.

# %%
import math

import matplotlib.pyplot as plt
import torch
from small import ConvNet, fit, kept, short
from torch import Tensor

import feasibly
from feasibly.constraints import DivergenceFree, energy_spectrum
from feasibly.constraints.operators import derivative

# %% [markdown]
# ## The data
#
# Two-dimensional turbulence on a periodic square: a spectral solver of the vorticity equation on
# 48 x 48 points, stirred at random on a ring of wavenumbers, with viscosity and drag. Snapshots
# are cut to the waves that 24 x 24 points resolve. That keeps them free of divergence.


# %%
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


fields = turbulence(runs=short(32, 4), frames=short(60, 4))
scale = fields[:-2].std()
train = (fields[:-2] / scale).flatten(end_dim=1)  # two runs are held out
test = (fields[-2:] / scale).flatten(end_dim=1)
train.shape, test.shape

# %% [markdown]
# ## The prior
#
# A small U-shaped network with circular padding behind EDM's preconditioning. It is not told that
# fields are free of divergence, and learns it only roughly.

# %%
torch.manual_seed(0)
network = ConvNet(channels=2)
denoiser = feasibly.Karras(network, feasibly.schedules.LogLogit())


def draw(n: int) -> Tensor:
    """Draws snapshots, moved by a random distance."""
    x = train[torch.randint(len(train), (n,))]
    i, j = torch.randint(24, (2,)).tolist()
    return x.roll((i, j), dims=(-2, -1))


def loss(x: Tensor) -> Tensor:
    return denoiser.loss(x, torch.rand(len(x)), torch.randn_like(x)).mean()


kept("fluid", network, lambda steps: fit(network, loss, draw, steps, batch=16), steps=2400)
