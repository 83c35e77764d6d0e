"""A test of a wrapped network on real data, which says what is wrong with the wrap."""

__all__ = ["Attempt", "self_test"]

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import members
from ..errors import DenoiserError
from ..network import device_of
from .base import Adapter
from .plain import plain
from .predictions import PREDICTIONS, Level, level

LEVELS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The noise levels tried, in units of the data's standard deviation. Far above, the estimate that
is read from a noise prediction is poor for any trained network."""
ROWS = 256
"""At most this many states go through the network at each of them."""


@dataclass(frozen=True)
class Attempt:
    r"""One reading of a network, tried on data.

    Attributes:
        change: What is different from the wrap, in words; empty for the wrap itself.
        remedy: What to try, in words.
        ratios: At each noise level, the root mean square of :math:`d(x_t) - x_0` relative to the
            error of a guess: the data's mean, or the noisy state itself.
        slope: The largest deviation from one of the slope of :math:`x_0` against
            :math:`d(x_t)`, as a factor. It is one for a posterior mean, whatever the data.
    """

    change: str
    remedy: str
    ratios: list[float]
    slope: float

    @property
    def good(self) -> bool:
        """Whether the network, read like this, denoises the data."""
        return max(self.ratios) <= 1.1 and self.slope <= 1.5

    @property
    def error(self) -> float:
        """The geometric mean of the ratios."""
        return math.exp(sum(math.log(max(r, 1e-12)) for r in self.ratios) / len(self.ratios))


@torch.no_grad()
def self_test(denoiser: Any, data: Tensor, seed: int = 0) -> Attempt:
    r"""Tests a denoiser on real data, and if it fails finds out why.

    A posterior mean is at no noise level worse than two guesses, the data's mean and the noisy
    state; and data regressed on it have a slope of one. If the denoiser fails that, other readings
    of the same network are tried: with its sign turned, with time reversed or counted in another
    unit, as another prediction type, and with the data in another range. The one that denoises
    best is named.

    Arguments:
        denoiser: What :func:`feasibly.wrap` returned, or another denoiser.
        data: Clean samples as the network knows them, with shape :math:`(N, *)`; a few (8 images)
            suffice. Row i is denoised under the conditions of member i.
        seed: The seed of the noise.

    Returns:
        How it did.

    Raises:
        DenoiserError: If the schedule does not go from data to noise, an output or its gradient
            is not finite, or the denoiser is worse than a guess; the message says what is wrong
            and what to try.
    """
    adapter = denoiser if isinstance(denoiser, Adapter) else _reading(denoiser)
    if data.ndim < 2 or len(data) < 2 or not data.isfinite().all() or data.std() == 0:
        raise DenoiserError(
            "The self-test needs a few different samples, finite, as a tensor of shape (N, *) "
            f"with N at least 2; got shape {tuple(data.shape)}."
        )
    data = data if data.is_floating_point() else data.float()
    bench = _Bench(adapter, data[:ROWS].to(device_of(adapter)), seed)
    found = bench.attempt()
    _check_gradient(adapter, bench)
    if found.good:
        return found
    others = [other for other in bench.others() if other.good]
    raise DenoiserError(_message(found, min(others, key=lambda o: o.error, default=None)))


def _reading(denoiser: Any) -> Adapter:
    """A denoiser of another kind, as a network that predicts x_0."""
    if not callable(getattr(denoiser, "schedule", None)):
        raise DenoiserError(
            f"{type(denoiser).__name__} has no schedule; wrap it by feasibly.wrap(net, kind=..., "
            "schedule=...) first."
        )
    return plain(denoiser, denoiser.schedule, "x0", time=lambda t: t)


class _Bench:
    """Data at several noise levels, and what a network makes of them."""

    def __init__(self, adapter: Adapter, data: Tensor, seed: int) -> None:
        self.adapter, self.data = adapter, data
        # small samples several times over, each with noise of its own
        self.copies = max(1, min(ROWS // len(data), 4096 // data.numel()))
        self.generator = torch.Generator().manual_seed(seed)
        shape = (len(data) * self.copies, *data.shape[1:])
        noise = torch.randn(shape, generator=self.generator, dtype=data.dtype)
        self.noise = noise.to(data.device)
        self.grid, self.log_noise = _noise_levels(adapter.schedule, data)

    def attempt(self) -> Attempt:
        """The network as it is wrapped."""
        return self._try("", "", self.adapter.prediction, lambda t: self.adapter.time(t))

    def others(self) -> Iterator[Attempt]:
        """Other readings of the network, one thing or several changed."""
        time = self.adapter.time
        clocks: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [
            ("", "", time),
            (
                "the direction of time",
                "tell the network 1 - t (time=lambda t: 1 - t), or give schedules.Flow for a "
                "network whose time runs from noise to data",
                lambda t: time(1 - t),
            ),
            (
                "the unit of time",
                "tell the network 999 t (time=lambda t: 999 * t)",
                lambda t: 999 * time(t),
            ),
            (
                "the unit of time",
                "tell the network a 999th of what it is told now",
                lambda t: time(t) / 999,
            ),
        ]
        for wrong, remedy, clock in clocks:
            outputs = self._outputs(self.data, clock)
            for name, prediction in PREDICTIONS.items():
                for sign in (1, -1):
                    same = sign == 1 and prediction is self.adapter.prediction
                    words = [wrong] * bool(wrong)
                    try_ = [remedy] * bool(remedy)
                    if prediction is not self.adapter.prediction:
                        words.append(f"the prediction type: the network predicts {name}")
                        try_.append(f"wrap it with kind={name!r}")
                    if sign < 0:
                        words.append("the sign of the prediction")
                        try_.append("give the network with its output negated")
                    if same and not wrong:
                        continue
                    yield self._judge(words, try_, prediction, outputs, sign, self.data)
        yield from self._ranges()

    def _ranges(self) -> Iterator[Attempt]:
        """The same reading, with the data in other ranges."""
        low, high = self.data.min().item(), self.data.max().item()
        mean, std = self.data.mean().item(), self.data.std().item()
        ranges = [("standardised", mean, std, "(x - mean) / std")]
        if low >= -0.05:
            ranges.append(("in [-1, 1]", high / 2, high / 2, f"x / {high / 2:.3g} - 1"))
            ranges.append(("in [0, 1]", 0.0, high, f"x / {high:.3g}"))
        if low >= -1.05 and high <= 1.05:
            ranges.append(("in [0, 1]", -1.0, 2.0, "(x + 1) / 2"))
            ranges.append(("in [-1, 1]", 0.5, 0.5, "2 x - 1"))
            ranges.append(("in [0, 255]", 0.0, 1 / 255, "255 x"))
            ranges.append(("in [0, 255]", -1.0, 1 / 127.5, "127.5 (x + 1)"))
        for name, offset, scale, formula in ranges:
            data = (self.data - offset) / scale
            outputs = self._outputs(data, self.adapter.time)
            yield self._judge(
                [f"the range of the values: the network knows data {name}"],
                [
                    f"give it data as {formula}, and state the constraint on them "
                    "(Constraint.in_units(mean, std) does that)"
                ],
                self.adapter.prediction,
                outputs,
                1,
                data,
            )

    def _try(
        self, change: str, remedy: str, prediction: Any, clock: Callable[[Tensor], Tensor]
    ) -> Attempt:
        outputs = self._outputs(self.data, clock)
        return self._judge([change], [remedy], prediction, outputs, 1, self.data)

    def _outputs(
        self, data: Tensor, clock: Callable[[Tensor], Tensor]
    ) -> list[tuple[Tensor, Level, Tensor]]:
        """For each noise level the state, the level, and what the network returns."""
        x_0 = data.repeat(self.copies, *(1,) * (data.ndim - 1))
        found = []
        for t in self._times(data.std().item()):
            at = level(self.adapter.schedule, t, x_0)
            x_t = at.alpha * x_0 + at.sigma * self.noise
            with members.calling(list(range(len(data))) * self.copies, data.device):
                found.append((x_t, at, self.adapter.output(x_t, at, clock(t))))
        return found

    def _times(self, std: float) -> list[Tensor]:
        """The times of the noise levels that the schedule reaches."""
        wanted = [math.log(factor * std) for factor in LEVELS]
        low, high = self.log_noise[0].item(), self.log_noise[-1].item()
        inside = [w for w in wanted if low <= w <= high] or [(low + high) / 2]
        places = torch.searchsorted(self.log_noise, torch.tensor(inside).to(self.log_noise))
        return list(self.grid[places.clamp(max=len(self.grid) - 1)])

    def _judge(
        self,
        words: list[str],
        remedies: list[str],
        prediction: Any,
        outputs: list[tuple[Tensor, Level, Tensor]],
        sign: int,
        data: Tensor,
    ) -> Attempt:
        x_0 = data.repeat(self.copies, *(1,) * (data.ndim - 1))
        ratios, slopes = [], [1.0]
        for x_t, at, output in outputs:
            x_hat = prediction(sign * output, x_t, at)
            error = (x_hat - x_0).square().mean().sqrt().item()
            guess = (x_t / at.alpha - x_0).square().mean().sqrt().item()
            ratios.append(error / min(guess, data.std().item()))
            ratios[-1] = ratios[-1] if math.isfinite(ratios[-1]) else math.inf
            slopes.append(_slope(x_hat, x_0, self.copies))
        return Attempt(" and ".join(words), ", and ".join(remedies), ratios, max(slopes))


def _noise_levels(schedule: Any, data: Tensor) -> tuple[Tensor, Tensor]:
    r"""Times from 0 to 1 and their :math:`\log(\sigma / \alpha)`."""
    grid = torch.linspace(0, 1, 1025, dtype=torch.float64, device=data.device)
    alpha, sigma = schedule(grid)
    log_noise = (sigma / alpha).log().expand_as(grid)
    if not log_noise.isfinite().all() or not (log_noise.diff() > 0).all():
        ends = [f"{log_noise[k].exp().item():.3g}" for k in (0, -1)]
        raise DenoiserError(
            "The schedule's time runs the wrong way or stands still: its noise level sigma / "
            "alpha must rise from data, at t = 0, to noise, at t = 1, and be positive and finite; "
            f"it is {ends[0]} at 0 and {ends[1]} at 1. Try the schedule at 1 - t, and keep it off "
            "its ends, as schedules.Rectified does."
        )
    return grid, log_noise


def _slope(x_hat: Tensor, x_0: Tensor, copies: int) -> float:
    r"""The slope :math:`b` of :math:`x_0` against :math:`\hat{x}`, as a factor of at least one,
    less three standard errors over the samples."""
    centre = x_0.mean()
    x_hat, x_0 = (x.double().flatten(start_dim=1) - centre for x in (x_hat, x_0))
    per_sample = (
        (a * b).sum(dim=1).reshape(copies, -1).mean(dim=0)
        for a, b in ((x_hat, x_0), (x_hat, x_hat))
    )
    both, own = per_sample
    slope = both.sum() / own.sum()
    error = (both - slope * own).square().sum().sqrt() / own.sum()
    excess = max(slope.item() - 3 * error.item(), 0.0)
    short = slope.item() + 3 * error.item()
    if excess > 1:
        return excess
    return 1 / short if 0 < short < 1 else (math.inf if short <= 0 else 1.0)


@torch.enable_grad()
def _check_gradient(adapter: Adapter, bench: _Bench) -> None:
    x_0 = bench.data[:4]
    times = bench._times(x_0.std().item())
    t = times[len(times) // 2]
    at = level(adapter.schedule, t, x_0)
    x_t = (at.alpha * x_0 + at.sigma * bench.noise[: len(x_0)]).requires_grad_()
    with members.calling(range(len(x_0)), x_0.device):
        x_hat = adapter(x_t, t.to(x_0.dtype)).mean
    if not x_hat.requires_grad:
        raise DenoiserError(
            "The network's output has no gradient with respect to its input, which projecting "
            "through it needs; remove torch.no_grad(), torch.inference_mode() and detach()."
        )
    (gradient,) = torch.autograd.grad(x_hat.square().sum(), x_t)
    if not gradient.isfinite().all():
        raise DenoiserError(
            f"The gradient of the network is not finite at t = {t.item():.3g}; look for a square "
            "root or a norm at zero in it."
        )


def _message(found: Attempt, cause: Attempt | None) -> str:
    reached = ", ".join(f"{ratio:.3g}" for ratio in found.ratios)
    symptom = (
        f"the denoising errors on your data are {reached} times those of a guess, from low noise "
        "to high (below 1 is right)"
        if max(found.ratios) > 1.1
        else f"its estimates are off in scale, by a factor of {found.slope:.3g}"
    )
    if cause is None:
        return (
            f"The network does not denoise as it is wrapped: {symptom}. Neither the sign, the "
            "direction or unit of time, the prediction type nor the range of the values explains "
            "it alone; look at the schedule (print the wrapped network), at what it is told of "
            "the time and its conditions, and whether it is trained."
        )
    return (
        f"The wrap is wrong in {cause.change}. As it is, {symptom}; with that changed they are at "
        f"most {max(cause.ratios):.3g}. Try this: {cause.remedy}."
    )
