"""A network of the user's own, by what it predicts."""

__all__ = ["plain"]

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..denoisers.adapter import Adapter


def plain(
    net: Any,
    schedule: Any,
    kind: str,
    conditions: Mapping[str, Any] | None = None,
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
        conditions: See :class:`Adapter`.
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
        conditions=conditions,
        learned_variance=learned_variance,
    )
