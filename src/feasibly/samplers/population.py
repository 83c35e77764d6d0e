r"""A population of weighted particles, which samples share.

Weights are kept as logarithms, with shape (K, B): K particles in each of B trajectories.
"""

__all__ = ["Cloud", "Walk", "Weighted", "drawn", "joined", "resampled", "taken", "uniform"]

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .ancestral import Last
from .base import Randn
from .slopes import Slopes, mapped
from .twist import Twist
from .weights import effective_size, log_mean, shares, systematic

EVEN = 1 / 2  # the share of a trajectory's particles that must matter, or they are resampled
ROUNDS = 8  # of the power method


class Walk(NamedTuple):
    """What all particles of a population have in common.

    Attributes:
        times: The times of all steps, from 1 to 0.
        renews: Which of the steps that begin at these times take gradients.
        randn: The noise.
        around: The noises that tell the curvature, each with shape (1, *).
        of: Whose target and conditions each trajectory has, with shape (B).
        count: The number of samples.
        common: The number of values if products with the covariance are taken at some of the
            states only, and 0 if they are taken at all.
    """

    times: Tensor
    renews: Sequence[bool]
    randn: Randn
    around: Sequence[Tensor]
    of: Tensor
    count: int
    common: int = 0


class Cloud(NamedTuple):
    """The particles of a population before a step: K in each of B trajectories.

    Attributes:
        x: The states, with shape (K B, *): the first particles of all trajectories, and so on.
        log_w: The logarithms of their weights, with shape (K, B).
        log_h: Those of the likelihoods that the weights contain, likewise.
        last: The step before.
        slopes: The derivatives of the values there, where this step takes no gradients.
    """

    x: Tensor
    log_w: Tensor
    log_h: Tensor
    last: Last | None = None
    slopes: Slopes | None = None


class Weighted(NamedTuple):
    """Particles, and what the constraint says of them.

    Attributes:
        x: The states, with shape (K B, *).
        log_w: The logarithms of their weights, with shape (K, B).
        twist: What the constraint says.
        last: The step before.
    """

    x: Tensor
    log_w: Tensor
    twist: Twist
    last: Last | None


def resampled(seen: Weighted, u: Tensor) -> Weighted:
    """Resamples the particles of those trajectories in which few carry the weight.

    Arguments:
        seen: The particles.
        u: A number in [0, 1) for each trajectory, with shape (B).
    """
    K, B = seen.log_w.shape
    again = effective_size(seen.log_w) < EVEN * K
    if not again.any():
        return seen
    own = torch.arange(K, device=u.device)[:, None].expand(K, B)
    chosen = torch.where(again, systematic(shares(seen.log_w), u, K), own)
    log_w = torch.where(again, log_mean(seen.log_w), seen.log_w)
    flat = (chosen * B + torch.arange(B, device=u.device)).flatten()
    return _at(seen, flat)._replace(log_w=log_w)


def drawn(pool: Weighted, smooth: Tensor | None, n: int, randn: Randn) -> Cloud:
    """Draws n samples.

    Arguments:
        pool: The particles.
        smooth: What smoothing adds to the logarithms of the mean weights of trajectories, with
            shape (B). Then they are drawn from all particles; with None each is drawn from its
            own trajectory.
        n: The number of samples.
        randn: Where the noise comes from.
    """
    B = pool.log_w.shape[1]
    if smooth is None:
        own = pool.log_w[:, :n]
        chosen = systematic(shares(own), uniform(randn, own[0]), 1)[0] * B
        chosen = chosen + torch.arange(n, device=chosen.device)
    else:
        w = shares((pool.log_w + smooth).flatten())
        order = _along(pool.twist.x_0.flatten(start_dim=1), w, randn).argsort()
        chosen = order[systematic(w[order, None], uniform(randn, w[:1]), n)[:, 0]]
        chosen = chosen[randn(w[:n]).argsort()]  # so that their order means nothing
    x, _, twist, last = _at(pool, chosen)
    log_h = twist.log_h[None]
    return Cloud(x, torch.zeros_like(log_h), log_h, last)


def _along(x: Tensor, w: Tensor, randn: Randn) -> Tensor:
    """Returns where weighted points are along their first principal component, with shape (N).
    Systematic resampling in this order has a smaller variance than in any other that is as cheap
    (Gerber, Chopin & Whiteley, 2019, https://arxiv.org/abs/1707.01845)."""
    x = torch.where(x.isfinite(), x, 0.0)
    w = w.to(x)
    x = x - w @ x
    axis = randn(x[0])
    for _ in range(ROUNDS):
        axis = torch.nn.functional.normalize((w * (x @ axis)) @ x, dim=0)
    return x @ axis


def _at(seen: Weighted, index: Tensor) -> Weighted:
    """Returns some particles, given their rows, with the weights as they are."""
    x, twist, last = mapped(partial(taken, of=index), (seen.x, seen.twist, seen.last))
    return Weighted(x, seen.log_w, twist, last)


def taken(part: Tensor, of: Tensor) -> Tensor:
    return part[of] if part.dim() else part


def joined(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([one, other]) if one.dim() else one


def uniform(randn: Randn, like: Tensor) -> Tensor:
    """Returns random numbers in [0, 1), in the shape of `like`."""
    return torch.special.ndtr(randn(like).double())
