"""The user's denoiser as samplers evaluate it: checked, and counted in a run."""

__all__ = [
    "Evaluations",
    "Network",
    "along_channels",
    "counted",
    "device_of",
    "explained",
    "moments_of",
    "networks_mode",
    "own_mode",
    "watched",
]

import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import progress
from .derivatives import CHECKPOINTS
from .errors import AS_REAL, DenoiserError

ROUNDS = 2
"""How often a member's own mean is taken anew where members settle."""

LEANS = 0.05
"""How far the mean may be from that which runs begin with, in units of the highest noise. Samples
are then off by less than 0.01 standard deviations, if that noise is five of them."""
DEVICES = ("cpu", "cuda", "mps", "xpu")

_AUTOCAST: ContextVar[tuple[tuple[str, torch.dtype], ...]] = ContextVar("autocast", default=())
_COUNTS: ContextVar["Evaluations | None"] = ContextVar("counts", default=None)


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


@contextmanager
def counted(evaluations: Evaluations | None) -> Generator[None]:
    """Counts what networks evaluate within; None counts nothing. The innermost one counts."""
    token = _COUNTS.set(evaluations)
    try:
        yield
    finally:
        _COUNTS.reset(token)


class Network:
    r"""Wraps a denoiser, so that it returns :math:`\mathbb{E}[x_0 \mid x_t]` as a tensor.

    Evaluations are counted within :func:`counted`.

    Arguments:
        denoiser: A callable `(x_t, t)` with an attribute `schedule`, whose result is a tensor or
            has an attribute `mean`. Of a :class:`Network` the denoiser is taken.
        settles: Whether members begin at a mean of their own; None for what the denoiser says by
            its attribute `own_means`.

    Raises:
        DenoiserError: If the denoiser has no schedule, or returns something else.
    """

    def __init__(
        self,
        denoiser: Callable[[Tensor, Tensor], Any],
        settles: bool | None = None,
    ) -> None:
        if isinstance(denoiser, Network):
            settles = denoiser.settles if settles is None else settles
            denoiser = denoiser.denoiser
        schedule = getattr(denoiser, "schedule", None)
        if not callable(denoiser) or not callable(schedule):
            raise DenoiserError(
                "A denoiser is a callable (x_t, t) with an attribute `schedule`, a callable t -> "
                f"(alpha_t, sigma_t); {type(denoiser).__name__} has none. Wrap your network with "
                "feasibly.wrap(net, kind=..., schedule=...), or set `.schedule`."
            )
        _check_schedule(schedule)
        self.denoiser = denoiser
        self.schedule: Callable[[Tensor], tuple[Tensor, Tensor]] = schedule
        own = getattr(denoiser, "own_means", False)
        self.settles: bool = own if settles is None else settles

    def noise_level(self, t: Tensor) -> float:
        r"""Returns the noise level :math:`\sigma_t / \alpha_t`, relative to the signal."""
        alpha_t, sigma_t = self.schedule(t)
        return (sigma_t / alpha_t).item()

    def begin(self, z: Tensor, t: Tensor) -> Tensor:
        r"""Returns the states that runs begin with: :meth:`noisy` ones, or where members settle,
        :math:`\alpha_t d(x_t) + \sigma_t z`, taken twice.

        At high noise :math:`d(x_t)` is nearly the mean of the data, under the member's own
        conditions. The error of the mean falls each time by :math:`s^2 / (s^2 + \sigma^2)`, with
        :math:`s` the data's standard deviation.

        Arguments:
            z: Standard normal noise, with shape (B, *).
            t: The time, with shape ().
        """
        x_t = self.noisy(z, t)
        alpha_t, sigma_t = self.schedule(t)
        for _ in range(ROUNDS if self.settles else 0):
            x_t = alpha_t * self(x_t, t) + sigma_t * z
        return x_t

    def leans(self, z: Tensor, t: Tensor) -> bool:
        """Whether the data's mean is far from zero and not known, given standard normal noise of a
        few members, with shape (B, *), and the time at which runs begin."""
        if getattr(self.denoiser, "data_moments", None) is not None:
            return False
        alpha_t, sigma_t = self.schedule(t)
        mean = self(self.noisy(z, t), t).mean(dim=0)
        return bool((alpha_t * mean / sigma_t).square().mean().sqrt() > LEANS)

    def noisy(self, z: Tensor, t: Tensor) -> Tensor:
        r"""Returns states at time `t` of normal data, :math:`\alpha_t \mu + \sqrt{\alpha_t^2 s^2 +
        \sigma_t^2} \, z`.

        The mean :math:`\mu` and the standard deviation :math:`s` are the denoiser's attribute
        `data_moments`, zero and one if it has none. A start that ignores the mean leaves it in
        the samples where the highest noise does not cover it.

        References:
            | Exploiting the Signal-Leak Bias in Diffusion Models (Everaert et al., 2024)
            | https://arxiv.org/abs/2309.15842

        Arguments:
            z: Standard normal noise, with shape (B, *).
            t: The time, with shape ().
        """
        mean, std = moments_of(self.denoiser, z)
        alpha_t, sigma_t = self.schedule(t)
        return alpha_t * mean + torch.sqrt((alpha_t * std) ** 2 + sigma_t**2) * z

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        # A denoiser that writes into its input is refused. It gets a copy, so that the state stays
        # as it was, and no hook sees a view that was written to, which would end the process.
        counts, members, meter = _COUNTS.get(), x_t.shape[0], progress.current()
        if counts is None:
            return self._estimate(x_t.clone(), t)
        counts.forward += 1
        counts.member_forward += members

        inner = x_t.clone()
        start = time.perf_counter()
        x_0 = self._estimate(inner, t)
        counts.seconds += time.perf_counter() - start
        meter.advance(members)

        def enter() -> None:
            counts.backward += 1
            counts.member_backward += members

        def leave(seconds: float) -> None:
            counts.seconds += seconds
            meter.advance(progress.work(0, members))

        return watched(inner, x_0, enter, leave)

    def _estimate(self, x_t: Tensor, t: Tensor) -> Tensor:
        version = None if x_t.is_inference() else x_t._version
        with networks_mode() as cast:
            x_0 = self.denoiser(x_t, t)
        if version is not None and x_t._version != version:
            raise DenoiserError(
                "The denoiser changes its input x_t in place, which is the sampler's own state; "
                "make it work on a copy."
            )
        mean = x_0 if isinstance(x_0, Tensor) else getattr(x_0, "mean", x_0)
        x_0 = x_0 if callable(mean) else mean  # an array's `mean` is a method
        if cast and isinstance(x_0, Tensor):
            x_0 = x_0.to(x_t.dtype)
        _check_output(x_0, x_t)
        return x_0


@contextmanager
def own_mode() -> Generator[None]:
    """Computes in the library's own mode, whatever modes of torch the caller is in: no gradients
    by default, no inference mode, autocast for networks alone, and graphs that may be gone through
    more than once."""
    found = tuple(
        (device, torch.get_autocast_dtype(device))
        for device in DEVICES
        if torch.is_autocast_enabled(device)
    )
    token = _AUTOCAST.set(found or _AUTOCAST.get())  # an inner call finds none
    try:
        with ExitStack() as modes:
            modes.enter_context(torch.inference_mode(False))
            modes.enter_context(torch.no_grad())
            modes.enter_context(CHECKPOINTS)
            for device, _ in found:
                modes.enter_context(torch.autocast(device, enabled=False))
            if functorch := sys.modules.get("torch._functorch.config"):
                modes.enter_context(functorch.patch(donated_buffer=False))
            yield
    finally:
        _AUTOCAST.reset(token)


@contextmanager
def networks_mode() -> Generator[bool]:
    """Computes what a network does, under the autocast that the caller has on; tells if there is
    one."""
    modes = _AUTOCAST.get()
    with ExitStack() as stack:
        for device, dtype in modes:
            stack.enter_context(torch.autocast(device, dtype))
        yield bool(modes)


def explained(error: Exception) -> str:
    """Returns what torch's message means and what to do, in a sentence, of a tensor that was made
    in inference mode; an empty one for other errors."""
    if "nference tensor" not in str(error):
        return ""
    return (
        "One of its tensors was made under torch.inference_mode() and has no gradients. Create or "
        "load it outside of that mode, under torch.no_grad() if need be"
    )


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


def moments_of(denoiser: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean and the standard deviation of the data that a denoiser knows, which
    broadcast against samples `like`; zero and one if it does not say."""
    mean, std = getattr(denoiser, "data_moments", None) or (0.0, 1.0)
    return along_channels(mean, like), along_channels(std, like)


def along_channels(value: Any, like: Tensor) -> Tensor:
    """Returns numbers, one for each channel (the first axis of a sample) if they are a list, so
    that they broadcast against samples `like`, with shape (B, *)."""
    value = torch.as_tensor(value).to(like)
    if value.ndim == 1 and len(value) > 1:
        value = value.reshape(-1, *(1,) * (like.ndim - 2))
    try:
        return value.expand(like.shape[1:])
    except RuntimeError as error:
        raise DenoiserError(
            "The data's mean or standard deviation, as the denoiser states it, has shape "
            f"{tuple(value.shape)}, but a sample has shape {tuple(like.shape[1:])}. Give one "
            "number, one for each channel, or a whole sample."
        ) from error


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
            "The schedule must return two tensors, alpha_t and sigma_t, with the shape of t; for "
            f"a scalar t it returned {found!r:.200}."
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
        fix = "cast its output back"
        if x_0.is_complex():
            fix = AS_REAL
        elif x_0.dtype in (torch.float32, torch.float64):
            fix += f", or sample with dtype={x_0.dtype}"
        raise DenoiserError(
            f"The denoiser returned {x_0.dtype} for a state of {x_t.dtype}; {fix}."
        )
