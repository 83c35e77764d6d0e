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
# # Fluid
#
# The velocity of an incompressible fluid is known at twenty-four points. What does the rest of the
# field look like? A diffusion model knows how turbulence looks, while zero divergence and the
# observations are constraints.
#
# This page names PPR (Predict-Project-Renoise), the paper's method; leave out `method` for the
# default. The weights of the prior are stored next to the page; without them, training takes five
# minutes on one core. To run this page elsewhere, put {download}`small.py` next to it.

# %%
import math

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from small import ConvNet, fit, kept, short, turbulence
from torch import Tensor

import feasibly
from feasibly import metrics
from feasibly.constraints import DivergenceFree, energy_spectrum
from feasibly.constraints.operators import derivative
from feasibly.samplers import PostHoc

# %% [markdown]
# ## The data
#
# The data are two-dimensional turbulence on a periodic square. A pseudo-spectral solver integrates
# the vorticity equation on 48 x 48 points, with viscosity, drag, and random forcing on a ring of
# wavenumbers. The snapshots keep the wavenumbers that 24 x 24 points resolve, so that they are
# free of divergence.
#
# ```{literalinclude} small.py
# :language: python
# :pyobject: turbulence
# ```

# %%
fields = turbulence(runs=short(32, 4), frames=short(60, 4))
scale = fields[:-2].std()
train = (fields[:-2] / scale).flatten(end_dim=1)  # two runs are held out
test = (fields[-2:] / scale).flatten(end_dim=1)
train.shape, test.shape

# %% [markdown]
# ## The prior
#
# The prior is a small U-shaped network with circular padding and EDM's preconditioning. It is not
# divergence-free by construction, but learns this property approximately.

# %%
torch.manual_seed(0)
network = ConvNet(channels=2)
denoiser = feasibly.Karras(network, feasibly.schedules.LogLogit())


def sample(n: int) -> Tensor:
    """Samples snapshots, moved by a random distance."""
    x = train[torch.randint(len(train), (n,))]
    i, j = torch.randint(24, (2,)).tolist()
    return x.roll((i, j), dims=(-2, -1))


def loss(x: Tensor) -> Tensor:
    return denoiser.loss(x, torch.rand(len(x)), torch.randn_like(x)).mean()


kept("fluid", network, lambda steps: fit(network, loss, sample, steps, batch=16), steps=2400)

# %% [markdown]
# Look at samples of the prior before you constrain it. The vorticity of the data is above, that of
# samples below.

# %%
H = 2 * math.pi / 24


def vorticity(x: Tensor) -> Tensor:
    return derivative(x[..., 1, :, :], -2, H) - derivative(x[..., 0, :, :], -1, H)


def show(ax: Axes, x: Tensor, title: str = "") -> None:
    """Shows the vorticity, with the first axis to the right and the second upward."""
    ax.imshow(vorticity(x).T, origin="lower", cmap="RdBu_r", vmin=-10, vmax=10)
    ax.set(xticks=[], yticks=[], title=title)


members, steps = short(8, 2), short(64, 4)
shape = (2, 24, 24)
free = feasibly.sample(
    denoiser, None, members, shape, method=feasibly.Ancestral(steps=steps)
).samples

figure, axes = plt.subplots(2, 5, figsize=(9, 3.8), layout="constrained")
for j, (top, bottom) in enumerate(axes.T):
    show(top, test[(7 * j) % len(test)])
    show(bottom, free[j % members])
plt.show()

# %% [markdown]
# ## The constraints
#
# The velocity is known at twenty-four points of a field that the prior has not seen (48 numbers),
# and the divergence is zero everywhere (576 numbers). The tolerances allow an error of 0.01
# standard deviations at each point, and a mean squared divergence of 1e-6, where the mean squared
# vorticity is about 10.

# %%
truth = test[0]
points = torch.randperm(24 * 24, generator=torch.Generator().manual_seed(3))[:24]


def at_points(x: Tensor) -> Tensor:
    return x.flatten(start_dim=2)[:, :, points]


observed = feasibly.Observation(at_points, at_points(truth[None])[0], tolerance=48 * 0.01**2)
incompressible = DivergenceFree((H, H), tolerance=1e-6)
both = feasibly.Composite([observed, incompressible])
print(f"divergence of the prior's samples: {incompressible.violation(free).mean():.1e}")

# %%
result = feasibly.sample(denoiser, both, members, shape, method=feasibly.TunedPPR(steps=steps))
print(result)

# %% [markdown]
# For comparison, a post-hoc projection samples without the constraint, and moves each sample to a
# feasible one at the end.

# %%
search = feasibly.minimizers.LBFGS(steps=short(400, 4))
post_hoc = feasibly.sample(
    denoiser, both, members, shape, method=PostHoc(steps=steps, minimize=search)
)
print(post_hoc)

# %%
figure, axes = plt.subplots(1, 5, figsize=(10, 2.4), layout="constrained")
show(axes[0], truth, "truth, and points")
axes[0].scatter(points // 24, points % 24, s=6, color="black")
show(axes[1], result.samples[0], "PPR, a member")
show(axes[2], result.samples[1], "PPR, another")
show(axes[3], result.samples.mean(dim=0), "PPR, mean")
show(axes[4], post_hoc.samples[0], "post-hoc projection")
plt.show()

# %% [markdown]
# Both are feasible, but the post-hoc projection changes its samples at the twenty-four points
# only: it leaves spikes that no fluid has, and a wrong flow between them. PPR uses the prior to
# carry the observations to the rest of the field.
#
# ## How accurate is it?
#
# Because the truth is known here, we can measure the error of single samples, that of their mean
# (skill), and how far apart the samples are (spread). A constant guess of zero has an error of 1.

# %%
reference = truth[None, None]  # one case, one time
for name, run in {"PPR": result, "post-hoc projection": post_hoc}.items():
    x = run.samples[None, :, None]
    scores = {
        "feasible": run.feasible.double().mean(),
        "error": metrics.rmse(x, reference),
        "skill": metrics.skill(x, reference),
        "spread": metrics.spread(x),
        "spread / skill": metrics.spread_skill_ratio(x, reference),
    }
    print(f"{name:>20}: " + ", ".join(f"{k} {v.item():.2f}" for k, v in scores.items()))

# %% [markdown]
# PPR's samples are close to the truth, but too close to one another: spread / skill is well below
# 1, for [this reason](report.py#spread-and-skill). Do not take error bars from this ensemble.
#
# ## Does the spectrum agree?
#
# A spectrum shows what the eye may miss: the energy at each wavenumber, averaged over fields.

# %%
figure, ax = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
curves = {
    "data": test,
    "prior": free,
    "PPR": result.samples,
    "post-hoc projection": post_hoc.samples,
}
for name, x in curves.items():
    energy = energy_spectrum(x, dims=2).sum(dim=1).mean(dim=0)
    ax.loglog(range(1, 13), energy[1:13], label=name, linestyle="--" if name == "data" else "-")
ax.set(xlabel="wavenumber", ylabel="energy")
ax.legend()
plt.show()

# %% [markdown]
# At small scales the post-hoc projection has a hundred times the energy of the data. PPR has a
# half to a third of it: its samples are somewhat too smooth, as their spread is too narrow. If the
# spectrum matters to you, add it as a constraint (`feasibly.constraints.Spectrum`).
