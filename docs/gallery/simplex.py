# %% [markdown]
# # Portfolios on a simplex
#
# The shares of a portfolio, or of a chemical composition, are at least zero and sum to one. Can a
# model of shares be sampled on this simplex, and with a given expected return? The data are 400
# portfolios of three assets, and the model is their kernel density estimate, whose denoiser is
# exact. It does not know that shares must sum to one.

# %%
import torch
from torch.distributions import Dirichlet

import feasibly
from feasibly.constraints import Bounds, Composite, Linear
from feasibly.oracles import GaussianMixture

torch.manual_seed(0)
concentration = torch.tensor([[12.0, 4.0, 3.0], [2.0, 9.0, 6.0]])[torch.randint(2, (400,))]
data = Dirichlet(concentration).sample()
bandwidth = 0.05**2 * torch.eye(3)
denoiser = GaussianMixture(
    torch.ones(400), data, bandwidth.expand(400, 3, 3), feasibly.schedules.VP()
)

total = Linear(torch.ones(1, 3), torch.ones(1), atol=1e-6)
positive = Bounds(0.0, 1.0, atol=1e-6)
returns = torch.tensor([[0.02, 0.05, 0.09]])
earns = Linear(returns, torch.tensor([0.05]), atol=1e-6)
simplex = feasibly.sample(denoiser, Composite([total, positive]), 256, (3,), seed=0)
result = feasibly.sample(denoiser, Composite([total, earns, positive]), 256, (3,), seed=0)
print(result)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
free = feasibly.sample(denoiser, None, 256, (3,), seed=0).samples
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
panels = {
    "the model": free,
    "on the simplex": simplex.samples,
    "and a return of 5 %": result.samples,
}
for ax, (title, x) in zip(axes, panels.items(), strict=True):
    ax.fill(*corners.T, facecolor="none", edgecolor="black")
    ax.scatter(
        *(x @ corners).T,
        s=5,
        alpha=0.6,
        c=(x @ returns.T)[:, 0],
        cmap="viridis",
        vmin=0.02,
        vmax=0.09,
    )
    for name, place in zip(("bonds", "shares", "venture"), corners.tolist(), strict=True):
        ax.annotate(
            name,
            place,
            ha="center",
            xytext=(0, 5 if place[1] else -13),
            textcoords="offset points",
        )
    ax.set(xlim=(-0.15, 1.15), ylim=(-0.15, 1.05), aspect=1, title=title)
    ax.set_axis_off()
figure.colorbar(axes[2].collections[0], ax=axes, label="expected return", shrink=0.8)

# %% [markdown]
# All shares sum to one, and none is negative, to 1e-6. On the right, the expected return is 5 % as
# well, which leaves a segment, and the samples follow the model's density on it.
