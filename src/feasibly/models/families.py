"""Plain networks, and those of EDM, score_sde, PhysicsNeMo and azula, as denoisers."""

__all__ = ["azula", "edm", "physicsnemo", "plain", "score_sde"]

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..denoisers.adapter import Adapter, AsIs
from ..denoisers.predictions import PREDICTIONS
from ..errors import DenoiserError
from ..schedules import EDM, VE, VP
from .tables import TimeTable


def plain(
    net: Any,
    schedule: Any,
    kind: str,
    *,
    time: Callable[[Tensor], Tensor] | None = None,
    learned_variance: bool = False,
) -> Adapter:
    r"""Wraps `net(x_t, time)`, which predicts `kind`.

    Arguments:
        net: The network, a callable of states with shape :math:`(B, *)` and times with shape
            :math:`(B)`.
        schedule: The noise schedule it was trained with.
        kind: What it predicts, one of :data:`feasibly.denoisers.predictions.PREDICTIONS`. A
            velocity is the derivative with respect to the schedule's own clock: toward noise for
            :class:`feasibly.schedules.Rectified`, toward data for
            :class:`feasibly.schedules.Flow`.
        time: What the network gets for the time :math:`t` in [0, 1], from data to noise; by
            default the schedule's own clock. `lambda t: 999 * t` for one trained on a thousand
            steps, with `.round().long()` if it looks them up in a table.
        learned_variance: Whether to drop the second half of its output's channels, as of the
            networks of Dhariwal & Nichol (2021), https://arxiv.org/abs/2105.05233.

    Raises:
        DenoiserError: If the network or the schedule is not callable.
    """
    return Adapter(
        net,
        schedule,
        kind,
        time=time,
        clock="the schedule's own clock" if time is None else "a function of t of your own",
        learned_variance=learned_variance,
    )


def edm(
    net: Any,
    schedule: Any = None,
    *,
    sigma_range: tuple[float, float] | None = None,
) -> Adapter:
    r"""Wraps :math:`D(x, \sigma) = \mathbb{E}[x_0 \mid x = x_0 + \sigma \epsilon]`.

    It serves any schedule, as :math:`D(x_t / \alpha_t, \sigma_t / \alpha_t)`: EDM's and EDM2's
    networks, k-diffusion's denoisers and PhysicsNeMo's EDM preconditioner.

    References:
        | Elucidating the Design Space of Diffusion-Based Generative Models (Karras et al., 2022)
        | https://arxiv.org/abs/2206.00364

    Arguments:
        net: The denoiser, called as `net(x, sigma, **conditions)` with `sigma` of shape (B); for
            a class, `conditions={"class_labels": ...}`.
        schedule: The noise schedule to sample with; by default EDM's, over the noise levels that
            the network names, within [0.002, 80].
        sigma_range: The noise levels that the network was trained on, beyond which it gets none;
            by default its attributes `sigma_min` and `sigma_max`.
    """
    named = (getattr(net, "sigma_min", 0.0), getattr(net, "sigma_max", math.inf))
    low, high = map(float, sigma_range or named)
    schedule = schedule or EDM(max(low, 2e-3), min(high, 80.0))

    def time(t: Tensor) -> Tensor:
        alpha, sigma = schedule(t)
        return (sigma / alpha).clamp(low, high)

    return Adapter(
        net,
        schedule,
        "x0",
        time=time,
        clock=f"the noise level sigma / alpha, kept in [{low:g}, {high:g}]",
        scale=lambda at: 1 / at.alpha,
        notes=("the network sees x_t / alpha",),
    )


def score_sde(
    net: Any,
    schedule: Any = None,
    *,
    output: str | None = None,
) -> Adapter:
    r"""Wraps a network that was trained with one of score_sde's processes, in continuous time.

    It is called as `net(x, labels)`. Under VP and sub-VP the labels are :math:`999 s`, with
    :math:`s` the process's time, and the network predicts the noise; under VE they are
    :math:`\sigma`, and it predicts the score. For a *function* `score(x, s)` that hides this, use
    `kind="score"` with the same schedule.

    References:
        | Score-Based Generative Modeling through SDEs (Song et al., 2021), Appendix C
        | https://arxiv.org/abs/2011.13456

    Arguments:
        net: The network.
        schedule: :class:`feasibly.schedules.VP`, `SubVP` or `VE`.
        output: What the network predicts, "eps" or "score"; None for what the schedule implies.

    Raises:
        DenoiserError: If the schedule or the output is none of these.
    """
    if output not in (None, "eps", "score"):
        raise DenoiserError(
            f"kind='score_sde' takes output='eps' or 'score', got {output!r}; for a network that "
            f"predicts something else use kind={output!r}."
        )
    if isinstance(schedule, VE):
        default, time, clock = "score", lambda t: schedule(t)[1], "sigma"
    elif isinstance(schedule, VP):
        default, time = "eps", lambda t: schedule.time(t) * 999
        clock = "999 s, with s the process's time"
    else:
        raise DenoiserError(
            "kind='score_sde' needs the process it was trained with: schedule=feasibly.schedules."
            f"VP(beta_0, beta_1), SubVP(beta_0, beta_1) or VE(sigma_min, sigma_max); got "
            f"{schedule!r}."
        )
    return Adapter(net, schedule, output or default, time=time, clock=clock)


NEEDED = ("alpha", "sigma", "timesteps")

TIMES = 256

"""How many of the scheduler's own times are interpolated."""


def physicsnemo(
    net: Any,
    schedule: Any,
    *,
    predicts: str = "x0",
) -> Adapter:
    r"""Wraps a predictor `(x, s)` and its linear-Gaussian noise scheduler, an object with
    `alpha(s)`, `sigma(s)` and `timesteps(n)`; neither needs to be of that library.

    References:
        | https://github.com/NVIDIA/physicsnemo, physicsnemo.diffusion.noise_schedulers

    Arguments:
        net: The predictor, called as `net(x, s, **conditions)`; for a model with a condition,
            `conditions={"condition": ...}`.
        schedule: The noise scheduler.
        predicts: What it predicts, as for a plain network: "x0", "score", "eps", ...

    Raises:
        DenoiserError: If the scheduler is of another kind, or its noise is not Gaussian.
    """
    name = type(schedule).__name__
    missing = [part for part in NEEDED if not callable(getattr(schedule, part, None))]
    if missing:
        raise DenoiserError(
            f"kind='physicsnemo' needs a linear-Gaussian noise scheduler as its schedule, and "
            f"{name} has no {', '.join(missing)}(); for a network D(x, sigma) use kind='edm'."
        )
    if "student" in name.lower():
        raise DenoiserError(
            f"{name} draws Student-t noise, and renoising draws Gaussian noise: the network would "
            "see states that it was never trained on. Only Gaussian schedulers are supported."
        )
    if predicts not in PREDICTIONS:
        raise DenoiserError(f"predicts must be one of {[*PREDICTIONS]}, got {predicts!r}.")
    times = schedule.timesteps(TIMES)
    path = TimeTable(schedule.alpha, schedule.sigma, times[times > 0].flip(0), name)
    return Adapter(net, path, predicts, clock="the scheduler's own time")


def azula(net: Any, schedule: Any = None) -> Adapter:
    r"""Wraps a denoiser `(x_t, t) -> posterior` with an attribute `schedule`, to give it
    conditions and a statement; samplers take it without that, too.

    References:
        | https://github.com/probabilists/azula

    Arguments:
        net: The denoiser.
        schedule: Must be None: the denoiser has its own.

    Raises:
        DenoiserError: If it has no schedule, or is given a second one.
    """
    own = getattr(net, "schedule", None)
    if not callable(net) or not callable(own):
        raise DenoiserError(
            f"{type(net).__name__} is not a denoiser of azula's form: it has no attribute "
            "`schedule`. For a bare network, state what it predicts: kind='eps', for instance."
        )
    if schedule is not None:
        raise DenoiserError(
            f"{type(net).__name__} has a schedule, {own!r}, which another cannot replace; leave "
            "schedule out, or set it where the denoiser is made."
        )
    return AsIs(net)
