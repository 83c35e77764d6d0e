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
# # Flow models
#
# A flow-matching model predicts a velocity and not the noise. For independent pairs of noise and
# data the two say the same: along the path :math:`x_s = s\, x_0 + (1 - s)\, \epsilon` the
# posterior mean is :math:`x_s + (1 - s)\, v`. So `wrap` makes a denoiser of it, and every method
# and every constraint works as before.
#
# This page puts the paths of [the page before](trajectories.py) under a flow-matching prior.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from small import PathNet, fit, kept, paths, short
from torch import Tensor

import feasibly
from feasibly import samplers
from feasibly.constraints import Mask, Obstacles

# %% [markdown]
# ## The prior
#
# The network is called as `net(s, x)`, with noise at s = 0 and data at s = 1, as in torchcfm. The
# loss is that of conditional flow matching, with noise and data paired independently.

# %%
POINTS, STEP = 24, 0.14
data = paths(short(65536, 512), POINTS, STEP)
torch.manual_seed(0)


class Velocity(PathNet):
    def forward(self, s: Tensor, x: Tensor) -> Tensor:
        return super().forward(x, 4 * s)


network = Velocity()


def draw(n: int) -> Tensor:
    return data[torch.randint(len(data), (n,))]


def loss(x: Tensor) -> Tensor:
    noise, s = torch.randn_like(x), torch.rand(len(x))
    x_s = s[:, None, None] * x + (1 - s[:, None, None]) * noise
    return (network(s, x_s) - (x - noise)).square().mean()


def train(steps: int) -> list[float]:
    return fit(network, loss, draw, steps, batch=128)


kept("flow", network, train, steps=3000)
