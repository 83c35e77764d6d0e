r"""A network read in several ways, and how well each denoises data."""

__all__ = ["ROWS", "WORSE", "Attempt", "Bench", "compared", "restores"]

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import members
from ..denoisers.adapter import Adapter, AsIs
from ..denoisers.predictions import PREDICTIONS, Prediction, Scales, scales
from ..errors import DenoiserError
from ..network import networks_mode
from ..randomness import generator
from ..schedules import VP, Cosine, Rectified, SubVP
from .coverage import Gaps, channels

LEVELS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The noise levels tried, in units of the data's standard deviation. Far above, the estimate that
is read from a noise prediction is poor for any trained network."""
DROWNED = 0.01
"""The share of the noise's variance that an estimate may always leave."""
ROWS = 1024
"""At most this many states go through the network at each of them."""
CAP = 100.0
"""The most that a sample's errors count where two readings are compared, so that one sample does
not hide that a reading fails."""
WORSE, STEEP = 1.1, 1.5
"""How many times a guess's error an estimate's may be, and by how much the slope of data against
estimates may be off, as a factor."""
SCHEDULES = (VP, SubVP, Cosine, Rectified)
"""The schedules that a network is tried with in place of each other, all of a time in [0, 1]."""
TIME = (
    "the direction of time: try giving the network 1 - t (time=lambda t: 1 - t), or "
    "schedules.Flow for one whose time runs from noise to data"
)
TYPE = "the prediction type, which is {0}: try kind={0!r}"
SIGN = "the sign of the prediction: try negating what the network returns"


@dataclass(frozen=True, repr=False)
class Attempt:
    """One reading of a network, tried on data.

    Attributes:
        change: What is different from the wrap, in words; empty for the wrap itself.
        remedy: What to try, in words.
        ratios: At each noise level, from low to high, the root mean square of :math:`d(x_t) - x_0`
            relative to the error of a guess: the data's mean, or the noisy state itself.
        sure: The largest ratio less what chance may have added.
        slope: The largest deviation from one of the slope of :math:`x_0` against :math:`d(x_t)`,
            as a factor. It is one for a posterior mean, whatever the data.
        squares: The mean square errors, summed over the noise levels, with shape (N).
        sibling: Whether it is all but the same reading, so that a small gain decides.
    """

    change: str
    remedy: str
    ratios: list[float]
    sure: float
    slope: float
    squares: Tensor
    sibling: bool = False

    @property
    def good(self) -> bool:
        """Whether the network, read like this, denoises the data."""
        return restores(self.sure, self.slope)

    @property
    def error(self) -> float:
        """The geometric mean of the ratios."""
        return math.exp(sum(math.log(max(r, 1e-12)) for r in self.ratios) / len(self.ratios))

    def __repr__(self) -> str:
        ratios = ", ".join(f"{ratio:.3g}" for ratio in self.ratios)
        verdict = "denoises the data" if self.good else "does not denoise the data"
        how = f", with {self.change} changed" if self.change else ""
        return (
            f"Attempt({verdict}{how}: errors {ratios} times those of a guess, from low noise to "
            f"high; scale off by a factor of {self.slope:.3g})"
        )

    def beats(self, other: "Attempt") -> bool:
        """Whether this reading is better than another by more than chance and a network's own
        errors."""
        mine, theirs = (a.squares.nan_to_num(nan=CAP).clamp(max=CAP) for a in (self, other))
        gain = theirs - mine
        chance = allowance(len(gain)) * gain.std() / math.sqrt(len(gain))
        least = 0.998 if self.sibling else 0.99
        return self.error < least * other.error and bool(gain.mean() > chance)


class Bench:
    """Data at several noise levels, and what a network makes of them."""

    def __init__(self, adapter: Adapter, data: Tensor, seed: int) -> None:
        self.adapter, self.data = adapter, data
        # small samples several times over, each with noise of its own
        self.copies = max(1, min(ROWS // len(data), 4096 // data.numel()))
        shape = (self.copies * len(data), *data.shape[1:])
        noise = torch.randn(shape, generator=generator(seed), dtype=data.dtype)
        self.noise = noise.to(data.device)
        self.grid, self.log_noise = _noise_levels(adapter.schedule, data)

    def attempt(self) -> Attempt:
        """The network as it is wrapped."""
        outputs = self._outputs(self.data, self.adapter.time)
        return self._judge("", "", self.adapter.prediction, outputs, self.data)

    def gaps(self) -> Tensor:
        """How far estimates are from the states; see :func:`coverage.unmoved`."""
        found = Gaps()
        for x_t, at, output in reversed(self._outputs(self.data, self.adapter.time)):
            x_hat = self.adapter.inside(self.adapter.prediction(output, x_t, at))
            found.add((at.alpha * x_hat - x_t) / at.sigma)
        return found.all

    def readings(self) -> Iterator[Attempt]:
        """What the network returns, read in other ways."""
        time, own = self.adapter.time, self.adapter.prediction
        for reverse in (False, True):
            outputs = self._outputs(self.data, (lambda t: time(1 - t)) if reverse else time)
            for name, prediction in PREDICTIONS.items():
                for sign in (1.0, -1.0):
                    faults = [TIME] * reverse
                    faults += [TYPE.format(name)] * (prediction is not own)
                    faults += [SIGN] * (sign < 0)
                    if faults:
                        change, remedy = _join(faults)
                        turned = [(x_t, at, sign * output) for x_t, at, output in outputs]
                        yield self._judge(change, remedy, prediction, turned, self.data)

    def units(self) -> Iterator[Attempt]:
        """The network, given the time in other units."""
        time, prediction = self.adapter.time, self.adapter.prediction
        for factor, share in ((999, "999 times"), (1 / 999, "a 999th of")):
            try:
                outputs = self._outputs(self.data, lambda t, factor=factor: factor * time(t))
            except (IndexError, RuntimeError):  # there may be no such time for the network
                continue
            remedy = f"giving the network {share} the time that it gets now"
            yield self._judge("the unit of time", remedy, prediction, outputs, self.data)

    def schedules(self, near: bool = False) -> Iterator[Attempt]:
        """The network, on states of other schedules with its clock; the nearest alone, if wanted,
        for which no trained network can do better by chance."""
        own: Any = self.adapter.schedule
        if isinstance(self.adapter, AsIs):
            return
        if hasattr(own, "other") and self.adapter.time == own.time:
            other = own.other()
            outputs = self._outputs(self.data, other.time, other)
            change = "the noise schedule, which is rescaled to zero terminal SNR or is not"
            remedy = "the scheduler with rescale_betas_zero_snr as in training"
            found = self._judge(change, remedy, self.adapter.prediction, outputs, self.data)
            yield replace(found, sibling=True)
        if type(own) not in SCHEDULES:
            return
        betas = (own.beta_0, own.beta_1) if isinstance(own, VP) else ()
        others = {VP: VP(*betas), SubVP: SubVP(*betas), Cosine: Cosine(), Rectified: Rectified()}
        nearest = {VP: SubVP, SubVP: VP}.get(type(own))
        for kind, schedule in others.items():
            if kind is type(own) or (near and kind is not nearest):
                continue
            outputs = self._outputs(self.data, self.adapter.time, schedule)
            change, remedy = "the noise schedule", f"schedule={schedule!r}"
            yield self._judge(change, remedy, self.adapter.prediction, outputs, self.data)

    def ranges(self) -> Iterator[Attempt]:
        """The network, on the data in other ranges."""
        for name, formula, change in _ranges(self.data):
            data = change(self.data)
            outputs = self._outputs(data, self.adapter.time)
            words = f"the range of the values: the network knows data {name}"
            remedy = f"giving it x -> {formula}, and constraints on that (Constraint.in_units)"
            yield self._judge(words, remedy, self.adapter.prediction, outputs, data)

    def _repeated(self, data: Tensor) -> Tensor:
        return data.repeat(self.copies, *(1,) * (data.ndim - 1))

    def _outputs(
        self, data: Tensor, time: Callable[[Tensor], Tensor], schedule: Any = None
    ) -> list[tuple[Tensor, Scales, Tensor]]:
        """For each noise level the state, the level, and what the network returns; with a schedule
        in place of the adapter's."""
        x_0 = self._repeated(data)
        rows = list(range(len(data))) * self.copies
        found = []
        for t in self.times(data, schedule):
            at = scales(schedule or self.adapter.schedule, t, x_0)
            x_t = self.adapter.inside(at.alpha * x_0 + at.sigma * self.noise, at.alpha)
            with members.calling(rows, data.device), networks_mode():
                # a copy, since a network may write into its input
                found.append((x_t, at, self.adapter.output(x_t.clone(), at, time(t))))
        return found

    def times(self, data: Tensor, schedule: Any = None) -> list[Tensor]:
        """The times of the noise levels that the schedule reaches, for the data as a whole and for
        a channel that is far smaller."""
        grid, log_noise = self.grid, self.log_noise
        if schedule is not None:
            grid, log_noise = _noise_levels(schedule, self.data)
        stds = self._channels(data).std(dim=(0, 2))
        typical, least = stds.square().mean().sqrt().item(), stds[stds > 0].min().item()
        sizes = [typical, least] if least < LEVELS[0] * typical else [typical]
        wanted = sorted(math.log(factor * size) for size in sizes for factor in LEVELS)
        low, high = log_noise[0].item(), log_noise[-1].item()
        inside = [w for w in wanted if low <= w <= high] or [(low + high) / 2]
        levels = torch.tensor(inside).to(log_noise)
        places = torch.searchsorted(log_noise, levels).clamp(1, len(grid) - 1)
        below, above = log_noise[places - 1], log_noise[places]
        return list(torch.lerp(grid[places - 1], grid[places], (levels - below) / (above - below)))

    def _judge(
        self,
        change: str,
        remedy: str,
        prediction: Prediction,
        outputs: list[tuple[Tensor, Scales, Tensor]],
        data: Tensor,
    ) -> Attempt:
        clean = self._channels(self._repeated(data))
        found = [
            compared(
                self._channels(self.adapter.inside(prediction(output, x_t, at))),
                clean,
                self._channels(x_t / at.alpha),
                self.copies,
            )
            for x_t, at, output in outputs
        ]
        squares, ratios, sure, slopes = zip(*found, strict=True)
        error = torch.stack(squares).sum(dim=0)
        return Attempt(change, remedy, list(ratios), max(sure), max(1.0, *slopes), error)

    def _channels(self, x: Tensor) -> Tensor:
        """Samples by channel, with shape (N, C, E), as the data are."""
        count = channels(self.data).values.shape[1]
        return x.double().reshape(len(x), count, -1)


def compared(
    x_hat: Tensor, clean: Tensor, state: Tensor, copies: int = 1
) -> tuple[Tensor, float, float, float]:
    """Compares estimates of clean samples with a guess: their mean, or the noisy state itself.

    All three have the shape (copies N, C, E), by channel, with the copies one after the other.
    Returns the squared errors in units of a guess's, with shape (N), and `ratio`, `sure` and
    `slope` as in :class:`Attempt`, at this noise level.
    """
    some = clean[: len(clean) // copies]
    number, centre = some[:, 0].numel(), some.mean(dim=(0, 2), keepdim=True)
    spread = (clean - centre).square().mean(dim=2) * number / (number - 1)
    error = (x_hat - clean).square().mean(dim=2)
    noise = (state - clean).square().mean(dim=2)
    guess = torch.where(noise.mean(dim=0) < spread.mean(dim=0), noise, spread)
    # what is left of the noise drowns in that of the next step; see Level.bound
    least = DROWNED * noise.mean(dim=1, keepdim=True).expand_as(guess)
    guess = torch.where(guess.mean(dim=0) < least.mean(dim=0), least, guess)
    size = guess.mean(dim=0)
    # each channel counts alike, so that a small one does not hide behind a large one; the mean is
    # over each sample's states
    error, guess = ((v / size).reshape(copies, len(some), -1).mean(dim=0) for v in (error, guess))
    ratio, _ = _ratios(error.mean(dim=1, keepdim=True), guess.mean(dim=1, keepdim=True))
    _, sure = _ratios(error, guess)
    unit = torch.maximum(spread.mean(dim=0), least[0]).sqrt()[:, None]
    left = (least[0] / unit[:, 0].square()).sum().item() * clean.shape[2]
    x, y = (x_hat - centre) / unit, (clean - centre) / unit
    slope = _slope(x, y, copies, left)
    return error.mean(dim=1), ratio.sqrt().item(), sure.max().sqrt().item(), slope


def restores(sure: float, slope: float) -> bool:
    """Whether estimates are no worse than a guess, and of the right scale; see
    :class:`Attempt`."""
    return sure <= WORSE and slope <= STEEP


def _join(faults: list[str]) -> tuple[str, str]:
    """Faults in one sentence, and their remedies in another."""
    changes, remedies = zip(*(fault.split(": try ") for fault in faults), strict=True)
    return " and ".join(changes), ", and ".join(remedies)


def _ranges(data: Tensor) -> Iterator[tuple[str, str, Callable[[Tensor], Tensor]]]:
    """The ranges that data like these may have had in training: a name, and the way there."""
    low, high = data.min().item(), data.max().item()
    mean, std = data.mean().item(), data.std().item()
    yield "standardised", f"(x - {mean:.3g}) / {std:.3g}", lambda x: (x - mean) / std
    yield "half as wide", "x / 2", lambda x: x / 2
    yield "twice as wide", "2 x", lambda x: 2 * x
    if low >= 0:
        top = 1.0 if high <= 1 else 255.0 if high <= 255 else high
        yield "in [-1, 1]", f"{2 / top:.3g} x - 1", lambda x: 2 * x / top - 1
        yield "in [0, 1]", f"x / {top:g}", lambda x: x / top
        yield "in [0, 255]", f"{255 / top:.3g} x", lambda x: 255 * x / top
    elif low >= -1 and high <= 1:
        yield "in [0, 1]", "(x + 1) / 2", lambda x: (x + 1) / 2
        yield "in [0, 255]", "127.5 (x + 1)", lambda x: 127.5 * (x + 1)
    else:
        shifted, width = f"(x - {low:.3g})".replace("- -", "+ "), high - low
        yield "in [-1, 1]", f"{2 / width:.3g} {shifted} - 1", lambda x: 2 * (x - low) / width - 1
        yield "in [0, 1]", f"{shifted} / {width:.3g}", lambda x: (x - low) / width


def _noise_levels(schedule: Any, data: Tensor) -> tuple[Tensor, Tensor]:
    r"""Times from 0 to 1 and their :math:`\log(\sigma / \alpha)`."""
    grid = torch.linspace(0, 1, 1025, dtype=torch.float64, device=data.device)
    alpha, sigma = schedule(grid)
    log_noise = (sigma / alpha).log().expand_as(grid)
    if not log_noise.isfinite().all() or not (log_noise.diff() > 0).all():
        ends = [f"{log_noise[k].exp().item():.3g}" for k in (0, -1)]
        raise DenoiserError(
            "The schedule's time runs the wrong way or stands still: its noise level sigma / "
            "alpha must be positive and finite, and rise from data at t = 0 to noise at t = 1, "
            f"but it is {ends[0]} at 0 and {ends[1]} at 1. Try the schedule at 1 - t, and keep it "
            "off its ends, as schedules.Rectified does."
        )
    return grid, log_noise


def allowance(samples: int, of: int = 1) -> float:
    """The standard errors to allow for chance: three, or as many more as the largest of several
    has; of a few samples, Student's t at the same level (by Cornish and Fisher's expansion)."""
    several = math.sqrt(1 + 2 * math.log(of) / 9)
    return several * (
        3 + sum(c / (samples - 1) ** k for k, c in ((1, 7.5), (2, 17.25), (3, 30.2)))
    )


def _ratios(errors: Tensor, guesses: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean errors of K channels relative to a guess's, and lower bounds of them that
    allow for K comparisons, both with shape (K), given those of samples, with shape (N, K)."""
    guess, count = guesses.mean(dim=0), len(errors)
    ratio = errors.mean(dim=0) / guess
    ratio = ratio.where(ratio.isfinite(), math.inf)
    allowed = allowance(count, len(ratio))
    deviation = (errors - ratio * guesses).std(dim=0) / (guess * math.sqrt(count))
    sure = (ratio - allowed * deviation).clamp_min(0)
    beyond = ratio > max(9.0, 1 + allowed**2 / count)  # no chance does that
    return ratio, ratio.where(beyond, sure)


def _slope(x_hat: Tensor, x_0: Tensor, copies: int, left: float) -> float:
    r"""The slope :math:`b` of :math:`x_0` against :math:`\hat{x}`, both centred, as a factor of at
    least one, less what chance may have added over the samples.

    An estimate's square norm may have `left` from noise, which makes the slope smaller: read from
    a noise prediction at high noise, it has the network's error times the noise level.
    """
    x_hat, x_0 = (x.flatten(start_dim=1) for x in (x_hat, x_0))
    products = ((x_hat * x).sum(dim=1) for x in (x_0, x_hat))
    both, own = (each.reshape(copies, -1).mean(dim=0) for each in products)
    slope = both.sum() / own.sum()
    error = (both - slope * own).square().sum().sqrt() / own.sum()
    chance = allowance(len(both)) * error.item()
    excess, clean = slope.item() - chance, own.sum() - left * len(own)  # without that noise
    if clean <= 0:
        return max(1.0, excess)
    short = (both.sum() / clean).item() + chance
    if short <= 0:
        return math.inf
    return max(1.0, excess, 1 / short)
