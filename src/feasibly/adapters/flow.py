r"""Flow matching: networks of torchcfm, `net(s, x)`, and of Meta's flow_matching, `net(x, s)`."""

__all__ = ["flow"]

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import DenoiserError
from ..schedules import Flow
from .base import Adapter, positional


def time_first(net: Any, x: Tensor, time: Tensor, conditions: dict[str, Any]) -> Any:
    """Calls `net(time, x, **conditions)`."""
    return net(time, x, **conditions)


CALLS = {"torchcfm": time_first, "flow_matching": positional}
"""How a network is called, by the library that it is for."""


def flow(
    net: Any,
    schedule: Any,
    kind: str,
    conditions: Mapping[str, Any] | None = None,
    *,
    coupling: str | None = None,
    source: str = "gaussian",
) -> Adapter:
    r"""Wraps a velocity :math:`v(x, s)` of the path :math:`x_s = A(s) x_{\mathrm{data}} + S(s)
    \epsilon`, with noise at :math:`s = 0` and data at 1.

    Arguments:
        net: The network.
        schedule: The path: :class:`feasibly.schedules.Flow`, a path of Meta's library (or its
            scheduler), or a matcher of torchcfm; None for straight lines, :math:`A = s` and
            :math:`S = 1 - s`.
        kind: Whose call order it has, a name of :data:`CALLS`.
        conditions: See :class:`Adapter`.
        coupling: How noise and data were paired in training, "independent" or "ot"; None for what
            the matcher says, else independent.
        source: The law of the noise; only "gaussian", white, is sampled.

    Raises:
        DenoiserError: If the path is not understood, or has noise of another kind.

    Warns:
        UserWarning: If the coupling is by optimal transport.
    """
    if source != "gaussian":
        raise DenoiserError(
            f"The source is {source!r}, and renoising draws white Gaussian noise: the network "
            "would see states that it was never trained on. Whiten the source (x -> L^-1 x, with "
            "covariance L L^T) and wrap the network in those coordinates."
        )
    path, paired = _path(schedule)
    coupling = coupling or paired
    if coupling not in ("independent", "ot"):
        raise DenoiserError(f"coupling must be 'independent' or 'ot', got {coupling!r}.")
    if coupling == "ot":
        warnings.warn(
            "The flow was trained on pairs of noise and data by optimal transport, so that p(x_t "
            "| x_0) is not Gaussian: x_0 from the velocity is no posterior mean, and renoising "
            "gives states that the network has hardly seen. Expect samples off the data; train "
            "with independent pairs for PPR.",
            UserWarning,
            stacklevel=3,
        )
    pairs = "by optimal transport" if coupling == "ot" else "independently"
    return Adapter(
        net,
        path,
        "velocity",
        told="s = 1 - t, from noise at 0 to data at 1",
        call=CALLS[kind],
        conditions=conditions,
        notes=(
            f"called as net({'s, x' if kind == 'torchcfm' else 'x, s'})",
            f"noise and data were paired {pairs}, and the noise was white and Gaussian",
        ),
    )


def _path(given: Any) -> tuple[Flow, str]:
    """The path of a flow and the coupling behind it, from any library's object."""
    if given is None:
        return Flow(), "independent"
    if isinstance(given, Flow):
        return given, "independent"
    name = type(given).__name__
    if name.endswith("ConditionalFlowMatcher"):
        return _matcher(name, float(getattr(given, "sigma", 0.0)))
    scheduler = getattr(given, "scheduler", given)
    if callable(scheduler):
        found = scheduler(torch.tensor(0.5))
        if hasattr(found, "alpha_t") and hasattr(found, "sigma_t"):
            path = Flow(lambda s: scheduler(s).alpha_t, lambda s: scheduler(s).sigma_t)
            return path, "independent"
    raise DenoiserError(
        f"{name} is no path that is known here; give schedule=feasibly.schedules.Flow(A, S), with "
        "x_s = A(s) data + S(s) noise, noise at s = 0."
    )


def _matcher(name: str, sigma: float) -> tuple[Flow, str]:
    """The path of one of torchcfm's matchers, by its class's name."""
    if name.startswith("Target"):
        return Flow(S=lambda s: 1 - (1 - sigma) * s), "independent"
    if sigma > 0:
        raise DenoiserError(
            f"{name}(sigma={sigma:g}) adds noise that its velocity does not account for, so that "
            "the velocity alone does not determine E[x_0 | x_t]. Use sigma=0, or the Target "
            "matcher; with a small sigma, schedule=feasibly.schedules.Flow() is nearly right "
            "where the path's own noise, 1 - s, is larger."
        )
    if name.startswith("VariancePreserving"):
        half = math.pi / 2
        return Flow(lambda s: torch.sin(half * s), lambda s: torch.cos(half * s)), "independent"
    ot = name.startswith(("ExactOptimalTransport", "SchrodingerBridge"))
    return Flow(), "ot" if ot else "independent"
