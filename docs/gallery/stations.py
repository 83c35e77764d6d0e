# %% [markdown]
# # Weather between stations
#
# Forty-one stations report geopotential and wind at noon, with measurement errors of a tenth of
# each variable's standard deviation. What did the weather look like between them? The model is [a
# diffusion model of days](../weather.md) of a toy shallow-water model, in the latent space of an
# autoencoder, so that the stations observe decoded fields.

# %%
import torch

import feasibly
from feasibly.constraints import Decoded, FrameDecoder, Observation
from feasibly.problems.weather import Weather

planet = Weather("stations")
day = planet.reference(0)  # a day that the model has not seen, with shape (24, 3, 32, 64)
places = planet.points("stations", 0)  # a mask with shape (32, 64)


def reports(x):  # in units of standard deviations
    return planet.autoencoder.standardize(x)[..., places]


values = reports(day[None, [12]])[0]
measured = values + 0.1 * torch.randn(values.shape, generator=torch.Generator().manual_seed(0))
noon = FrameDecoder(planet.autoencoder.decode, (12,))
stations = Decoded(Observation(reports, measured, noise=0.1), noon)
result = feasibly.sample(planet.denoiser, stations, 8, planet.shape, seed=0)
print(result)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

fields = planet.decode(result.samples)[:, 12, 2]  # the northward wind at noon
panels = {
    "truth, and stations": day[12, 2],
    "mean of 8 samples": fields.mean(dim=0),
    "a sample": fields[0],
    "another sample": fields[1],
    "standard deviation": fields.std(dim=0),
    "error of the mean": (fields.mean(dim=0) - day[12, 2]).abs(),
}
figure, axes = plt.subplots(3, 2, figsize=(9, 6.6), layout="constrained")
limit = day[12, 2].abs().max().item()
lat, lon = places.nonzero().T
for k, (ax, (title, x)) in enumerate(zip(axes.flat, panels.items(), strict=True)):
    style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    if k >= 4:
        style = {"cmap": "viridis", "vmin": 0, "vmax": limit / 2}
    image = ax.imshow(
        x, origin="lower", extent=(0, 360, -90, 90), interpolation="bilinear", **style
    )
    ax.set(title=title, xticks=[], yticks=[])
    if k % 2:
        figure.colorbar(image, ax=ax, label="m/s")
axes[0, 0].plot((lon + 0.5) * 5.625, (lat + 0.5) * 5.625 - 90, "k.", markersize=4)

# %% [markdown]
# The samples agree with the stations: chi-square per observed value is about one. They differ
# where there are no stations, and there the error of their mean is largest too. The run warns that
# means and spreads may be off, because there are 123 observed values. With stations at four times
# of [four days](../weather.md#noisy-stations), spread / skill was 1.05 to 1.14.
#
# See [weather stations](../pages/stations.py) for a table of reports at four times of day, and for
# the total mass as an exact constraint in addition.
