"""The user's denoiser as samplers evaluate it: checked, and counted in a run."""

__all__ = ["Evaluations", "Network", "device_of", "watched"]

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import DenoiserError


@dataclass
class Evaluations:
    """Counts of network evaluations.

    Attributes:
        forward: Forward evaluations, each on a batch of the members that needed one.
        backward: Vector-Jacobian products through the network, likewise.
        member_forward: Forward evaluations, summed over members.
        member_backward: Vector-Jacobian products, summed over members.
        seconds: The time spent in both, as the host sees it.
    """

    forward: int = 0
    backward: int = 0
    member_forward: int = 0
    member_backward: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Evaluations") -> "Evaluations":
        return Evaluations(**{k: v + getattr(other, k) for k, v in vars(self).items()})


class Network:
    r"""Wraps a denoiser, so that it returns :math:`\mathbb{E}[x_0 \mid x_t]` as a tensor.

    Arguments:
        denoiser: A callable `(x_t, t)` with an attribute `schedule`, whose result is a tensor or
            has an attribute `mean`. Of a :class:`Network` the denoiser is taken.
        evaluations: Where evaluations are counted; None to count nothing.

    Raises:
        DenoiserError: If the denoiser has no schedule, or returns something else.
    """

    def __init__(
        self,
        denoiser: Callable[[Tensor, Tensor], Any],
        evaluations: Evaluations | None = None,
    ) -> None:
        if isinstance(denoiser, Network):
            denoiser = denoiser.denoiser
        schedule = getattr(denoiser, "schedule", None)
        if not callable(denoiser) or not callable(schedule):
            raise DenoiserError(
                f"A denoiser is a callable (x_t, t) with an attribute `schedule`, a callable "
                f"t -> (alpha_t, sigma_t); {type(denoiser).__name__} has none. Wrap your network "
                "by feasibly.wrap(net, kind=..., schedule=...), or set `.schedule`."
            )
        _check_schedule(schedule)
        self.denoiser = denoiser
        self.schedule: Callable[[Tensor], tuple[Tensor, Tensor]] = schedule
        self.evaluations = evaluations

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        # A denoiser that writes into its input is refused. It gets a copy, so that the state stays
        # as it was, and no hook sees a view that was written to, which would end the process.
        if self.evaluations is None:
            return self._estimate(x_t.clone(), t)
        counts, members = self.evaluations, x_t.shape[0]
        counts.forward += 1
        counts.member_forward += members

        inner = x_t.clone()
        start = time.perf_counter()
        x_0 = self._estimate(inner, t)
        counts.seconds += time.perf_counter() - start

        def enter() -> None:
            counts.backward += 1
            counts.member_backward += members

        def leave(seconds: float) -> None:
            counts.seconds += seconds

        return watched(inner, x_0, enter, leave)

    def _estimate(self, x_t: Tensor, t: Tensor) -> Tensor:
        version = None if x_t.is_inference() else x_t._version
        x_0 = self.denoiser(x_t, t)
        if version is not None and x_t._version != version:
            raise DenoiserError(
                "The denoiser changes its input x_t in place, which is the sampler's own state; "
                "let it work on a copy."
            )
        mean = x_0 if isinstance(x_0, Tensor) else getattr(x_0, "mean", x_0)
        x_0 = x_0 if callable(mean) else mean  # an array's `mean` is a method
        _check_output(x_0, x_t)
        return x_0


def watched(
    x: Tensor, y: Tensor, enter: Callable[[], None], leave: Callable[[float], None]
) -> Tensor:
    """Returns an alias of y, a function of x, whose every backward pass down to x is reported.

    Arguments:
        x: The input, a tensor that nothing else uses.
        y: The output. It may be the input, or a tensor that the function keeps.
        enter: Called where a pass begins.
        leave: Called with its seconds where it has come to x.
    """
    if not (y.requires_grad and x.requires_grad):
        return y
    clock = 0.0

    def begin(_: Tensor) -> None:
        nonlocal clock
        enter()
        clock = time.perf_counter()

    y = y.view_as(y)
    y.register_hook(begin)
    x.register_hook(lambda _: leave(time.perf_counter() - clock))
    return y


def device_of(denoiser: Any) -> torch.device:
    """Returns where a denoiser's parameters are, or its buffers; the CPU if it has none."""
    for kind in ("parameters", "buffers"):
        tensors = getattr(denoiser, kind, None)
        first = next(iter(tensors()), None) if callable(tensors) else None
        if first is not None:
            return first.device
    return torch.device("cpu")


def _check_schedule(schedule: Callable[[Tensor], Any]) -> None:
    t = torch.tensor(0.5)
    found = schedule(t)
    good = isinstance(found, tuple | list) and len(found) == 2
    if not good or not all(isinstance(scale, Tensor) and scale.shape == () for scale in found):
        raise DenoiserError(
            f"The schedule must return two tensors, alpha_t and sigma_t, with the shape of t; of "
            f"a number it returned {found!r:.200}."
        )


def _check_output(x_0: Any, x_t: Tensor) -> None:
    if not isinstance(x_0, Tensor):
        raise DenoiserError(
            f"The denoiser returned {type(x_0).__name__}; it must return E[x_0 | x_t] as a "
            "tensor, or an object whose `.mean` is that tensor."
        )
    if x_0.shape != x_t.shape:
        raise DenoiserError(
            f"The denoiser returned shape {tuple(x_0.shape)} for a state of shape "
            f"{tuple(x_t.shape)}; E[x_0 | x_t] must have the shape of x_t."
        )
    if x_0.dtype != x_t.dtype:
        raise DenoiserError(
            f"The denoiser returned {x_0.dtype} for a state of {x_t.dtype}; cast its output back, "
            f"or sample with dtype={x_0.dtype}."
        )
