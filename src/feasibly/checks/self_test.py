"""A test of a wrapped network on real data, which says what is wrong with the wrap."""

__all__ = ["self_test"]

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import members
from ..denoisers.adapter import Adapter, AsIs, positional, time_first
from ..denoisers.predictions import scales
from ..errors import CalibrationWarning, DenoiserError, advise
from ..network import device_of, own_mode
from ..randomness import generator
from .coverage import misfits, unmoved
from .derivatives import check_gradient
from .inputs import as_data
from .readings import ROWS, Attempt, Bench

FEW = 64
"""Of fewer numbers than these in all, data are too few to refuse a wrap by."""


@own_mode()
def self_test(denoiser: Any, data: Tensor | np.ndarray, seed: int = 0) -> Attempt:
    """Tests a denoiser on real data, and if it fails finds out why.

    A posterior mean is at no noise level worse than two guesses, the data's mean and the noisy
    state; data regressed on it have a slope of one; and no other reading of the same network
    denoises better. The readings tried are with its sign turned, with time reversed or in another
    unit, as another prediction type, with the data in another range, and with another schedule;
    the best is named. All of this is with an allowance for chance over the samples.

    Readings that hardly differ, such as a v and a velocity under VP, take a few hundred samples of
    few numbers to tell apart. VP and SubVP are told apart; other schedules that are near to each
    other, such as VP and the cosine schedule, may pass in place of each other.

    Arguments:
        denoiser: What :func:`feasibly.wrap` returned, or another denoiser.
        data: Clean samples as the network knows them, with shape :math:`(N, *)`; a few (8 images)
            suffice. Row i is denoised under the conditions of member i.
        seed: The seed of the noise.

    Raises:
        DenoiserError: If the schedule does not go from data to noise, an output or its gradient is
            not finite, the gradient is not its derivative, or the denoiser is worse than a guess
            or than another reading. Data of fewer than 64 numbers in all only warn.

    Example:
        >>> data = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> feasibly.self_test(denoiser, data).good
        True
    """
    adapter = denoiser if isinstance(denoiser, Adapter) else _reading(denoiser)
    data = as_data(data)
    if not data.isfinite().all() or data.std() == 0:
        raise DenoiserError(
            "The self-test needs several different samples with finite values; some of these "
            "values are not finite, or all are equal."
        )
    bench = Bench(adapter, data[:ROWS].to(device_of(adapter)), seed)
    found = _attempt(bench)
    if found.good:
        _check_gradient(adapter, bench)
        tried = (*bench.readings(), *bench.schedules(near=True))
        others = [other for other in tried if other.good and other.beats(found)]
        if not others:
            _check_levels(adapter, bench.data)
            return found
    else:
        tried = (*bench.readings(), *bench.units(), *bench.ranges(), *bench.schedules())
        # one that does no better than a guess explains nothing
        others = [o for o in tried if o.good and max(o.ratios) < 1 and o.beats(found)]
        if not others:  # else the gradient's trouble may come of the mistake that is named
            _check_gradient(adapter, bench)
    best = min(others, key=lambda o: o.error, default=None)
    message = _message(found, best, "" if found.good else unmoved(bench.gaps()))
    if bench.data.numel() >= FEW:
        raise DenoiserError(message)
    advise(
        f"The self-test has too few data to decide, {bench.data.numel()} numbers in all; pass at "
        f"least {FEW}, or better some hundreds. On these data: {message}"
    )
    return found


def _check_levels(adapter: Adapter, data: Tensor) -> None:
    """Warns if the schedule's noise does not fit the data; refuses one that hides a channel."""
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    lowest, highest = (s / a for a, s in zip(*adapter.schedule(ends), strict=True))
    if adapter.own_means:  # what counts is the spread under one condition
        t = ends[1].to(data)
        at = scales(adapter.schedule, t, data)
        noise = torch.randn(data.shape, generator=generator(0), dtype=data.dtype).to(data)
        with members.calling(range(len(data)), data.device):
            data = data - adapter(at.alpha * data + at.sigma * noise, t).mean + data.mean(dim=0)
    for found in misfits((lowest.item(), highest.item()), data, adapter.data_moments):
        if found.hidden:
            raise DenoiserError(found.sentence)
        if not found.of_mean:  # a run finds it itself
            advise(found.sentence, CalibrationWarning)


def _attempt(bench: Bench) -> Attempt:
    """How the network does as it is wrapped; what it raises is explained."""
    try:
        return bench.attempt()
    except DenoiserError:
        raise
    except Exception as error:
        order = {positional: ("x, time", "time, x"), time_first: ("time, x", "x, time")}
        now, other = order.get(bench.adapter.call, ("", ""))
        hint = (
            f" It is called as net({now}); for net({other}) pass a function that swaps the "
            "arguments, or for a flow use kind='torchcfm' (time first) or 'flow_matching' (time "
            "last)."
        )
        raise DenoiserError(
            f"The network failed on states of shape {tuple(bench.noise.shape)} with a time for "
            f"each ({type(error).__name__}: {error}).{hint if now else ''}"
        ) from error


def _reading(denoiser: Any) -> Adapter:
    """A denoiser of another kind, as a network that predicts x_0."""
    if not callable(getattr(denoiser, "schedule", None)):
        raise DenoiserError(
            f"{type(denoiser).__name__} has no schedule; wrap it with feasibly.wrap(net, "
            "kind=..., schedule=...) first."
        )
    return AsIs(denoiser)


@torch.enable_grad()
def _check_gradient(adapter: Adapter, bench: Bench) -> None:
    x_0 = bench.data[:4]
    times = bench.times(bench.data)
    t = times[len(times) // 2]
    at = scales(adapter.schedule, t, x_0)
    x_t = (at.alpha * x_0 + at.sigma * bench.noise[: len(x_0)]).requires_grad_()
    with members.calling(range(len(x_0)), x_0.device):
        x_hat = adapter(x_t, t.to(x_0.dtype)).mean
    if not x_hat.requires_grad:
        raise DenoiserError(
            "The network's output has no gradient with respect to its input, which projections "
            "through the network need; remove torch.no_grad(), torch.inference_mode() and "
            "detach()."
        )
    (gradient,) = torch.autograd.grad(x_hat.square().sum(), x_t)
    if not gradient.isfinite().all():
        raise DenoiserError(
            f"The gradient of the network is not finite at t = {t.item():.3g}; look for a square "
            "root or a norm at zero in it."
        )
    with members.calling(range(len(x_0)), x_0.device):
        check_gradient(adapter, x_0, known=True)


def _message(found: Attempt, cause: Attempt | None, idle: str) -> str:
    if found.good:
        symptom = "it denoises, but clearly worse than another reading of the same network"
    elif found.sure > 1.1:
        reached = ", ".join(f"{ratio:.3g}" for ratio in found.ratios)
        symptom = (
            f"the denoising errors on your data are {reached} times those of a trivial guess, "
            "from low noise to high (below 1 is right)"
        )
    else:
        symptom = f"its estimates are off in scale by a factor of {found.slope:.3g}"
    if idle:
        return f"The network does not denoise as it is wrapped: {symptom}. {idle}"
    if cause is None:
        return (
            f"The network does not denoise as it is wrapped: {symptom}. No single change of the "
            "sign, the direction or unit of time, the prediction type or the range of the values "
            "explains this; check the schedule (print the wrapped network), the time and the "
            "conditions that the network receives, whether it is trained, and whether these data "
            "are scaled and shifted as in training."
        )
    return (
        f"The wrap is wrong in {cause.change}. As it is, {symptom}; with that changed, the errors "
        f"are at most {max(cause.ratios):.3g} times those of a trivial guess. Try {cause.remedy}."
    )
