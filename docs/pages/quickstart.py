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
# Install the package in a virtual environment, with Python 3.11 or later:
#
# ```
# pip install torch==2.13.0 -e .
# ```
#
# pip keeps to the version of torch that the same command names. If you have torch already, leave
# it out.
#
# ## Sample under a constraint
#
# A run needs two things: a **denoiser**, made of a pretrained model, and a **constraint**. Here
# the model is one that the package ships. It was trained on points of a checkerboard in the plane.

# %%
import matplotlib.pyplot as plt
import torch
from small import short

import feasibly
from feasibly import priors
from feasibly.problems.distributions import Checkerboard

denoiser = priors.load("checkerboard")

# %% [markdown]
# The constraint is a function of a batch of samples that is zero where the constraint holds, and a
# tolerance. This one asks for points on a circle.


# %%
def on_circle(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum(dim=1) - 1


circle = feasibly.Equality(on_circle, tolerance=1e-8)

# %% [markdown]
# `feasibly.sample` samples the ensemble. It chooses the method and its settings, and says why. The
# seed and the index of a member determine the member.

# %%
members = short(1024, 32)
result = feasibly.sample(denoiser, circle, members, shape=(2,), seed=0)
print(result)

# %% [markdown]
# The summary has the samplers and the reason for them, the number of feasible members, the
# violation, the network evaluations and the time. [Read the report](report.py) explains each.
# `result.samples` is the ensemble. `result.feasible` says which members satisfy the constraint.
#
# ## Look at it
#
# Feasible is not enough: the samples should also look like the model's data. The post-hoc
# projection shows the difference. It samples without the constraint, and moves each sample to a
# feasible point nearby at the end.

# %%
plain = feasibly.sample(denoiser, None, members, shape=(2,), seed=0)
post_hoc = feasibly.sample(denoiser, circle, members, shape=(2,), seed=0, method="post-hoc")

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
runs = {"the model": plain, "post-hoc projection": post_hoc, "the default": result}
for ax, (name, run) in zip(axes, runs.items(), strict=True):
    ax.add_patch(plt.Circle((0, 0), 1, fill=False, color="tab:red", linewidth=0.6))
    ax.scatter(*run.samples.T, s=2, linewidths=0)
    ax.set(title=name, xlim=(-2, 2), ylim=(-2, 2), xticks=[], yticks=[], aspect=1)
plt.show()

# %% [markdown]
# The board's support is known, so we can count the samples that lie on it.

# %%
board = Checkerboard()
for name, run in runs.items():
    print(f"{name:>20}: {board.in_support(run.samples).double().mean():6.1%} on the board")

# %% [markdown]
# ## Keep it
#
# A result goes to one file and comes back from it.

# %%
import tempfile
from pathlib import Path

path = Path(tempfile.mkdtemp()) / "samples.safetensors"
result.save(path)
feasibly.Result.load(path).samples.shape

# %% [markdown]
# ## From the shell
#
# The same works without a line of Python, for the shipped priors, and for a model and a constraint
# that functions of your module return:
#
# ```
# python -m feasibly demo
# python -m feasibly sample --denoiser checkerboard --constraint 3 --members 256
# python -m feasibly check --denoiser my_project:denoiser --constraint my_project:constraint --shape 32 32
# python -m feasibly methods
# ```
#
# `sample` shows a live table, and writes the samples and a page about the run to `out/sample`.
#
# Next: [bring your model](model.py), [state your constraint](constraint.py).
