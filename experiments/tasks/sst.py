"""Monthly sea-surface temperature along the equator, and its means over blocks of points.

The data are the UK Met Office's OSTIA analysis: 54 months from April 2006 on, between 5° S and
5° N, on points that are 5/9° of latitude and 5/6° of longitude apart. They come as the file
`ostia_monthly.nc` of the package `iris-sample-data`, of which the files alone are read:
`pip install --no-deps iris-sample-data h5py`. British Crown copyright, Open Government Licence.

Months are split by time: 39 to train on, three left out, and the last twelve held out. Samples are
anomalies: departures from a mean and an annual cycle that are fitted to the training months at
each point, in units of the training windows' standard deviation. A window has 16 x 32 points, all
of them at sea.

References:
    | The Operational Sea Surface Temperature and Sea Ice Analysis (OSTIA) system
    | (Donlon et al., 2012), https://doi.org/10.1016/j.rse.2010.10.017
"""

import math
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import avg_pool2d

from feasibly.denoisers import Karras
from feasibly.schedules import LogLogit

from .. import peers
from .darcy import MLP
from .learned import HOME

SHAPE = (16, 32)
"""Latitudes and longitudes of a window."""

FACTOR = 4
"""Points of a block, in each direction."""

TRAINED, HELD_OUT = slice(0, 39), slice(42, 54)
"""Months, counted from April 2006."""

SOUTH, STEP = -40 / 9, (5 / 9, 5 / 6)
"""The first latitude of a window, and the distances of points, in degrees."""

BANDS = 32
"""Groups of 16 principal components, in the prior."""

PLACES = (70, 212, 244, 276, 392)
"""First columns of windows: the Indian Ocean, three of the Pacific, and the Atlantic. Held-out
months take them in turn."""


def blocks(x: Tensor) -> Tensor:
    """Returns the means over blocks of fields, with shape (B, 4, 8)."""
    return avg_pool2d(x[:, None], FACTOR)[:, 0]


def spread(means: Tensor) -> Tensor:
    """Returns fields that are constant over each block, with shape (B, 16, 32)."""
    return means.repeat_interleave(FACTOR, dim=1).repeat_interleave(FACTOR, dim=2)


def read() -> Tensor:
    """Returns all temperatures in kelvin, with shape (54, 16, 432); nan on land.

    Raises:
        Missing: If the data or what reads them are not installed.
    """
    path = peers.data_of("iris_sample_data") / "sample_data" / "ostia_monthly.nc"
    h5py = peers.installed("h5py", "--no-deps h5py")
    with h5py.File(path) as file:
        x = torch.from_numpy(file["surface_temperature"][:, 1:17]).double()
    return x.where(x < 1e3, torch.nan)


def anomalies(x: Tensor) -> Tensor:
    """Returns departures of months from the mean and the annual cycle of the training months,
    with the shape of `x`."""
    phase = 2 * math.pi / 12 * torch.arange(len(x)).to(x)
    cycle = torch.stack([torch.ones_like(phase), phase.sin(), phase.cos()], dim=1)
    fitted = torch.linalg.pinv(cycle[TRAINED]) @ x[TRAINED].flatten(start_dim=1)
    return x - (cycle @ fitted).reshape(x.shape)


class Data:
    """The anomalies, in units of the training windows' standard deviation.

    Attributes:
        unit: That standard deviation, in kelvin.
        train: All training windows, with shape (N, 16, 32).
        held_out: A window of each held-out month, with shape (12, 16, 32).
        before: The training months at the places of these, with shape (12, 39, 16, 32).
    """

    def __init__(self, temperature: Tensor) -> None:
        x, width = anomalies(temperature), SHAPE[1]
        first = range(x.shape[2] - width + 1)
        at_sea = [j for j in first if x[0, :, j : j + width].isfinite().all()]
        train = torch.cat([x[TRAINED, :, j : j + width] for j in at_sea])
        self.unit = train.std().item()
        self.train = (train / self.unit).float()
        turn = [PLACES[i % len(PLACES)] for i in range(HELD_OUT.stop - HELD_OUT.start)]
        windows = torch.stack([x[:, :, j : j + width] for j in turn]) / self.unit
        self.held_out = torch.stack([x[i] for i, x in enumerate(windows[:, HELD_OUT])]).float()
        self.before = windows[:, TRAINED].float()


@lru_cache(maxsize=1)
def data() -> Data:
    """Returns the data.

    Raises:
        Missing: See :func:`read`.
    """
    return Data(read())


class Prior(Karras):
    r"""The best linear denoiser of windows, with gains that a network corrects.

    In coordinates along the data's principal axes, with EDM's preconditioning of each, the network
    sees the mean square of each of 32 bands, and the noise level. So quiet and lively windows are
    denoised differently, and a window's negative has the negative estimate. Networks with
    more freedom were hardly tried.
    """

    axes: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__(MLP(BANDS, width=64, layers=2), LogLogit(1e-3, 300.0))
        D = math.prod(SHAPE)
        self.register_buffer("axes", torch.eye(D))
        self.register_buffer("std", torch.ones(D))

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Takes the covariance from data, with shape (N, 16, 32), and from their negatives."""
        x = x.flatten(start_dim=1).double()
        variance, axes = torch.linalg.eigh(x.T @ x / len(x))
        self.std.copy_(variance.flip(0).clamp_min(1e-6).sqrt())
        self.axes.copy_(axes.flip(1))

    def mean(self, x: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma.reshape(-1, 1)
        scale = torch.sqrt(sigma**2 + self.std**2)
        z = x.flatten(start_dim=1) @ self.axes / scale
        energy = z.unflatten(1, (BANDS, -1)).square().mean(dim=2)
        gain = self.backbone((energy + 1e-6).log(), sigma.log().reshape(-1) / 4)
        gain = gain.repeat_interleave(z.shape[1] // BANDS, dim=1)
        found = self.std / scale * (self.std + sigma * gain) * z
        return (found @ self.axes.T).reshape(x.shape)

    def loss(self, x_0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Returns EDM's objective of each sample, with shape (B): a mean over principal axes, each
        in units of its own standard deviation."""
        sigma = self.schedule(t)[1][:, None, None]
        error = self.mean(x_0 + sigma * noise, sigma) - x_0
        z = error.flatten(start_dim=1) @ self.axes
        weight = 1 / sigma[:, 0] ** 2 + 1 / self.std**2
        return (weight * z**2).mean(dim=1)


def prior(path: Path = HOME / "sst.safetensors") -> Prior:
    """Loads the trained denoiser."""
    model = Prior()
    model.load_state_dict({k: v.float() for k, v in load_file(path).items()})
    model.axes.copy_(torch.linalg.qr(model.axes)[0])  # which half precision is not
    return model.eval().requires_grad_(False)
