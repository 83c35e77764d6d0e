"""Networks of score_sde: VP, sub-VP and VE."""

__all__ = ["score_sde"]

from collections.abc import Mapping
from typing import Any

from ..denoisers.adapter import Adapter
from ..errors import DenoiserError
from ..schedules import VE, VP


def score_sde(
    net: Any,
    schedule: Any = None,
    conditions: Mapping[str, Any] | None = None,
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
        conditions: See :class:`Adapter`.
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
    return Adapter(net, schedule, output or default, time=time, clock=clock, conditions=conditions)
