# %% [markdown]
# # Downscaling with exact block means
#
# A coarse model gives the mean sea-surface temperature of blocks of 4 x 4 points. What could the
# fine field look like, if each block must keep its mean? Here is a field of June 2010 in
# the eastern Pacific, which the prior has not seen, with samples that have its block means.

# %%
from torch.nn.functional import avg_pool2d

import feasibly
from experiments.tasks import sst
from feasibly.constraints import Observation

data, denoiser = sst.data(), sst.prior()  # anomalies, and a small diffusion model of them
truth = data.held_out[8]  # with shape (16, 32)


def means(x):
    return avg_pool2d(x[:, None], 4)[:, 0]


coarse = means(truth[None])[0]  # with shape (4, 8)
exact = Observation(means, coarse, atol=1e-6)
result = feasibly.sample(denoiser, exact, 32, truth.shape, seed=8)
print(result)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

kelvin = data.unit * result.samples
panels = {
    "block means (given)": data.unit * coarse,
    "truth": data.unit * truth,
    "a sample": kelvin[0],
    "another sample": kelvin[1],
    "mean of 32 samples": kelvin.mean(dim=0),
    "standard deviation": kelvin.std(dim=0),
}
figure, axes = plt.subplots(3, 2, figsize=(8, 6), layout="constrained")
limit = (data.unit * truth).abs().max().item()
for ax, (title, x) in zip(axes.flat, panels.items(), strict=True):
    spread = title == "standard deviation"
    style = {"cmap": "viridis"} if spread else {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    image = ax.imshow(x, origin="lower", extent=(0, 32, 0, 16), **style)
    ax.set(title=title, xticks=[], yticks=[])
    if ax in axes[:, 1]:
        figure.colorbar(image, ax=ax, label="K")

# %% [markdown]
# The samples differ in the detail that block means leave open, and agree with the means to 1e-6 of
# the data's standard deviation. See [downscaling](../downscaling.md) for scores on twelve months,
# next to bilinear interpolation, DPS and a post-hoc projection.
