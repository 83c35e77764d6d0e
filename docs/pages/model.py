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
# # Your model
#
# How do you use your own network? feasibly needs one thing from a model: the mean of the clean
# sample, given a noisy one. Most networks predict something else, such as the noise, a velocity or
# a score, and `feasibly.wrap` converts it.
#
# Here a shipped prior plays the part of your network. It predicts the noise, with the schedule of
# DDPM.

# %%
import torch

import feasibly
from feasibly import priors
from feasibly.schedules import VP

prior = priors.load("checkerboard")


def network(x_t, t):
    """Predicts the noise in x_t = alpha x_0 + sigma noise."""
    alpha, sigma = (scale[:, None] for scale in VP()(t))
    x_0 = prior.mean(x_t / alpha, sigma / alpha)
    return (x_t - alpha * x_0) / sigma


# %% [markdown]
# ## Wrap it
#
# State what the network predicts and with which schedule it was trained, and check the assumptions
# in the printed result.

# %%
denoiser = feasibly.wrap(network, "eps", schedule=VP())
print(denoiser)

# %% [markdown]
# | your model | how to wrap it |
# |---|---|
# | a network, by what it predicts | `wrap(net, "x0")`, `"eps"`, `"v"`, `"score"` or `"velocity"`, with its `schedule` |
# | a network that takes the number of a step | `time=lambda t: 999 * t`; `(999 * t).round().long()` if it looks up the step |
# | diffusers: hub, folder, pipeline, model | `wrap("hub:org/name")`, `wrap("folder")`, `wrap(pipeline)`, `wrap(model, schedule=scheduler)` ([Images](images.py)) |
# | EDM, EDM2, k-diffusion: D(x, sigma) | `wrap(net, "edm")` |
# | score_sde | `wrap(net, "score_sde", VP())`, `SubVP()` or `VE(...)` |
# | flow matching, data at s = 1 | `wrap(net, "torchcfm")` or `wrap(net, "flow_matching")` ([Flow models](flow.py)) |
# | PhysicsNeMo | `wrap(predictor, "physicsnemo", scheduler)` |
# | azula, or any callable `(x_t, t)` with a `schedule` | as it is |
#
# [Does my network work?](../networks.md) lists the architectures that were tested.
#
# ## Test it
#
# A wrong sign or a reversed time raises no error, but yields bad samples. Pass some clean samples
# as `data`, so that `wrap` tests the network on them. Without them, a run with a constraint tests
# whether the network restores unconditional samples of its own, and warns if it does not. Many wrong
# schedules pass that test. Here are two mistakes that `data` show.

# %%
from feasibly.problems.distributions import Checkerboard

data = Checkerboard().sample(512, torch.Generator().manual_seed(0)).float()
feasibly.wrap(network, "eps", schedule=VP(), data=data)  # right, so it says nothing

wrong = {
    "as a network that predicts v": {"kind": "v"},
    "as one that takes steps": {"kind": "eps", "time": lambda t: 999 * t},
}
for name, options in wrong.items():
    try:
        feasibly.wrap(network, schedule=VP(), data=data, **options)
    except feasibly.DenoiserError as error:
        print(f"wrapped {name}:\n{error}\n")

# %% [markdown]
# ## The scale of your data
#
# Data need not be standardised, but the noise levels must fit them: the lowest should be at most a
# fifth of each channel's standard deviation, and the highest at least five times that standard
# deviation. (A channel is an index of a sample's first axis.) A run, `wrap(..., data=)` and
# `check` name a channel that does not fit.
#
# * **A mean far from zero** is estimated by `feasibly.sample`, for each sample given its own
#   conditions. If you pass `data`, or `mean` and `scale`, a run starts from those, and the highest
#   noise may then be as low as twice the standard deviation.
# * **Channels of different scale** are each sampled in their own units.
# * **Centred data**, such as molecules whose atoms have mean zero, are recognised in `data`, and
#   states are projected onto such samples. Without `data`, pass `project=lambda x: x - x.mean(1,
#   keepdim=True)`.
# * **Padding** needs `project=lambda x: mask * x`. Otherwise padded elements keep their noise.
# * **Periodic coordinates**, such as angles, are right up to whole periods. State the constraint
#   through sines and cosines.

# %%
molecule = torch.randn(64, 5, 3, generator=torch.Generator().manual_seed(0))
molecule = molecule - molecule.mean(dim=1, keepdim=True)


def noise_of(x_t, t):
    """The noise in centred points of variance 4 / 5, as a network predicts it."""
    alpha, sigma = (scale[:, None, None] for scale in VP()(t))
    eps = sigma / (alpha**2 + sigma**2) * x_t
    return eps - eps.mean(dim=1, keepdim=True)


points = feasibly.wrap(noise_of, "eps", schedule=VP(), data=molecule)
bond = feasibly.Equality(lambda x: (x[:, 0] - x[:, 1]).square().sum(dim=1) - 2, tolerance=1e-6)
result = feasibly.sample(points, bond, 64, shape=(5, 3))
print(result.samples.mean(dim=1).abs().max(), int(result.feasible.sum()), "of 64 feasible")

# %% [markdown]
# ## Labels and context
#
# Pass class labels or context as `conditions`: one row for each sample, or one row for all. This
# network is conditioned on a shift of the board, which is ten for half of the samples.


# %%
def shifted(x_t, t, shift):
    alpha, _ = (scale[:, None] for scale in VP()(t))
    return network(x_t - alpha * shift, t)


shift = torch.tensor([[0.0, 0.0]] * 32 + [[10.0, 0.0]] * 32)
conditioned = feasibly.wrap(shifted, "eps", schedule=VP(), conditions={"shift": shift})
height = feasibly.Equality(lambda x: x[:, 1] - 0.5, tolerance=1e-8)
result = feasibly.sample(conditioned, height, 64, shape=(2,))
print(result.samples[:32].mean(dim=0), result.samples[32:].mean(dim=0))

# %% [markdown]
# ## Models of latents
#
# If the model generates latents, state the constraint on decoded samples. The decoder can be any
# differentiable function. For the autoencoder of a diffusers pipeline, use
# `feasibly.LatentDecoder(vae)`.


# %%
def decode(z):
    return torch.stack((z[:, 0].exp(), z[:, 1], z.sum(dim=1)), dim=1)


total = feasibly.Equality(lambda u: u.sum(dim=1) - 2, tolerance=1e-8)
result = feasibly.sample(denoiser, feasibly.Decoded(total, decode), 64, shape=(2,))
print(decode(result.samples).sum(dim=1)[:4], int(result.feasible.sum()), "of 64 feasible")

# %% [markdown]
# ## No network
#
# If you know the mean of the clean sample in closed form, write it down. `t` is a scalar tensor
# here, while a wrapped network gets one time for each state. This denoiser is exact for normal
# data with independent elements of standard deviation 2.


# %%
class Normal:
    schedule = VP()

    def __call__(self, x_t, t):
        alpha, sigma = self.schedule(t)
        return 4 * alpha / (4 * alpha**2 + sigma**2) * x_t


sphere = feasibly.Equality(lambda x: x.square().sum(dim=1) - 8, tolerance=1e-8)
print(feasibly.sample(Normal(), sphere, 64, shape=(2,)))

# %% [markdown]
# ## Before a long run
#
# * **Test a few states.** This command prints the denoising error at each noise level, the time
#   and memory of an evaluation, and whether gradients are finite:
#
#   ```shell
#   python -m feasibly check --denoiser my_project:denoiser --constraint my_project:constraint --shape 32 32
#   ```
#
# * **Discrete steps.** If a network knows integer steps only and rounds its time, the samples are
#   right up to the spacing of these steps. With a thousand steps, no difference was measured.
# * **Precision.** Weights in half precision change the estimate by about 0.001, so no sample meets
#   a tight tolerance. `feasibly.MixedPrecision(denoiser)` uses bfloat16 at high noise only.
# * **Compilation.** Networks from `torch.compile` work. Because a step takes several backward
#   passes, first `import torch._functorch.config` and set `torch._functorch.config.donated_buffer
#   = False`.
#
# Next: [Your constraint](constraint.py).
