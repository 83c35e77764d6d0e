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
# # Trajectories
#
# A vehicle starts at a known place, must arrive at another, and must avoid obstacles. Which paths
# can it take? The prior knows how the vehicle drives, at constant speed and without sharp turns,
# but has never seen an obstacle.
#
# Avoiding obstacles is an *inequality*, which many paths of the prior satisfy. Start and goal are
# *equalities*, which none of them satisfies. `feasibly.sample` treats the two differently.
#
# To run this page elsewhere, put {download}`small.py` next to it.

# %%
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from small import PathNet, fit, kept, paths, short
from torch import Tensor

import feasibly
from feasibly.constraints import Mask, Obstacles
from feasibly.samplers import HDC, PostHoc

# %% [markdown]
# ## The data
#
# The data are paths of 24 points in the plane, made by this function:
#
# ```{literalinclude} small.py
# :language: python
# :pyobject: paths
# ```
#
# ## The prior
#
# The prior is a small network of convolutions along the path, trained for a few minutes.

# %%
POINTS, STEP = 24, 0.14
data = paths(short(65536, 512), POINTS, STEP)
torch.manual_seed(0)
network = PathNet()
denoiser = feasibly.Karras(network, feasibly.schedules.LogLogit())


def sample(n: int) -> Tensor:
    return data[torch.randint(len(data), (n,))]


def loss(x: Tensor) -> Tensor:
    return denoiser.loss(x, torch.rand(len(x)), torch.randn_like(x)).mean()


def train(steps: int) -> list[float]:
    return fit(network, loss, sample, steps, batch=128)


kept("trajectories", network, train, steps=3000)

# %% [markdown]
# In the data every step is 0.14 long, and all turns are below 0.43 radians. We call a sampled path
# *drivable* if it comes close to that.

# %%
DISCS = torch.tensor([[-0.7, 0.3], [0.0, -0.4], [0.55, 0.35]])
RADII = torch.tensor([0.35, 0.4, 0.25])


def steps_of(x: Tensor) -> Tensor:
    return x.diff(dim=1).norm(dim=2)


def turns_of(x: Tensor) -> Tensor:
    d = x.diff(dim=1)
    turn = torch.atan2(d[..., 1], d[..., 0]).diff(dim=1)
    return (turn + torch.pi).remainder(2 * torch.pi) - torch.pi


def drivable(x: Tensor) -> Tensor:
    """Which paths keep their speed within a fifth, and do not turn sharper than the data by half."""
    steady = ((steps_of(x) / STEP - 1).abs() < 0.2).all(dim=1)
    return steady & (turns_of(x).abs() < 0.65).all(dim=1)


def show(ax: Axes, x: Tensor, title: str) -> None:
    for center, radius in zip(DISCS.tolist(), RADII.tolist(), strict=True):
        ax.add_patch(plt.Circle(center, radius, color="tab:orange", alpha=0.35))
    ax.plot(*x.permute(2, 1, 0), color="tab:blue", linewidth=0.5)
    ax.set(title=title, xlim=(-2.1, 1.9), ylim=(-1.7, 1.7), xticks=[], yticks=[], aspect=1)


members, shape = short(128, 4), (POINTS, 2)
steps = short(64, 4)
free = feasibly.sample(
    denoiser, None, members, shape, method=feasibly.Ancestral(steps=steps)
).samples
for name, x in {"data": data[:1024], "prior": free}.items():
    print(f"{name:>5}: {drivable(x).double().mean():.1%} drivable")

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
show(axes[0], data[:64], "data")
show(axes[1], free[:64], "the prior")
plt.show()

# %% [markdown]
# ## Avoid obstacles
#
# `Obstacles` is an inequality: every point is at least a radius away from each centre. Between two
# points a path may cut a corner by up to half a step, so we add half a step to the radii.

# %%
keep_out = Obstacles(DISCS, RADII + STEP / 2, tolerance=0.005**2)
print(
    f"paths of the prior that keep out by themselves: {keep_out.is_feasible(free).double().mean():.0%}"
)

avoiding = feasibly.sample(
    denoiser, keep_out, members, shape, method=feasibly.TunedPPR(steps=steps)
)
print(avoiding)

# %% [markdown]
# The prior is sampled up to four times, and the paths that avoid the obstacles are kept. PPR bends
# only the rest. Most results are therefore exact samples of the prior, restricted to paths that
# avoid the obstacles. `result.trace` shows the attempts.

# %%
for attempt in range(6):
    last = [s for s in avoiding.trace if s.attempt == attempt][-1:]
    for s in last:
        print(f"attempt {attempt}: {s.members:3d} paths, {s.feasible:.0%} of them feasible")

# %% [markdown]
# ## Arrive
#
# Now we add a start and a goal: four numbers, known to 5 millimetres if the unit is a metre. A
# `Composite` joins the two constraints.

# %%
ends = torch.zeros(shape, dtype=torch.bool)
ends[0], ends[-1] = True, True
places = torch.zeros(shape)
places[0], places[-1] = torch.tensor([-1.6, 0.0]), torch.tensor([1.2, 0.1])
arrive = Mask(ends, places, tolerance=4 * 0.005**2)
mission = feasibly.Composite([arrive, keep_out])

runs = {
    "PPR": feasibly.TunedPPR(steps=steps),
    "HDC": HDC(steps=short(256, 4)),
    "post-hoc projection": PostHoc(steps=steps),
}

figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for ax, (name, method) in zip(axes, runs.items(), strict=True):
    result = feasibly.sample(denoiser, mission, members, shape, method=method)
    good = result.feasible & drivable(result.samples)
    evaluations = result.evaluations
    print(
        f"{name:>20}: {result.feasible.double().mean():.0%} feasible, "
        f"{good.double().mean():.0%} feasible and drivable, "
        f"{evaluations.forward} forward and {evaluations.backward} backward evaluations"
    )
    show(ax, result.samples[:64], name)
plt.show()

# %% [markdown]
# The post-hoc projection moves the ends to their places, and points out of discs, so that every
# path has a jump. PPR and HDC find routes that a vehicle could take, to the left, to the right and
# between the discs. About half of their paths are drivable. The others break the limits on speed
# or turns in places, above all where the detour is too long for a path of length 3.2.
#
# To be strict, add the speed as a constraint, with `feasibly.constraints.Lengths` between
# consecutive points, or keep only the samples that pass the test.
