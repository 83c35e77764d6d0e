# %% [markdown]
# # Inpainting and super-resolution
#
# An image has a gap, or only the means of blocks of 4 x 4 pixels are known. Which images fit
# exactly? The model is a `UNet2DModel` of [diffusers](https://github.com/huggingface/diffusers)
# for handwritten digits with 14 x 14 pixels, read from its folder without change. Each task is one
# constraint, and none needs training.

# %%
import torch
from safetensors.torch import load_file
from torch.nn.functional import avg_pool2d, pad

import feasibly
from feasibly.constraints import Mask, Observation

digits = load_file("docs/weights/mnist/held-out.safetensors")["digits"]  # (64, 1, 14, 14)
denoiser = feasibly.wrap("docs/weights/mnist", data=digits)
known = torch.ones(1, 14, 14, dtype=torch.bool)
known[:, 5:9] = False  # a gap in the middle


def means(x):  # with shape (B, 1, 4, 4)
    return avg_pool2d(pad(x, (1, 1, 1, 1), value=-1.0), 4)


first, second = digits[0], digits[1]
gap = Mask(known, first, atol=0.01)
completed = feasibly.sample(denoiser, gap, 8, (1, 14, 14), seed=0)
print(completed)
coarse = Observation(means, means(second[None])[0], atol=0.01)
sharp = feasibly.sample(denoiser, coarse, 8, (1, 14, 14), seed=0)
print(sharp)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 8, figsize=(10, 2.7), layout="constrained")
given = torch.where(known, first, torch.nan)
rows = (given, first, completed.samples), (means(second[None])[0], second, sharp.samples)
for row, (low, truth, samples) in zip(axes, rows, strict=True):
    for ax, x in zip(row, (low, truth, *samples[:6]), strict=True):
        ax.imshow(x[0], cmap="gray_r", vmin=-1, vmax=1)
        ax.set(xticks=[], yticks=[], facecolor="lightsteelblue")
for ax, title in zip(axes[0], ("given", "truth", "samples", *[""] * 5), strict=True):
    ax.set_title(title, fontsize=10, loc="left")

# %% [markdown]
# All samples agree with the known pixels, or with the known means, to 0.01. Above, the gap leaves
# little open; below, sixteen means fit several digits. Both runs warn. With 140 known pixels,
# means and spreads may be off. With sixteen means, the importance weights are not reliable (k-hat
# is 2.1), so that the shares of the digits may be wrong.
