"""azula's denoisers, and any other that has their form, as they are."""

__all__ = ["azula"]

from collections.abc import Mapping
from typing import Any

from ..denoisers.adapter import Adapter, AsIs
from ..errors import DenoiserError


def azula(net: Any, schedule: Any = None, conditions: Mapping[str, Any] | None = None) -> Adapter:
    r"""Wraps a denoiser `(x_t, t) -> posterior` with an attribute `schedule`, to give it
    conditions and a statement; samplers take it without that, too.

    References:
        | https://github.com/probabilists/azula

    Arguments:
        net: The denoiser.
        schedule: Must be None: the denoiser has its own.
        conditions: See :class:`Adapter`.

    Raises:
        DenoiserError: If it has no schedule, or is given a second one.
    """
    own = getattr(net, "schedule", None)
    if not callable(net) or not callable(own):
        raise DenoiserError(
            f"{type(net).__name__} is no denoiser of azula's form: it has no attribute "
            "`schedule`. For a bare network, say what it predicts: kind='eps', for instance."
        )
    if schedule is not None:
        raise DenoiserError(
            f"{type(net).__name__} has a schedule, {own!r}, which another cannot replace; leave "
            "schedule out, or set it where the denoiser is made."
        )
    return AsIs(net, conditions)
