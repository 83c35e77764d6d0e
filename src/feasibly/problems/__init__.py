"""The experiments of the paper as problems: data, constraints, ground truth."""

__all__ = ["layout"]

from collections.abc import Sequence

from ..ensemble import Layout
from . import ks

LAYOUTS = {"ks": ks.layout}
"""The axes of the samples of shipped priors, by the prior's name."""


def layout(prior: str, shape: Sequence[int]) -> Layout | None:
    """Returns the axes of a shipped prior's samples; None if they have no coordinates.

    Arguments:
        prior: The name of the prior.
        shape: The shape of one sample.
    """
    return LAYOUTS[prior](shape) if prior in LAYOUTS else None
