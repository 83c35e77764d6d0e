r"""Flow matching: networks of torchcfm, `net(s, x)`, and of Meta's flow_matching, `net(x, s)`."""

__all__ = ["flow"]

import math
from typing import Any

import torch

from ..denoisers.adapter import Adapter, positional, time_first
from ..errors import DenoiserError, advise
from ..schedules import Flow

CALLS = {"torchcfm": time_first, "flow_matching": positional}
"""How a network is called, by the library that it is for."""


def flow(
    net: Any,
    schedule: Any,
    kind: str,
    *,
    coupling: str | None = None,
    source: str = "gaussian",
) -> Adapter:
    r"""Wraps a velocity :math:`v(x, s)` of the path :math:`x_s = A(s) x_{\mathrm{data}} + S(s)
    \epsilon`, with noise at :math:`s = 0` and data at 1.

    Arguments:
        net: The network.
        schedule: The path: :class:`feasibly.schedules.Flow`, a path of Meta's library (or its
            scheduler), or a matcher of torchcfm, whose `sigma` counts; None for straight lines,
            :math:`A = s` and :math:`S = 1 - s`.
        kind: Whose call order it has, a name of :data:`CALLS`.
        coupling: How noise and data were paired in training, "independent" or "ot"; None for what
            the matcher says, else independent.
        source: The distribution of the noise; only "gaussian", white, is sampled.

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
        advise(
            "The flow was trained on pairs of noise and data by optimal transport, so that p(x_t "
            "| x_0) is not Gaussian: x_0 from the velocity is not a posterior mean, and renoising "
            "gives states that the network has hardly seen. Expect samples off the data; for PPR, "
            "train with independent pairs.",
        )
    pairs = "by optimal transport" if coupling == "ot" else "independently"
    return Adapter(
        net,
        path,
        "velocity",
        clock="s = 1 - t, from noise at 0 to data at 1",
        call=CALLS[kind],
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
        f"{name} is not a known path; pass schedule=feasibly.schedules.Flow(A, S), with x_s = "
        "A(s) data + S(s) noise, noise at s = 0."
    )


def _matcher(name: str, sigma: float) -> tuple[Flow, str]:
    r"""The path of one of torchcfm's matchers, by its class's name.

    All but the Target matcher add noise of a constant scale :math:`\sigma` to :math:`A x_0 + B
    \epsilon`, and regress on :math:`A' x_0 + B' \epsilon` alone. Given :math:`x_0` and the state,
    its mean is the velocity of a path with :math:`S^2 = B^2 + \sigma^2`.
    """
    if name.startswith("SchrodingerBridge"):
        raise DenoiserError(
            f"{name} trains on bridges between pairs of noise and data, which given the data are "
            "not Gaussian around a multiple of them: its velocity does not give E[x_0 | x_t]. For "
            "PPR, train with the ConditionalFlowMatcher."
        )
    if name.startswith("Target"):
        return Flow(S=lambda s: 1 - (1 - sigma) * s), "independent"
    if name.startswith("VariancePreserving"):
        half = math.pi / 2
        return Flow(
            lambda s: torch.sin(half * s),
            lambda s: torch.sqrt(torch.cos(half * s) ** 2 + sigma**2),
        ), "independent"
    path = Flow(S=lambda s: torch.sqrt((1 - s) ** 2 + sigma**2)) if sigma else Flow()
    return path, "ot" if name.startswith("ExactOptimalTransport") else "independent"
