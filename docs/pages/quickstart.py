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
# ## Install
#
# In a virtual environment with Python 3.11 or later, in the folder of the clone:
#
# ```shell
# pip install torch==2.13.0 -e .
# ```
#
# If you have torch already, leave it out.
#
# ## Sample
#
# You need two things:
#
# * A **denoiser**, made of a pretrained model. This one comes with the package. It was trained on
#   points of a checkerboard in the plane.
# * A **constraint**: a function that is zero where the constraint holds, and a tolerance. The
#   function gets all samples at once, with shape (B, 2), and returns one number for each.

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
# `feasibly.sample` chooses the method and its settings, and says why. [Read the report](report.py)
# explains each line.
#
# * `result.samples` has the samples, with shape (256, 2).
# * `result.feasible` marks the members within the tolerance.
# * `result.plausible` marks the members that look like data to the model.
#
# On a terminal and in a notebook a line shows how far the run is, from its first second on, with the
# time left. Before a run of more than ten seconds a sentence says what it is expected to cost.
# `progress=True` shows them elsewhere too, for example in the log of a job, and `progress=False`
# nowhere. `feasibly.plan(denoiser, circle, shape=(2,)).estimate(256)` returns that sentence without
# sampling: the network evaluations of each of 256 samples, and the time at the measured rate.
#
# ## Look
#
# Feasible is not enough. The samples must also look like the model's data. *Post-hoc projection*
# shows the difference: it samples without the constraint, and then moves each sample to a feasible
# point nearby.

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
# The warning is right: a quarter of the projected members does not look like data. Here we know the
# board, so we can count the samples on it.

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
# `result.to_xarray()` has the members with their violations (`pip install xarray`), and
# `feasibly.plot(result)` draws them.
#
# ## From the shell
#
# The shipped models need no Python. Your own model and constraint come from functions of your
# module:
#
# ```shell
# python -m feasibly demo
# python -m feasibly sample --denoiser checkerboard --constraint 3 --members 256
# python -m feasibly sample --denoiser my_project:denoiser --constraint my_project:constraint --shape 32 32
# ```
#
# `sample` writes the samples and a page about the run to `out/sample`.
#
# ## Next
#
# * [Bring your model](model.py)
# * [State your constraint](constraint.py)
# * [Can I trust it?](trust.py)
