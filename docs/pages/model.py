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
# feasibly needs one thing of a model: the mean of the clean sample, given a noisy one. Most
# networks predict something else: the noise, a velocity, a score. `feasibly.wrap` translates.
#
# Here a shipped prior takes the place of your network. It predicts the noise, under the schedule of
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
# Say what the network predicts, and the schedule of its training. Print the result, and read what
# it assumes.

# %%
denoiser = feasibly.wrap(network, "eps", schedule=VP())
print(denoiser)

# %% [markdown]
# | your model | how |
# |---|---|
# | a network, by what it predicts | `wrap(net, "x0")`, `"eps"`, `"v"`, `"score"` or `"velocity"`, with its `schedule` |
# | a network that takes the number of a step | `time=lambda t: 999 * t`; `(999 * t).round().long()` if it looks it up |
# | diffusers: hub, folder, pipeline, model | `wrap("hub:org/name")`, `wrap("folder")`, `wrap(pipeline)`, `wrap(model, schedule=scheduler)` ([Images](images.py)) |
# | EDM, EDM2, k-diffusion: D(x, sigma) | `wrap(net, "edm")` |
# | score_sde | `wrap(net, "score_sde", VP())`, `SubVP()` or `VE(...)` |
# | flow matching, data at s = 1 | `wrap(net, "torchcfm")` or `wrap(net, "flow_matching")` ([Flow models](flow.py)) |
# | PhysicsNeMo | `wrap(predictor, "physicsnemo", scheduler)` |
# | azula, or any callable `(x_t, t)` with a `schedule` | as it is |
#
# ## Test it
#
# Most mistakes are silent: a wrong sign or a reversed time also gives samples, but bad ones. Pass
# some clean samples as `data`, and `wrap` tests the network on them. Here are two mistakes.

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
# ## Data as they are
#
# Data need not be standardised, but the schedule's noise levels must fit them: the lowest at most a
# fifth of each channel's standard deviation, and the highest at least five times as large. A run,
# `wrap(..., data=)` and `check` compare them, and name the channel that does not fit. A channel is
# the first axis of a sample, or an element of a vector.
#
# * **A mean far from zero** is found by `feasibly.sample`, for each member under its own conditions.
#   With `data`, or with `mean` and `scale`, runs begin with what you give. Then the highest noise may
#   be as low as twice the standard deviation.
# * **Channels of unlike scale** are sampled in units of each.
# * **Centred data**, such as molecules around zero, are recognised in `data`, and states are projected
#   onto such samples. Without `data`, give `project=lambda x: x - x.mean(1, keepdim=True)`.
# * **Padding**: give `project=lambda x: mask * x`. Otherwise padded elements keep their noise.
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
# Give class labels or context as `conditions`: one row for each member, or one row for all. This
# network takes a shift of the board. Half of the members are shifted by ten.


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
# If the model makes latents, state the constraint on decoded samples. Any differentiable function
# can decode. For the autoencoder of a diffusers pipeline, use `feasibly.LatentDecoder(vae)`.


# %%
def decode(z):
    return torch.stack((z[:, 0].exp(), z[:, 1], z.sum(dim=1)), dim=1)


total = feasibly.Equality(lambda u: u.sum(dim=1) - 2, tolerance=1e-8)
result = feasibly.sample(denoiser, feasibly.Decoded(total, decode), 64, shape=(2,))
print(decode(result.samples).sum(dim=1)[:4], int(result.feasible.sum()), "of 64 feasible")

# %% [markdown]
# ## No network
#
# Where you know the mean of the clean sample, write it down. The time has no axes. This one is of
# normal data with independent elements of standard deviation 2.


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
# * **Test on a few states.** This prints the denoising error at each noise level, the time and
#   memory of an evaluation, and whether gradients are finite:
#
#   ```shell
#   python -m feasibly check --denoiser my_project:denoiser --constraint my_project:constraint --shape 32 32
#   ```
#
# * **Steps.** A network that knows whole steps alone, and rounds the time it gets, is sampled right up
#   to the spacing of its steps: with a thousand, no difference was measured.
# * **Precision.** Weights in half precision move the estimate by about 0.001, so that no sample meets
#   a tight tolerance. `feasibly.MixedPrecision(denoiser)` uses bfloat16 at high noise only.
# * **Compilation.** Networks of `torch.compile` are taken. A step takes several backward passes, so
#   first `import torch._functorch.config` and set `torch._functorch.config.donated_buffer = False`.
#
# Next: [state your constraint](constraint.py).
