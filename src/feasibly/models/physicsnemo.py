"""PhysicsNeMo's predictors, with their noise schedulers."""

__all__ = ["physicsnemo"]

from collections.abc import Mapping
from typing import Any

from ..denoisers.adapter import Adapter
from ..denoisers.predictions import PREDICTIONS
from ..errors import DenoiserError
from .tables import TimeTable

NEEDED = ("alpha", "sigma", "timesteps")
TIMES = 256
"""How many of the scheduler's own times are interpolated."""


def physicsnemo(
    net: Any,
    schedule: Any,
    conditions: Mapping[str, Any] | None = None,
    *,
    predicts: str = "x0",
) -> Adapter:
    r"""Wraps a predictor `(x, s)` and its linear-Gaussian noise scheduler, an object with
    `alpha(s)`, `sigma(s)` and `timesteps(n)`; neither needs to be of that library.

    For an `EDMPreconditioner`, `kind="edm"` does without a scheduler.

    References:
        | https://github.com/NVIDIA/physicsnemo, physicsnemo.diffusion.noise_schedulers

    Arguments:
        net: The predictor, called as `net(x, s, **conditions)`; for a model with a condition,
            `conditions={"condition": ...}`.
        schedule: The noise scheduler.
        conditions: See :class:`Adapter`.
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
    return Adapter(net, path, predicts, clock="the scheduler's own time", conditions=conditions)
