"""Normal values in intervals: how likely they are there, and where."""

__all__ = ["Inside", "inside", "positive", "truncated"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..linalg import eigh

SHORT = 1e-5  # standard deviations: in shorter intervals a density is even
NORMAL = 1e8  # degrees of freedom: with more Student's distribution is a normal


class Inside(NamedTuple):
    """Values in intervals: the log-probability that they are there, or the log-density, but for a
    constant, with shape (B); their mean there, with shape (B, m); and by how much less they are
    pulled there than normal values are, at most 1, with shape (B)."""

    log_h: Tensor
    mean: Tensor
    pull: Tensor


def positive(S: Tensor, least: float) -> Tensor:
    """Returns symmetric matrices, with shape (B, m, m), with eigenvalues of at least `least`."""
    small = torch.linalg.cholesky_ex(S - least * torch.eye(S.shape[1]).to(S)).info != 0
    if not small.any():
        return S
    values, vectors = eigh(S[small])
    firm = vectors * values.clamp_min(least)[:, None] @ vectors.mT
    return S.index_put((small,), firm)


def inside(
    mean: Tensor, S: Tensor, lower: Tensor, upper: Tensor, freedom: Tensor | None = None
) -> Inside:
    r"""Takes normal values into intervals.

    Values whose bounds are equal are conditioned on, which is exact and takes a density. The
    intervals are then taken one after another, the least likely first. Each takes its probability
    given those before, and leaves a normal of the mean and the covariance that it should have.
    So values that say the same count once, and independent ones are exact.

    With degrees of freedom :math:`\nu`, those that are conditioned on have Student's distribution
    of this mean and scale. It has heavier tails, which pull less.

    References:
        | Multivariate N-Way Risk Estimation (Mendell & Elston, 1974), for one after another
        | https://doi.org/10.2307/2529616

    Arguments:
        mean: The mean of the values, with shape (B, m).
        S: Their covariance, with shape (B, m, m).
        lower: The lower bounds, with shape (B, m).
        upper: The upper bounds, likewise.
        freedom: The degrees of freedom, with shape (B); None for a normal.
    """
    fixed = (lower == upper)[0]
    log_h, pull = mean.new_zeros(len(mean)), mean.new_ones(len(mean))
    if fixed.any():
        gap = (lower - mean)[:, fixed]
        L, _ = torch.linalg.cholesky_ex(S[:, fixed][:, :, fixed])
        solved = torch.cholesky_solve(torch.cat([gap[..., None], S[:, fixed]], dim=2), L)
        log_h, pull = _density((gap * solved[..., 0]).sum(dim=1), int(fixed.sum()), freedom)
        log_h = log_h - L.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        mean = mean + (S[:, :, fixed] @ solved[..., :1]).squeeze(-1)
        mean = torch.where(fixed, lower, mean)
        S = S - S[:, :, fixed] @ solved[..., 1:]
    left, tiny = ~fixed.expand_as(mean), torch.finfo(S.dtype).tiny
    for _ in range(int((~fixed).sum())):
        s = S.diagonal(dim1=1, dim2=2).clamp_min(tiny).sqrt()
        log_p, z, v = truncated((lower - mean) / s, (upper - mean) / s)
        i = log_p.masked_fill(~left, math.inf).argmin(dim=1, keepdim=True)
        log_h = log_h + log_p.gather(1, i)[:, 0]
        row = S.gather(1, i[..., None].expand(-1, 1, S.shape[2]))[:, 0] / s.gather(1, i)
        mean = mean + row * z.gather(1, i)
        S = S - (1 - v.gather(1, i))[..., None] * row[:, :, None] * row[:, None]
        left = left.scatter(1, i, False)
    return Inside(log_h, mean, pull)


def _density(square: Tensor, m: int, freedom: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the log-density of `m` values at a squared distance from their mean, in units of
    their scale, but for a constant; and by how much its slope is less than a normal's."""
    normal, one = -square / 2, torch.ones_like(square)
    if freedom is None:
        return normal, one
    light = ~(freedom < NORMAL)
    v = torch.where(light, one, freedom)
    heavy = torch.lgamma((v + m) / 2) - torch.lgamma(v / 2) - m / 2 * (v / 2).log()
    heavy = heavy - (v + m) / 2 * torch.log1p(square / v)
    pull = ((v + m) / (v + square)).clamp_max(1)
    return torch.where(light, normal, heavy), torch.where(light, one, pull)


def truncated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns :math:`\log P(a \leq z \leq b)` of a standard normal :math:`z`, and its mean and
    variance there, all with the shape of the bounds."""
    flip = a > 0  # so that the tail is the lower one, which is exact
    a, b = torch.where(flip, -b, a), torch.where(flip, -a, b)
    log_a, log_b = torch.special.log_ndtr(a), torch.special.log_ndtr(b)
    log_p = log_b + torch.log1p(-(log_a - log_b).clamp_max(-1e-12).exp())
    density = [(-x.square() / 2 - math.log(2 * math.pi) / 2 - log_p).exp() for x in (a, b)]
    mean = density[0] - density[1]
    ends = [torch.where(x.isinf(), 0.0, x) * p for x, p in zip((a, b), density, strict=True)]
    variance = (1 + ends[0] - ends[1] - mean.square()).clamp(0, 1)
    # of a short interval those differences cancel, and the density is even
    width, middle = b - a, (a + b) / 2
    short = width * (1 + middle.abs()) < SHORT
    even = width.clamp_min(torch.finfo(a.dtype).tiny).log() - middle.square() / 2
    log_p = torch.where(short, even - math.log(2 * math.pi) / 2, log_p)
    mean = torch.where(short, middle, mean)
    variance = torch.where(short, width.square() / 12, variance)
    return log_p, torch.where(flip, -mean, mean), variance
