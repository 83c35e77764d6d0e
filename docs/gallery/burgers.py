# %% [markdown]
# # Burgers' equation with exact mass
#
# A front enters from the left, and its mass is conserved: what a cell gains is what flows in. The
# initial state is known, and the inflow is not. Samples must conserve mass at all times, which is
# a nonlinear constraint, and keep the distribution of the inflow. The data are 6,400 solutions,
# and their exact denoiser is the model. Next to the default is
# [PCFM](https://arxiv.org/abs/2506.04171) by its authors' own code, on the same model and the same
# residual.

# %%
import torch

import feasibly
from experiments import peers
from experiments.tasks.solutions import fronts
from feasibly.network import Network

task = fronts("initial state")  # its constraint: the initial state and the mass at 64 times
result = feasibly.sample(task.denoiser, task.constraint, 64, task.shape, seed=0)
print(result)

torch.manual_seed(0)
velocity = peers.velocity(Network(task.denoiser))
noise = torch.randn(64, *task.shape)
theirs = peers.pcfm(
    velocity, noise, lambda u: task.constraint.residual(u.reshape(1, *task.shape))[0], 100, False
)
print("PCFM's largest error of mass:", f"{task.law(theirs).abs().max():.0e}")

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 3, figsize=(9, 5.2), layout="constrained")
rows = {"exact": task.atoms, "feasibly": result.samples, "PCFM": theirs}
for column, (title, x) in zip(axes.T, rows.items(), strict=True):
    field = x[x[:, 0, -1].argsort()[len(x) // 2]]
    image = column[0].imshow(
        field.T, origin="lower", aspect="auto", extent=(0, 1, 0, 1), vmin=0, vmax=1
    )
    column[0].set(title=f"{title}: a solution", xlabel="x", xticks=[0, 1], yticks=[])
    column[1].hist(
        x[:, 0, -1],
        bins=torch.linspace(0, 1, 17).tolist(),
        density=True,
        color="tab:blue",
        alpha=0.7,
    )
    column[1].set(xlabel="inflow, u at the left", ylim=(0, 4), xlim=(0, 1), yticks=[])
axes[0, 0].set(ylabel="time", yticks=[0, 1])
axes[1, 0].set_ylabel("density")
figure.colorbar(image, ax=axes[0], label="u")

# %% [markdown]
# Each inflow of the data is equally likely.
