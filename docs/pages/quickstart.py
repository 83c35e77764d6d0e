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
# # Quick start
#
# How do you sample a model under a hard constraint? This page samples points in the plane, given
# that they lie on a circle.
#
# ## Install
#
# With Python 3.11 or later, in a virtual environment and the folder of the clone:
#
# ```shell
# pip install torch==2.13.0 -e .
# ```
#
# [Install](../install.md) describes the extras.
#
# ## Sample
#
# You need two things:
#
# * A **denoiser**: a pretrained model that estimates the clean sample from a noisy one. This one
#   is shipped with the package, and was trained on points of a checkerboard.
# * A **constraint**: a function that is zero where the constraint holds, and a tolerance. The
#   function receives all samples at once, with shape (B, 2), and returns one number for each.

# %%
import feasibly
from feasibly import priors

denoiser = priors.load("checkerboard")


def on_circle(x):
    return x.square().sum(dim=1) - 1


circle = feasibly.Equality(on_circle, tolerance=1e-8)
result = feasibly.sample(denoiser, circle, 256, shape=(2,), seed=0)
print(result)

# %% [markdown]
# `feasibly.sample` chooses a method and its settings, and says why. [Read the report](report.py)
# explains each printed line.
#
# * `result.samples` holds the samples, with shape (256, 2).
# * `result.feasible` marks the samples that meet the constraint within the tolerance.
# * `result.plausible` marks the samples that look like data to the model.
# * `result.ess` is the effective sample size, and `result.standard_error(f)` returns the standard
#   error of a mean, if the samples share importance weights.
#
# A terminal or a notebook shows the progress, and the expected cost if it is more than ten
# seconds. In a job's log, pass `progress=True`. `feasibly.plan(denoiser, circle,
# shape=(2,)).estimate(256)` returns the cost of 256 samples without drawing them.
#
# ## Look
#
# Feasible samples must also look like the model's data. A *post-hoc projection*, which moves
# unconditional samples to feasible points nearby, shows the difference. This run gives a warning.

# %%
import matplotlib.pyplot as plt

plain = feasibly.sample(denoiser, None, 256, shape=(2,), seed=0)
post_hoc = feasibly.sample(denoiser, circle, 256, shape=(2,), method="post-hoc")

runs = {"the model": plain, "post-hoc projection": post_hoc, "the default": result}

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for ax, (name, run) in zip(axes, runs.items(), strict=True):
    ax.add_patch(plt.Circle((0, 0), 1, fill=False, color="tab:red", linewidth=0.6))
    ax.scatter(*run.samples.T, s=6, linewidths=0)
    ax.set(title=name, xlim=(-1.8, 1.8), ylim=(-1.8, 1.8), xticks=[], yticks=[], aspect=1)
plt.show()

# %% [markdown]
# The warning is right: a quarter of the projected samples do not look like data. Here we know the
# board, so we can count the samples that lie on it.

# %%
from feasibly.problems.distributions import Checkerboard

for name, run in runs.items():
    share = Checkerboard().in_support(run.samples).double().mean()
    print(f"{name:>20}: {share:6.1%} on the board")

# %% [markdown]
# ## Save

# %%
result.save("samples.safetensors")
again = feasibly.Result.load("samples.safetensors")
print(again.samples.shape)

# %% [markdown]
# `result.to_xarray()` returns the samples with their violations (`pip install xarray`), and
# `feasibly.plot(result)` draws them.
#
# ## From the shell
#
# The shipped models need no Python code. For your own model and constraint, name functions of your
# module that return them:
#
# ```shell
# python -m feasibly demo
# python -m feasibly sample --denoiser checkerboard --constraint 3 --members 256
# python -m feasibly sample --denoiser my_project:denoiser --constraint my_project:constraint --shape 32 32
# ```
#
# `sample` writes the samples and a report page to `out/sample`.
#
# ## Next
#
# * [Your model](model.py)
# * [Your constraint](constraint.py)
# * [Can I trust it?](trust.py)
