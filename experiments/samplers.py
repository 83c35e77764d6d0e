"""How studies make samplers: the library's default and the paper's setting are said here alone."""

__all__ = ["PAPER", "Make", "default", "denoised", "paper", "post_hoc"]

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.minimizers import LBFGS
from feasibly.samplers import PPR, PostHoc, Sampler

Make = Callable[[Denoiser, Constraint], Sampler]

PAPER: dict[str, Any] = {
    "steps": 64,
    "repeats": 2,
    "minimize": LBFGS(steps=8, max_step=None),
    "sigma_max": math.inf,
    "retries": 0,
}
"""The paper's setting of PPR."""


def default(
    denoiser: Denoiser, constraint: Constraint, kind: type[PPR] = PPR, **options: Any
) -> Sampler:
    """Makes what the library samples by if it is asked for nothing else.

    Arguments:
        denoiser: The denoiser.
        constraint: The constraint.
        kind: A variant of PPR.
        options: What differs from the default.
    """
    return kind(denoiser, constraint, **options)


def paper(
    denoiser: Denoiser, constraint: Constraint, kind: type[PPR] = PPR, **options: Any
) -> Sampler:
    """Makes PPR in the paper's setting, with the arguments of :func:`default`."""
    return kind(denoiser, constraint, **PAPER | options)


def post_hoc(denoiser: Denoiser, constraint: Constraint, **options: Any) -> Sampler:
    """Makes the baseline that projects an unconstrained sample."""
    return PostHoc(denoiser, constraint, **options)


def denoised(method: type[Sampler], **options: Any) -> Make:
    """Returns how to make a method that returns its denoised estimate, and not the last state."""
    return partial(method, readout="clean", **options)
