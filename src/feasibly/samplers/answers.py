"""Whether samples have the same conditions and targets, by their answers to one fixed state."""

__all__ = ["SEED", "answers", "same"]

import math

import torch
from torch import Tensor

from ..members import calling
from ..randomness import MemberNoise
from .base import Method

SEED = 2**32 - 1  # of the state; no ensemble's, but for one in four billion


@torch.no_grad()
def answers(
    sampler: Method, noise: MemberNoise, of: Tensor | None = None, batch: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the estimates of one and the same state, as noisy as data, under each sample's
    conditions, with shape (B, *), and the residuals of one estimate under each sample's target,
    with shape (B, m).

    Arguments:
        sampler: The sampler that has denoiser and constraint.
        noise: The noise of the samples, whose indices are asked for.
        of: The estimate whose residuals are taken, with shape (1, *); None for the first one.
        batch: How many states may go through the denoiser at a time; None for all.
    """
    assert sampler.constraint is not None
    times = torch.linspace(0, 1, 65, dtype=noise.dtype, device=noise.device)
    t = min(times, key=lambda t: abs(math.log(sampler.noise_level(t))))
    fixed = MemberNoise(SEED, [0], noise.shape, 0, noise.dtype, noise.device)
    x_t, found = sampler.denoiser.noisy(fixed(), t), []
    for some in noise.rows.split(batch or len(noise.rows)):
        with calling([noise.members[i] for i in some.tolist()], noise.device):
            x_0 = sampler.denoiser(x_t.expand(len(some), *noise.shape).contiguous(), t)
            of = x_0[:1] if of is None else of
            found.append((x_0, sampler.constraint.residual(of.expand_as(x_0).contiguous())))
    estimates, residuals = zip(*found, strict=True)
    return torch.cat(estimates), torch.cat(residuals)


def same(x_0: Tensor, r: Tensor, answer: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which samples have the conditions of a sample, and which its target, both with shape
    (B), given what :func:`answers` returns of all and of that one."""
    error = (x_0 - answer).flatten(start_dim=1).norm(dim=1)
    size = residual.abs().nan_to_num(0, 0, 0).max().item() if residual.numel() else 0.0
    near = torch.isclose(r, residual, rtol=1e-3, atol=1e-5 * size, equal_nan=True)
    return ~(error > 0.01 * answer.norm()), near.all(dim=1)
