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
# # Images: in-painting, brightness, symmetry
#
# Can you complete half of an image, set its brightness, or ask for symmetry, without training a
# model for each task? Yes: each task is a constraint on the same model.
#
# The model is a diffusion model of handwritten digits with 8 x 8 pixels, in a folder as diffusers
# writes it. It is small because it is trained here; a large one works in the same way. The page
# names PPR, the paper's method; leave out `method` for the default. To run it elsewhere, put
# {download}`small.py` next to it.

# %%
import matplotlib.pyplot as plt
import torch
from diffusers import DDPMScheduler, UNet2DModel
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from small import SMOKE, WEIGHTS, fit, image_net, short
from torch import Tensor
from torch.nn.functional import pad

import feasibly
from feasibly.constraints import Integral, Mask
from feasibly.samplers import PostHoc

# %% [markdown]
# ## The data
#
# The data are the 1797 digits of scikit-learn, scaled to [-1, 1] as usual. The last 360 are held
# out.

# %%
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
labels = torch.tensor(digits.target)
train, test = images[:-360], images[-360:]
train.shape, f"standard deviation {train.std():.2f}"

# %% [markdown]
# ## The prior
#
# A `UNet2DModel` predicts the noise, with a `DDPMScheduler`. The `save_pretrained` of both writes
# the folder that feasibly reads.
#
# ```{literalinclude} small.py
# :language: python
# :pyobject: image_net
# ```

# %%
FOLDER = WEIGHTS / "digits"


def make(steps: int) -> tuple[UNet2DModel, DDPMScheduler]:
    """Trains a model on the digits."""
    torch.manual_seed(0)
    unet = image_net(8)
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

denoiser = feasibly.wrap(FOLDER, data=test[:64])
print(denoiser)

# %% [markdown]
# `wrap` also tests that the network denoises the images in `data`. The folder's scheduler states
# the noise levels, the steps and the scaling.
#
# ## Do samples look like digits?
#
# There is no formula for "looks like a digit", but two checks help: the distance to the nearest
# training image, and a classifier. *Near* means within the distance of 99 % of the held-out
# images.

# %%
neighbours = KNeighborsClassifier(5).fit(train.flatten(1).numpy(), labels[:-360].numpy())


def nearest(x: Tensor) -> Tensor:
    """The distance to the nearest training image."""
    return torch.tensor(neighbours.kneighbors(x.flatten(1).numpy(), 1)[0][:, 0])


limit = nearest(test).quantile(0.99)
print(f"held-out images: median {nearest(test).median():.2f}, 99 % within {limit:.2f}")


def report(name: str, run: feasibly.Result) -> None:
    distance = nearest(run.samples)
    feasible, near = (share.double().mean() for share in (run.feasible, distance <= limit))
    print(f"{name}: {feasible:.0%} feasible, {near:.0%} near, median {distance.median():.2f}")


def show(rows: dict[str, Tensor], columns: int = 12) -> None:
    """Shows rows of images."""
    _, axes = plt.subplots(len(rows), figsize=(8, len(rows)), layout="constrained", squeeze=False)
    for ax, (name, x) in zip(axes[:, 0], rows.items(), strict=True):
        strip = torch.cat([pad(image[0], (1, 1, 0, 0), value=-1) for image in x[:columns]], dim=1)
        ax.imshow(strip, cmap="gray_r", vmin=-1, vmax=1)
        ax.set_title(name, fontsize=9, loc="left")
        ax.set_axis_off()
    plt.show()


members, shape = short(12, 2), (1, 8, 8)
free = feasibly.sample(
    denoiser, None, members, shape, method=feasibly.Ancestral(steps=short(128, 4))
)
show({"data": test, "prior": free.samples})
report("prior", free)

# %% [markdown]
# ## In-painting
#
# The upper half of an image is known, to a fifth of a grey level. PPR begins to project at a noise
# level, `sigma_max`, that we scale because the standard deviation of the data is 0.75 and not 1.

# %%
known = torch.zeros(shape, dtype=torch.bool)
known[:, :4] = True
ppr = feasibly.TunedPPR(sigma_max=7.5, steps=short(64, 3))

rows = {}
for index in range(short(3, 1)):
    image = test[3 * index + 1]
    half = Mask(known, image, tolerance=32 * 0.025**2)
    run = feasibly.sample(denoiser, half, members, shape, method=ppr)
    digits_found = neighbours.predict(run.samples.flatten(1).numpy()).tolist()
    report(f"a {labels[-360:][3 * index + 1]}, completed to {sorted(set(digits_found))}", run)
    rows[f"known half, truth, completions ({index + 1})"] = torch.cat(
        (torch.where(known, image, -1.0)[None], image[None], run.samples)
    )
show(rows)

# %% [markdown]
# The completions continue the strokes of the known half. They differ little, because half of 64
# pixels leaves little open, and because PPR's [spread is too narrow](report.py#spread-and-skill).
#
# A post-hoc projection paints the known half over a finished image. If the halves belong to
# different digits, they do not meet.

# %%
unguided = PostHoc(steps=short(64, 3))
painted = feasibly.sample(denoiser, half, members, shape, method=unguided)
report("post-hoc projection", painted)
show({"post-hoc projection": painted.samples, "PPR": run.samples})

# %% [markdown]
# ## Brightness
#
# The brightness is the mean of all pixels. In the data it is -0.39 and varies little. We ask for
# less ink and for more.

# %%
print(f"data: mean {train.mean():.2f}, spread {train.mean(dim=(1, 2, 3)).std():.2f}")
rows, late = {}, feasibly.TunedPPR(sigma_max=0.6, steps=short(32, 3))
for brightness in (-0.5, -0.39, -0.25):
    ink = Integral((-3, -2, -1), brightness, tolerance=1e-6)
    run = feasibly.sample(denoiser, ink, members, shape, method=late)
    report(f"mean {brightness}", run)
    rows[f"mean {brightness}"] = run.samples
show(rows)

# %% [markdown]
# ## Symmetry
#
# Any differentiable function can be a constraint. Here the right half must mirror the left half,
# which gives 32 residual components.


# %%
def asymmetry(x: Tensor) -> Tensor:
    return (x - x.flip(-1))[..., :4]


mirror = feasibly.Equality(asymmetry, tolerance=32 * 0.025**2)
run = feasibly.sample(denoiser, mirror, members, shape, method=ppr)
mirrored = feasibly.sample(denoiser, mirror, members, shape, method=unguided)
report("PPR", run)
report("post-hoc projection", mirrored)
show({"PPR": run.samples, "post-hoc projection": mirrored.samples})

# %% [markdown]
# PPR chooses the digits that are symmetric: 0, 1 and 8. The post-hoc projection takes any digit,
# and averages it with its mirror image.
#
# ## What to know
#
# * Nothing is clipped. A scheduler's `step` often clips the estimate to [-1, 1], but the wrapped
#   network does not, because a clipped estimate has no gradient. If pixels must stay in that
#   range, add `Bounds(-1, 1, tolerance)`.
# * A latent model needs the constraint [behind its decoder](model.py#models-of-latents).
# * The prior was trained for minutes on 1437 images of 8 x 8 pixels. It may reproduce images that
#   it has memorised, which the distances above do not show.
