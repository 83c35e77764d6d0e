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
# # Images
#
# A diffusion model of handwritten digits, 8 x 8 pixels, as diffusers keeps it in a folder. We
# complete half of an image, prescribe its brightness, and ask for symmetry.
#
# The model is small because it is trained here; a large one goes the same way.

# %%
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from diffusers import DDPMScheduler, UNet2DModel
from sklearn.datasets import load_digits
from small import SMOKE, WEIGHTS, fit, short
from torch import Tensor

import feasibly
from feasibly.constraints import Integral, Mask

# %% [markdown]
# ## The data
#
# The digits of scikit-learn, 1797 images, scaled to [-1, 1] as is usual for images. The last 360
# are held out.

# %%
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
labels = torch.tensor(digits.target)
train, test = images[:-360], images[-360:]
train.shape, f"standard deviation {train.std():.2f}"

# %% [markdown]
# ## The prior
#
# A `UNet2DModel` that predicts the noise, with a `DDPMScheduler`. `save_pretrained` of both writes
# the folder that the library reads.

# %%
FOLDER = WEIGHTS / "digits"


def make(steps: int) -> tuple[UNet2DModel, DDPMScheduler]:
    """Trains a model on the digits."""
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(24, 48),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=16,
    )
    scheduler = DDPMScheduler(num_train_timesteps=1000)

    def loss(x: Tensor) -> Tensor:
        step, noise = torch.randint(1000, (len(x),)), torch.randn_like(x)
        return (unet(scheduler.add_noise(x, noise, step), step).sample - noise).square().mean()

    fit(unet, loss, lambda n: train[torch.randint(len(train), (n,))], steps, batch=64)
    return unet, scheduler


if SMOKE:
    make(2)
if not FOLDER.exists():
    unet, scheduler = make(2500)
    unet.save_pretrained(FOLDER / "unet")
    scheduler.save_pretrained(FOLDER / "scheduler")
