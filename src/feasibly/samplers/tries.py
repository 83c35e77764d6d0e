r"""Sampling a member again until its likelihood of the constraint keeps it.

This is rejection sampling. A pilot sets the bar of likelihood above which a member is kept for
certain. It has a seed of its own, so no member depends on which others there are.
"""

__all__ = [
    "Kept",
    "Pilot",
    "answers",
    "checked",
    "expected",
    "like_pilot",
    "sample_pilot",
    "sample_until_kept",
    "trying",
]

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import progress
from ..members import among, calling
from ..randomness import MemberNoise
from ..sampling import Problem
from .base import Sampler
from .slopes import mapped

PILOT_SEED = 2**32 - 1  # no ensemble's, but for one in four billion


@dataclass(frozen=True)
class Pilot:
    """What a pilot has shown of a problem.

    Attributes:
        key: The sampler that it is of, in words.
        log_bar: The log-likelihood of the constraint from which on a member is kept for certain.
        answer: The denoiser's estimate for a fixed state, with shape (1, *). By it members with
            other conditions are found.
        residual: The residual of that estimate, with shape (1, m). By it members with other
            targets are found.
        tries: The number of tries that a sample is expected to take.
    """

    key: str
    log_bar: float
    answer: Tensor
    residual: Tensor
    tries: float = 1.0

    def is_of(self, sampler: Sampler) -> bool:
        """Whether it was sampled for the settings of a sampler."""
        return self.key == repr(sampler)


class Kept(NamedTuple):
    """What members are left with after their tries.

    Attributes:
        found: What was sampled of each.
        kept: Which were kept at one of their tries, with shape (B).
        likelihood: The sum of the likelihoods of all tries, over the bar.
        beyond: The part of it that is beyond the bar.
    """

    found: Any
    kept: Tensor
    likelihood: float
    beyond: float


@torch.no_grad()
def sample_pilot(
    sampler: Any,
    problem: Problem,
    size: int,
    log_likelihoods: Callable[[MemberNoise], Tensor],
    log_bar: Callable[[Tensor], float],
) -> Pilot:
    """Samples a pilot.

    Arguments:
        sampler: The sampler that it is of, with `tries`.
        problem: What a dry run shows of the problem.
        size: How many members to sample.
        log_likelihoods: Samples members with a noise, and returns their log-likelihoods, with
            shape (B).
        log_bar: The bar, given those of all.
    """
    like, found = problem.x_0, []
    rest = (tuple(like.shape[1:]), 0, like.dtype, like.device)
    work = size * progress.work(*sampler.expected(problem.residuals))
    with progress.current().part("pilot", work):
        for ids in torch.arange(size).split(max(1, min(problem.chunk, size))):
            with calling([problem.member] * len(ids), like.device):
                found.append(log_likelihoods(MemberNoise(PILOT_SEED, ids.tolist(), *rest)))
    answer = answers(sampler, MemberNoise(0, [problem.member], *rest))
    with calling([problem.member], like.device):
        r = sampler.constraint.residual(answer)
    log_h = torch.cat(found)
    bar = log_bar(log_h)
    kept = (log_h - bar).clamp(max=0).exp().nan_to_num().mean().item()
    tries = sum((1 - kept) ** k for k in range(sampler.tries))
    return Pilot(repr(sampler), bar, answer, r, tries)


def expected(sampler: Any, residuals: int) -> tuple[float, float]:
    """Returns the forward and backward evaluations that a sample is expected to take, given a
    sampler with `tries`: as many of these as its pilot took, one if it has none, and one iteration
    of the last projection."""
    quick = replace(sampler.minimize, steps=1)
    one = replace(sampler, minimize=quick, tries=1).budget(residuals)
    if sampler.tries == 1 or sampler.pilot is None:
        return one
    forward, backward = _try(sampler, residuals)
    more = sampler.pilot.tries - 1
    return one[0] + more * forward, one[1] + more * backward


def _try(sampler: Any, residuals: int) -> tuple[int, int]:
    """Returns the most forward and backward evaluations of a try."""
    one, two = (replace(sampler, tries=k).budget(residuals) for k in (1, 2))
    return two[0] - one[0], two[1] - one[1]


def trying(sampler: Any, pilot: Pilot, members: int) -> AbstractContextManager[None]:
    """Declares that what is inside are the tries of so many members, given a pilot."""
    work = progress.work(*_try(sampler, pilot.residual.shape[1]))
    return progress.current().part(expected=members * pilot.tries * work)


def checked(sampler: Sampler, pilot: Pilot | None) -> Pilot:
    """Returns the pilot of a sampler.

    Raises:
        ValueError: If it has none for its settings.
    """
    if pilot is None or not pilot.is_of(sampler):
        raise ValueError(
            f"{type(sampler).__name__} has no pilot for its settings; take "
            "`sampler.prepare(problem)`."
        )
    return pilot


def answers(sampler: Sampler, noise: MemberNoise) -> Tensor:
    """Returns the denoiser's estimate for one and the same state, as noisy as data, under each
    member's conditions; with shape (B, *)."""
    times = torch.linspace(0, 1, 65, dtype=noise.dtype, device=noise.device)
    t = min(times, key=lambda t: abs(math.log(sampler.noise_level(t))))
    fixed = MemberNoise(PILOT_SEED, [0], noise.shape, 0, noise.dtype, noise.device)
    x_t = sampler.denoiser.noisy(fixed(), t)
    with calling(noise.members, noise.device):
        return sampler.denoiser(x_t.expand(len(noise.members), *noise.shape).contiguous(), t)


def like_pilot(sampler: Sampler, pilot: Pilot, noise: MemberNoise) -> tuple[Tensor, Tensor]:
    """Returns which members have the pilot's prior, and which its targets, both with shape (B)."""
    assert sampler.constraint is not None
    answer = answers(sampler, noise)
    error = (answer - pilot.answer).flatten(start_dim=1).norm(dim=1)
    with calling(noise.members, noise.device):
        x_0 = pilot.answer.expand(len(noise.members), *noise.shape).contiguous()
        r = sampler.constraint.residual(x_0)
    size = pilot.residual.abs().nan_to_num(0, 0, 0).max().item()
    near = torch.isclose(r, pilot.residual, rtol=1e-3, atol=1e-5 * size, equal_nan=True)
    return ~(error > 0.01 * pilot.answer.norm()), near.all(dim=1)


def sample_until_kept(
    noise: MemberNoise,
    tries: Tensor,
    log_bar: Tensor,
    sample: Callable[[MemberNoise, Tensor, int], tuple[Any, Tensor]],
    *,
    axis: int = 0,
    streams: int = 1,
) -> Kept:
    r"""Samples each member until it is kept.

    A try of likelihood :math:`h` is kept with probability :math:`\min(1, h / b)`, with :math:`b`
    the bar. Of a member that is kept at no try, one try is chosen, with :math:`h` as weights.

    Arguments:
        noise: The noise of the members.
        tries: How often each may be sampled, with shape (B).
        log_bar: The logarithm of each one's bar, with shape (B); infinite for none.
        sample: Samples members once, given the noise of the try, the rows of the members, and the
            number of the try. It returns a tensor, or a named tuple of tensors and such tuples,
            and the log-likelihoods, with shape (B).
        axis: The axis of the members in these tensors. Those of fewer axes are left as they are.
        streams: How many streams of noise a try takes.
    """
    rows = noise.rows
    kept = torch.zeros_like(rows, dtype=torch.bool)
    found, total = None, torch.empty(0)
    likelihood = beyond = 0.0
    meter, most = progress.current(), int(tries.max())
    for k in range(most):
        tried, before = len(rows), meter.done
        again = noise.again(rows, k * streams) if k else noise
        with among(rows):
            new, log_h = sample(again, rows, k)
        if k == 0:
            total = torch.full_like(log_h, -math.inf)
        u, v = (torch.special.ndtr(again().flatten(1)[:, 0]).log() for _ in range(2))
        keep = u <= log_h - log_bar[rows]
        total[rows] = torch.logaddexp(total[rows], log_h)
        chosen = keep | (v <= log_h - total[rows])  # the latter for what is never kept
        if k == 0:
            found = new
        else:
            to, of = rows[chosen], chosen.nonzero().squeeze(1)
            found = mapped(partial(_put, axis=axis, to=to, of=of), found, new)
        ratio = (log_h - log_bar[rows]).double().clamp(max=30).exp()
        likelihood += ratio.sum().item()
        beyond += (ratio - 1).clamp_min(0).sum().item()
        kept[rows] = keep
        rows = rows[~keep & (tries[rows] > k + 1)]
        share = len(rows) / tried  # as many of the rest again, at as much work
        meter.expect((meter.done - before) * sum(share**j for j in range(1, most - k)))
        if not rows.numel():
            break
    return Kept(found, kept, likelihood, beyond)


def _put(old: Tensor, new: Tensor, axis: int, to: Tensor, of: Tensor) -> Tensor:
    """Returns a tensor with some members in place of others; see :func:`sample_until_kept`."""
    return old if old.dim() <= axis else old.index_copy(axis, to, new.index_select(axis, of))
