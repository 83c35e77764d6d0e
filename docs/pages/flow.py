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
# # Flow models
#
# A flow-matching model predicts a velocity $v$ instead of the noise. Can you constrain it in the
# same way? Yes: `wrap` makes a denoiser of it, and every method and every constraint works as
# before.
#
# The reason is that a flow mixes a clean sample and noise, $x_s = s \, x_0 + (1 - s) \, \epsilon$.
# If noise and data were paired independently in training, the mean of $x_0$ given $x_s$ is
# $x_s + (1 - s) \, v$.
#
# This page uses a flow-matching prior for the paths of [Trajectories](trajectories.py). To run it
# elsewhere, put {download}`small.py` next to it.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from small import PathNet, fit, kept, paths, short
from torch import Tensor

import feasibly
from feasibly.constraints import Mask, Obstacles
from feasibly.samplers import ECI, HDC, PCFM

# %% [markdown]
# ## The prior
#
# The network is called as `net(s, x)`, with noise at s = 0 and data at s = 1, as in torchcfm. It
# is trained by conditional flow matching, with noise and data paired independently.

# %%
POINTS, STEP = 24, 0.14
data = paths(short(65536, 512), POINTS, STEP)
torch.manual_seed(0)


class Velocity(PathNet):
    def forward(self, s: Tensor, x: Tensor) -> Tensor:
        return super().forward(x, 4 * s)


network = Velocity()


def sample(n: int) -> Tensor:
    return data[torch.randint(len(data), (n,))]


def loss(x: Tensor) -> Tensor:
    noise, s = torch.randn_like(x), torch.rand(len(x))
    x_s = s[:, None, None] * x + (1 - s[:, None, None]) * noise
    return (network(s, x_s) - (x - noise)).square().mean()


def train(steps: int) -> list[float]:
    return fit(network, loss, sample, steps, batch=128)


kept("flow", network, train, steps=3000)

denoiser = feasibly.wrap(network, "torchcfm", data=data[:512])
print(denoiser)

# %% [markdown]
# If your network is called as `net(x, s)`, its kind is `"flow_matching"`. State another path by
# `schedule=Flow(A, S)`, or by the path or matcher of the library itself. Flows that run from data
# to noise, as in diffusers, are read from their scheduler.
#
# ## The same constraint
#
# As in [Trajectories](trajectories.py), the constraint has a start, a goal and obstacles.

# %%
DISCS = torch.tensor([[-0.7, 0.3], [0.0, -0.4], [0.55, 0.35]])
RADII = torch.tensor([0.35, 0.4, 0.25])
shape = (POINTS, 2)
ends, places = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
ends[0], ends[-1] = True, True
places[0], places[-1] = torch.tensor([-1.6, 0.0]), torch.tensor([1.2, 0.1])
arrive = Mask(ends, places, tolerance=4 * 0.005**2)
keep_out = Obstacles(DISCS, RADII + STEP / 2, tolerance=0.005**2)
mission = feasibly.Composite([arrive, keep_out])


def drivable(x: Tensor) -> Tensor:
    """Which paths keep their speed within a fifth, and turn no sharper than the data by half."""
    d = x.diff(dim=1)
    turn = torch.atan2(d[..., 1], d[..., 0]).diff(dim=1)
    turn = (turn + torch.pi).remainder(2 * torch.pi) - torch.pi
    steady = ((d.norm(dim=2) / STEP - 1).abs() < 0.2).all(dim=1)
    return steady & (turn.abs() < 0.65).all(dim=1)


def compare(constraint: feasibly.Constraint, runs: dict[str, feasibly.Method]) -> None:
    """Samples by each method, prints shares and evaluations, and plots paths."""
    _, axes = plt.subplots(1, len(runs), figsize=(10, 3), layout="constrained")
    for ax, (name, method) in zip(axes, runs.items(), strict=True):
        result = feasibly.sample(denoiser, constraint, short(64, 4), shape, method=method)
        good = result.feasible & drivable(result.samples)
        evaluations = result.evaluations
        print(
            f"{name:>20}: {result.feasible.double().mean():.0%} feasible, "
            f"{good.double().mean():.0%} feasible and drivable, "
            f"{evaluations.forward} forward and {evaluations.backward} backward evaluations"
        )
        if constraint is mission:
            for center, radius in zip(DISCS.tolist(), RADII.tolist(), strict=True):
                ax.add_patch(plt.Circle(center, radius, color="tab:orange", alpha=0.35))
        ax.plot(*result.samples.permute(2, 1, 0), color="tab:blue", linewidth=0.5)
        ax.set(title=name, xlim=(-2.1, 1.9), ylim=(-1.7, 1.7), xticks=[], yticks=[], aspect=1)
    plt.show()


compare(
    mission,
    {
        "PPR": feasibly.TunedPPR(steps=short(64, 4)),
        "HDC": HDC(steps=short(256, 4)),
        "PCFM": PCFM(steps=short(64, 4)),
    },
)

# %% [markdown]
# All paths end at the goal and avoid the obstacles. PPR projects through the network, and bends
# the paths early. HDC moves points the shortest way, and thereby gives up the constant speed. PCFM
# keeps its initial noise, which sends some paths elsewhere, so that it bends them at their ends.
#
# ## Methods made for flows
#
# ECI and PCFM go from noise to data in few steps. They keep their noise, because the two ends of a
# straight path belong together. ECI needs a projection in closed form. `Mask` has one, so here we
# use the start and the goal without obstacles.

# %%
compare(
    arrive,
    {
        "PPR": feasibly.TunedPPR(steps=short(32, 4)),
        "ECI, fixed noise": ECI(steps=short(100, 4)),
        "ECI, fresh noise": ECI(steps=short(100, 4), resample=1),
    },
)

# %% [markdown]
# With fixed noise, the paths stay where the noise sent them, and only their ends move. With fresh
# noise they find the goal, but their spread is too narrow.
#
# ## Which flows are supported
#
# Renoising adds Gaussian noise to a clean sample. This matches training only if noise and data
# were paired independently, and if the noise was white. `wrap` warns of optimal-transport pairs,
# and refuses other noise.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    feasibly.wrap(network, "torchcfm", coupling="ot")
print(caught[-1].message)

try:
    feasibly.wrap(network, "torchcfm", source="gaussian process")
except feasibly.DenoiserError as error:
    print(error)
