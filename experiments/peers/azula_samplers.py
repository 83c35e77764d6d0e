"""Samplers of azula: MMPS and DPS of its release, and PPR, by PPR's authors, of a pull request."""

__all__ = ["azula_dps", "azula_mmps", "azula_ppr"]

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from feasibly.constraints import Constraint

from .checkouts import load

NAME = "azula"


def azula_ppr(
    denoiser: Any, constraint: Constraint, members: int, shape: tuple[int, ...], **settings: Any
) -> Tensor:
    """Samples by azula's `PPRSampler`, with shape (members, *).

    Arguments:
        denoiser: The denoiser, a callable (x_t, t) that returns a tensor, with a schedule.
        constraint: The constraint, an equality.
        members: The number of samples.
        shape: The shape of one sample.
        settings: Its settings, such as `steps`; others are its defaults.

    Raises:
        Missing: If there is no checkout.
    """
    make: Callable[..., Any] = load(NAME, "guidance.ppr").PPRSampler
    return _guided(make, denoiser, constraint, members, shape, settings)


def azula_dps(
    denoiser: Any, constraint: Constraint, members: int, shape: tuple[int, ...], **settings: Any
) -> Tensor:
    """Samples by azula's `DPSSampler`; for all else see :func:`azula_ppr`."""
    make: Callable[..., Any] = load(NAME, "guidance.dps").DPSSampler
    return _guided(make, denoiser, constraint, members, shape, settings)


def azula_mmps(
    denoiser: Any,
    constraint: Constraint,
    members: int,
    shape: tuple[int, ...],
    iterations: int,
    **settings: Any,
) -> Tensor:
    """Samples by azula's `MMPSDenoiser` and DDPM; for all else see :func:`azula_ppr`.

    The variance of an exact value is the tolerance's share of it. `iterations` are the solver's.
    """
    variance = 1.0  # of observations with noise, whose residual is in units of their errors
    if constraint.noisy is None:
        variance = constraint.tolerance / constraint.residual(torch.zeros(1, *shape)).shape[1]
    guided = load(NAME, "guidance.mmps").MMPSDenoiser(
        shim(denoiser),
        torch.zeros(()),
        constraint.residual,
        load(NAME, "linalg.covariance").IsotropicCovariance(torch.tensor(variance)),
        iterations=iterations,
    )
    make: Callable[..., Any] = load(NAME, "sample").DDPMSampler
    return sampled(make(guided, silent=True, **settings), members, shape)


def _guided(
    make: Callable[..., Any],
    denoiser: Any,
    constraint: Constraint,
    members: int,
    shape: tuple[int, ...],
    settings: dict[str, Any],
) -> Tensor:
    zero = torch.zeros(())
    sampler = make(shim(denoiser), zero, constraint.residual, silent=True, **settings)
    return sampled(sampler, members, shape)


def shim(denoiser: Any) -> Any:
    """Returns a denoiser in azula's form: its estimate is the mean of a posterior."""

    class Denoised:
        schedule = staticmethod(denoiser.schedule)
        __call__ = staticmethod(lambda x_t, t: SimpleNamespace(mean=denoiser(x_t, t)))

    return Denoised()


def sampled(sampler: Any, members: int, shape: tuple[int, ...]) -> Tensor:
    """Returns samples of one of its samplers, with shape (members, *)."""
    return sampler(sampler.init((members, *shape)))
