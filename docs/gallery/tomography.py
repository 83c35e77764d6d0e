# %% [markdown]
# # Tomography with noise
#
# A scanner measures line integrals, with noise. Which images agree with the measurements? Here are
# ten angles of a handwritten digit with 14 x 14 pixels, which give 140 noisy line integrals for
# 196 pixels. The model is [a network of diffusers](inpainting.ipynb).

# %%
import math

import torch
from safetensors.torch import load_file
from torch.nn.functional import affine_grid, grid_sample

import feasibly
from feasibly.constraints import Observation

digits = load_file("docs/weights/mnist/held-out.safetensors")["digits"]
denoiser = feasibly.wrap("docs/weights/mnist", data=digits)
angles = (torch.arange(10) * math.pi / 10).tolist()


def scan(x):  # the sums along columns of the image, turned by each angle, with shape (B, 10, 14)
    found = []
    for a in angles:
        turn = torch.tensor([[math.cos(a), -math.sin(a), 0.0], [math.sin(a), math.cos(a), 0.0]])
        grid = affine_grid(turn.expand(len(x), 2, 3), x.shape, align_corners=False)
        found.append(grid_sample(x + 1, grid, align_corners=False).sum(dim=(1, 2)))
    return torch.stack(found, dim=1)


truth, noise = digits[2], 0.3
sums = scan(truth[None])[0]
measured = sums + noise * torch.randn(sums.shape, generator=torch.Generator().manual_seed(0))
scanner = Observation(scan, measured, noise=noise)
result = feasibly.sample(denoiser, scanner, 16, (1, 14, 14), seed=0)
print(result)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 6, figsize=(10, 2.2), layout="constrained")
x = result.samples
panels = {
    "measured sums": measured,
    "truth": truth[0],
    "a sample": x[0, 0],
    "another sample": x[1, 0],
    "mean of 16": x.mean(dim=(0, 1)),
    "standard deviation": x.std(dim=0)[0],
}
for ax, (title, panel) in zip(axes, panels.items(), strict=True):
    style = {"cmap": "gray_r", "vmin": -1, "vmax": 1}
    if title in ("measured sums", "standard deviation"):
        style = {"cmap": "viridis"}
    ax.imshow(panel, aspect="auto", **style)
    ax.set_title(title, fontsize=10)
    ax.set(xticks=[], yticks=[])
axes[0].set(xlabel="detector", ylabel="angle")

# %% [markdown]
# Chi-square per observed value is about one, so the samples fit the measurements as well as the
# noise allows. They differ in fine detail, which ten noisy angles do not determine. The run warns
# that means and spreads may be off, because there are 140 observed values.
