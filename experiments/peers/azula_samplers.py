"""Samplers of azula: MMPS and DPS of its release, and PPR, by PPR's authors, of a pull request."""

__all__ = ["azula_dps", "azula_mmps", "azula_ppr"]

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from feasibly.constraints import Constraint

from .checkouts import load

Network = Any  # a callable (x_t, t) with a schedule

NAME = "azula"


def azula_ppr(
    network: Network, constraint: Constraint, members: int, shape: tuple[int, ...], **settings: Any
) -> Tensor:
    """Samples by azula's `PPRSampler`, with shape (members, *).

    Arguments:
        network: The denoiser, a callable (x_t, t) that returns a tensor, with a schedule.
        constraint: The constraint, an equality.
        members: The number of samples.
        shape: The shape of one sample.
        settings: Its settings, such as `steps`; others are its defaults.
    """
    make: Callable[..., Any] = load(NAME, "guidance.ppr").PPRSampler
    zero = torch.zeros(())
    return drawn(
        make(shim(network), zero, constraint.residual, silent=True, **settings), members, shape
    )


def azula_dps(
    network: Network, constraint: Constraint, members: int, shape: tuple[int, ...], **settings: Any
) -> Tensor:
    """Samples by azula's `DPSSampler`; for arguments see :func:`azula_ppr`."""
    make: Callable[..., Any] = load(NAME, "guidance.dps").DPSSampler
    zero = torch.zeros(())
    return drawn(
        make(shim(network), zero, constraint.residual, silent=True, **settings), members, shape
    )


def azula_mmps(
    network: Network,
    constraint: Constraint,
    members: int,
    shape: tuple[int, ...],
    iterations: int,
    **settings: Any,
) -> Tensor:
    """Samples by azula's `MMPSDenoiser` and DDPM; for arguments see :func:`azula_ppr`.

    The variance of an exact value is the tolerance's share of it. `iterations` are the solver's.
    """
    variance = 1.0  # of observations with noise, whose residual is in units of their errors
    if constraint.noisy is None:
        variance = constraint.tolerance / constraint.residual(torch.zeros(1, *shape)).shape[1]
    guided = load(NAME, "guidance.mmps").MMPSDenoiser(
        shim(network),
        torch.zeros(()),
        constraint.residual,
        load(NAME, "linalg.covariance").IsotropicCovariance(torch.tensor(variance)),
        iterations=iterations,
    )
    make: Callable[..., Any] = load(NAME, "sample").DDPMSampler
    return drawn(make(guided, silent=True, **settings), members, shape)


def shim(network: Network) -> Any:
    """Returns the network in azula's form: its estimate is the mean of a posterior."""

    class Denoised:
        schedule = staticmethod(network.schedule)
        __call__ = staticmethod(lambda x_t, t: SimpleNamespace(mean=network(x_t, t)))

    return Denoised()


def drawn(sampler: Any, members: int, shape: tuple[int, ...]) -> Tensor:
    """Returns samples of one of its samplers."""
    return sampler(sampler.init((members, *shape)))
