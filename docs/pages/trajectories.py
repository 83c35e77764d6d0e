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
# # Trajectories
#
# A vehicle starts at a known place, has to arrive at another, and must keep out of obstacles. The
# prior knows how it drives: at constant speed, without sharp turns. It has never seen an obstacle.
#
# Keeping out is an *inequality*: there is an inside, which random paths may reach by themselves.
# Start and goal are *equalities*, which they never meet by themselves. PPR treats the two
# differently.

# %%
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from small import PathNet, fit, kept, paths, short
from torch import Tensor

import feasibly
from feasibly.constraints import Mask, Obstacles

# %% [markdown]
# ## The data
#
# Paths of 24 points in the plane, made by this function:
#
# ```{literalinclude} small.py
# :language: python
# :pyobject: paths
# ```
#
# ## The prior
#
# A small network of convolutions along the path, trained for a few minutes.

# %%
POINTS, STEP = 24, 0.14
data = paths(short(65536, 512), POINTS, STEP)
torch.manual_seed(0)
network = PathNet()
denoiser = feasibly.Karras(network, feasibly.schedules.LogLogit())


def draw(n: int) -> Tensor:
    return data[torch.randint(len(data), (n,))]


def loss(x: Tensor) -> Tensor:
    return denoiser.loss(x, torch.rand(len(x)), torch.randn_like(x)).mean()


def train(steps: int) -> list[float]:
    return fit(network, loss, draw, steps, batch=128)


kept("trajectories", network, train, steps=3000)
