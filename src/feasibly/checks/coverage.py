r"""Whether a schedule's noise levels fit the data: each channel's spread, and the data's mean."""

__all__ = ["Channels", "Gaps", "Misfit", "centring", "channels", "misfits", "unmoved"]

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..network import along_channels

COVERED, COVERED_KNOWN = 5.0, 2.0
"""How many times a channel's standard deviation the highest noise level must be, and the standard
deviation the lowest; and the former where samples begin with the data's mean and spread."""

BIASED = 0.05
"""How far samples may be off because they begin at another mean, in standard deviations."""

UNLIKE = 10.0
"""How many times larger one channel's standard deviation is than another's, if they are unlike."""

ENOUGH = 64
"""The least number of values by which a channel counts by itself."""

CENTRED, MEANS = 1e-5, 4
"""How near to zero means are that count as zero, relative to the data, and of how many."""

IDLE, REPEATS = 1e-3, 0.1
"""The share of the noise that is removed where a network does nothing, and where it knows places
up to whole periods alone."""

FIX = (
    "pass clean samples as feasibly.wrap(..., data=...), or their mean and standard deviation as "
    "mean= and scale=, so that samples begin with these"
)


class Channels(NamedTuple):
    """Samples by channel.

    Attributes:
        values: The values, with shape (N, C, E).
        name: "channel" or "element"; empty if all are taken together.
    """

    values: Tensor
    name: str


def channels(x: Tensor) -> Channels:
    r"""Returns samples, with shape (N, \*), by channel: the first axis of a sample, or each
    element of a vector. They are taken together where a channel has fewer than 64 values, and
    where a sample is a square matrix, whose rows are places."""
    square = x.ndim == 3 and x.shape[1] == x.shape[2]
    if x.ndim > 2 and x.shape[1] > 1 and not square and x[:, 0].numel() >= ENOUGH:
        return Channels(x.flatten(start_dim=2), "channel")
    if x.ndim == 2 and x.shape[1] > 1 and len(x) >= ENOUGH:
        return Channels(x[..., None], "element")
    return Channels(x.flatten(start_dim=1)[:, None], "")


def centring(data: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Returns the projection onto data whose means over some axes are zero in every sample, one
    axis before several at a time; None if there are no such axes."""
    x = data.double()
    inner = tuple(range(1, x.ndim))
    several = [dims for dims in (inner[1:], inner) if len(dims) > 1]
    for tried in ([(axis,) for axis in inner], *([dims] for dims in several)):
        found = [dims for dims in tried if _centred(x, dims)]
        if found:
            return Centring(tuple(found))
    return None


def _centred(x: Tensor, dims: tuple[int, ...]) -> bool:
    means = x.mean(dim=dims)
    return means.numel() >= MEANS and bool(means.abs().max() < CENTRED * x.square().mean().sqrt())


@dataclass(frozen=True)
class Centring:
    """Subtracts means over some axes of batches, one after another."""

    dims: tuple[tuple[int, ...], ...]

    def __call__(self, x: Tensor) -> Tensor:
        for dims in self.dims:
            x = x - x.mean(dim=dims, keepdim=True)
        return x


class Gaps:
    """Keeps those of a run of noise levels that :func:`unmoved` asks for."""

    def __init__(self) -> None:
        self.kept: tuple[Tensor, ...] = ()

    def add(self, gap: Tensor) -> None:
        """Takes the gaps at the next level, with shape (N, *)."""
        first, most = self.kept or (gap, gap)
        self.kept = first, torch.where(gap.abs() > most.abs(), gap, most)

    @property
    def all(self) -> Tensor:
        """The gaps, with shape (2, N, *)."""
        return torch.stack(self.kept)


class Misfit(NamedTuple):
    """How noise levels do not fit.

    Attributes:
        sentence: The same in words.
        hidden: Whether a channel varies by less than the lowest noise level.
        of_mean: Whether it is the mean alone, which runs of :func:`feasibly.sample` find.
    """

    sentence: str
    hidden: bool = False
    of_mean: bool = False


def misfits(
    ends: tuple[float, float],
    x: Tensor,
    moments: tuple[Tensor, Tensor] | None = None,
    *,
    what: str = "data",
) -> Iterator[Misfit]:
    r"""Yields what is wrong with a schedule's noise levels for samples.

    The bias of samples that begin at a wrong mean is that of normal data: :math:`s \|\delta\| /
    \sigma^2` standard deviations, with :math:`\delta` the error of the mean, :math:`s` the
    standard deviation along it, and :math:`\sigma` the highest noise level.

    Arguments:
        ends: The lowest and the highest noise level :math:`\sigma / \alpha`.
        x: Samples, with shape (N, \*).
        moments: The mean and the standard deviation that runs begin with; None for zero and one.
        what: What the samples are.
    """
    (lowest, highest), (values, name) = ends, channels(x.double())
    mean = values.mean(dim=0)
    std = values.var(dim=0).mean(dim=1).sqrt()
    # a constant has no spread to resolve; in float32 it may vary by rounding, of the noise too
    varies = std > 1e-6 * mean.abs().amax(dim=1).clamp_min(lowest)
    if not varies.any():
        return
    # of the spreads of many channels the least and the largest are so by chance, too
    count, degrees = len(std), 2 * (len(x) - 1) * values.shape[2]
    chance = math.sqrt((9 + 2 * math.log(count)) / degrees) if name else 0.0

    def said(k: int) -> str:
        where = f" in {name} {k}" if name and not bool((std == std[k]).all()) else ""
        return f"{what} vary by {std[k].item():.3g}{where}"

    k = int(torch.where(varies, std, torch.inf).argmin())
    if lowest * COVERED * (1 - chance) > std[k]:
        yield Misfit(
            f"The noise levels sigma / alpha of the schedule go down to {lowest:.3g}, but "
            f"{said(k)}. The lowest must be at most a {COVERED:.0f}th of that, or samples are "
            "wrong there. If the network was trained at lower noise, use a schedule that reaches "
            "it; otherwise train on data with each channel divided by its standard deviation.",
            bool(lowest > std[k]) and name != "element",
        )
    k = int(torch.where(varies, std, 0.0).argmax())
    least = COVERED if moments is None else COVERED_KNOWN
    if highest * (1 + chance) < least * std[k]:
        more = "" if moments is not None else f"; or {FIX}"
        yield Misfit(
            f"The noise levels sigma / alpha of the schedule go up to {highest:.3g}, but "
            f"{said(k)}. The highest must be at least {least:.0f} times as large, or samples are "
            "wrong. If the network was trained at higher noise, use a schedule that reaches "
            f"it{more}."
        )
        return
    known = 0.0 if moments is None else along_channels(moments[0], x).double()
    error = channels((x.double() - known).mean(dim=0, keepdim=True).expand_as(x)).values[0]
    size = error.square().sum(dim=1)
    along = (values - mean).mul(error).sum(dim=2) / size.sqrt()
    by_chance = values.var(dim=0).sum(dim=1) / len(x)
    bias = along.std(dim=0) * (size - by_chance).clamp_min(0).sqrt() / highest**2
    k = int(bias.nan_to_num(0.0).argmax())
    if bias[k] > BIASED:
        at = f" of {name} {k}" if name else ""
        begins = "zero" if moments is None else "another"
        yield Misfit(
            f"The mean{at} is {mean[k].mean().item():.3g}, {said(k)}, and the highest noise level "
            f"sigma / alpha of the schedule is {highest:.3g}. Samples begin at {begins} mean, and "
            f"are therefore off by about {bias[k].item():.2g} standard deviations. To fix this, "
            f"{FIX}.",
            of_mean=True,
        )


def unmoved(gaps: Tensor) -> str:
    r"""Returns a sentence on what of states a network leaves as noisy as it is; empty if it
    denoises all.

    Arguments:
        gaps: :math:`d(x_t) - x_t / \alpha_t` in units of the noise level, at the highest one and
            that where it is largest, with shape (2, N, \*).
    """
    sizes = gaps.double().square().mean(dim=1).sqrt().nan_to_num(1.0)
    high, most = sizes
    idle = (high < IDLE) & (most < REPEATS)
    if idle.all():
        return "The denoiser returns its input: it removes no noise at all."
    if idle.any():
        return (
            f"The denoiser leaves {int(idle.sum())} of {idle.numel()} elements of a sample as "
            "noisy as they were. If they are padding, pass feasibly.wrap(..., project=lambda x: "
            "mask * x), so that only the others are sampled."
        )
    for axis in range(2, gaps.ndim):
        n = gaps.shape[axis]
        if n > 1 and gaps[0].double().mean(dim=axis - 1).square().mean().sqrt() * n**0.5 < IDLE:
            return (
                f"The denoiser leaves the mean over axis {axis - 1} of the states as noisy as it "
                "was. If the data are centred there, pass feasibly.wrap(..., project=lambda x: x "
                f"- x.mean({axis - 1}, keepdim=True)), or clean samples as data=..., from which "
                "this is found."
            )
    periodic = (high < REPEATS) & (most > REPEATS)
    if periodic.any():
        return (
            f"At high noise the denoiser leaves {int(periodic.sum())} of {periodic.numel()} "
            "elements of a sample where they are, and at lower noise it denoises them. This is "
            "right for periodic coordinates such as angles: their samples are correct up to whole "
            "periods, if the constraint is periodic in them as well. For other elements it is "
            "wrong, because the schedule does not reach the noise of the network's training."
        )
    return ""
