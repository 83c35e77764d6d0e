# %% [markdown]
# # Paths around obstacles
#
# A model of driving knows how a vehicle moves, but it has never seen an obstacle. Which ways lead
# from a given start to a given goal without touching three discs? The model is [a small diffusion
# model of paths](../pages/trajectories.py) with 24 points.

# %%
import torch
from safetensors.torch import load_file
from small import PathNet

import feasibly
from feasibly.constraints import Composite, Mask, Obstacles

network = PathNet()
network.load_state_dict(load_file("docs/weights/trajectories.safetensors"))
denoiser = feasibly.Karras(network.eval().requires_grad_(False), feasibly.schedules.LogLogit())

places, ends = torch.zeros(24, 2), torch.zeros(24, 2, dtype=torch.bool)
places[0], places[-1] = torch.tensor([-1.6, 0.0]), torch.tensor([1.2, 0.1])
ends[0] = ends[-1] = True
centers, radii = (
    torch.tensor([[-0.7, 0.3], [0.0, -0.4], [0.55, 0.35]]),
    torch.tensor([0.35, 0.4, 0.25]),
)
arrive = Mask(ends, places, atol=1e-3)
clear = Obstacles(centers, radii + 0.07, tolerance=0.005**2)  # half a step more, for corners
result = feasibly.sample(denoiser, Composite([arrive, clear]), 64, (24, 2), seed=0)
print(result)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

free = feasibly.sample(denoiser, None, 64, (24, 2), seed=0).samples
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
panels = {"the model, without constraint": free, "start, goal and obstacles": result.samples}
for ax, (title, x) in zip(axes, panels.items(), strict=True):
    for center, radius in zip(centers.tolist(), radii.tolist(), strict=True):
        ax.add_patch(plt.Circle(center, radius, color="tab:orange", alpha=0.4))
    ax.plot(*x.permute(2, 1, 0), color="tab:blue", linewidth=0.6, alpha=0.6)
    ax.plot(*places[[0, -1]].T, "o", color="black", markersize=5)
    ax.set(title=title, xlim=(-2.1, 1.9), ylim=(-1.5, 1.5), xticks=[], yticks=[], aspect=1)

# %% [markdown]
# Start and goal are equalities, which no path of the model satisfies by itself, and the obstacles
# are an inequality. All paths meet them. The run warns that its importance weights are not
# reliable, so that the shares of the ways round the discs may be wrong. See
# [trajectories](../pages/trajectories.py) for other methods on this problem, and [an
# arm](../arm.md) for the same task with seven joints.
