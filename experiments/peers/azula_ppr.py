"""The sampler of PPR's own authors, of a pull request to azula."""

__all__ = ["azula_ppr"]

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from feasibly.constraints import Constraint
from feasibly.network import Network

from .checkouts import load


def azula_ppr(
    network: Network, constraint: Constraint, members: int, shape: tuple[int, ...], **settings: Any
) -> Tensor:
    """Samples by azula's `PPRSampler`, with shape (members, *).

    Arguments:
        network: The denoiser.
        constraint: The constraint, an equality.
        members: The number of samples.
        shape: The shape of one sample.
        settings: Its settings, such as `steps`; others are its defaults.
    """

    class Denoised:
        schedule = staticmethod(network.schedule)
        __call__ = staticmethod(lambda x_t, t: SimpleNamespace(mean=network(x_t, t)))

    make: Callable[..., Any] = load("azula", "guidance.ppr").PPRSampler
    sampler = make(Denoised(), torch.zeros(()), constraint.residual, silent=True, **settings)
    return sampler(sampler.init((members, *shape)))
