# %% [markdown]
# # A turbulence spectrum
#
# Generative models of fluids can lack energy at small scales. Can the samples of a pretrained
# model be given a known energy spectrum, and zero divergence, without retraining? Here the
# spectrum is that of the data at eleven wavenumbers, for each component of the velocity, and the
# model is [a small diffusion model of two-dimensional turbulence](../pages/fluid.py).

# %%
import math

from safetensors.torch import load_file
from small import ConvNet, turbulence

import feasibly
from feasibly.constraints import Composite, DivergenceFree, Spectrum, energy_spectrum

network = ConvNet(channels=2)
network.load_state_dict(load_file("docs/weights/fluid.safetensors"))
denoiser = feasibly.Karras(network.eval().requires_grad_(False), feasibly.schedules.LogLogit())

fields = turbulence(runs=32, frames=60)  # with shape (32, 60, 2, 24, 24)
data = (fields[-2:] / fields[:-2].std()).flatten(end_dim=1)
energy = energy_spectrum(data, dims=2).mean(dim=(0, 1))[1:12]
h = 2 * math.pi / 24
law = Composite([DivergenceFree((h, h), tolerance=1e-6), Spectrum(energy, dims=2, atol=1e-3)])
result = feasibly.sample(denoiser, law, 8, (2, 24, 24), seed=0)
print(result)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

from feasibly.constraints.operators import derivative

free = feasibly.sample(denoiser, None, 8, (2, 24, 24), seed=0).samples
figure = plt.figure(figsize=(10, 4.2), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.4, 1))
axes = left.subplots(2, 3)
for row, (name, x) in zip(
    axes, {"data": data[::17], "samples": result.samples}.items(), strict=True
):
    for ax, u in zip(row, x, strict=False):
        vorticity = derivative(u[1], -2, h) - derivative(u[0], -1, h)
        ax.imshow(vorticity.T, cmap="RdBu_r", vmin=-10, vmax=10, interpolation="bicubic")
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(f"vorticity of {name}")
ax = right.subplots()
for (name, x), style in zip(
    {"data": data, "model": free, "with the constraint": result.samples}.items(),
    ("k--", "tab:orange", "tab:blue"),
    strict=True,
):
    ax.loglog(range(1, 12), energy_spectrum(x, dims=2).mean(dim=(0, 1))[1:12], style, label=name)
ax.set(xlabel="wavenumber", ylabel="energy")
ax.legend()

# %% [markdown]
# Each sample has the mean spectrum of the data: the amplitude at each wavenumber agrees to 1e-3,
# and the mean squared divergence is below 1e-6. Single fields of the data differ from their mean
# spectrum, so that the samples have less variety in energy than the data. The run warns that means
# and spreads may be off, because the constraint has 598 components; `feasibly.audit` tests this.
