r"""Noise that belongs to a member: its draws depend on its seed and on nothing else."""

__all__ = ["MemberNoise", "generator"]

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor


class MemberNoise:
    r"""A stream of standard normal noise for each member of an ensemble.

    In attempt :math:`a`, member :math:`i` draws from a generator seeded by `(seed, i, a)`, on the
    CPU, and in a later trial :math:`k` of it from one seeded by `(seed, i, a, k)`. What it draws
    is the same alone as in any batch, and on any device.

    Arguments:
        seed: The seed of the ensemble.
        members: The indices of the members.
        shape: The shape of one sample.
        attempt: The attempt.
        dtype: The type of the noise.
        device: Where the noise is needed.
        trial: Which of several streams of an attempt; see :meth:`again`.
    """

    def __init__(
        self,
        seed: int,
        members: Sequence[int],
        shape: Sequence[int],
        attempt: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        trial: int = 0,
    ) -> None:
        self.members, self.shape, self.attempt = tuple(members), tuple(shape), attempt
        self.seed = seed
        self.dtype, self.device = dtype, device
        # Small samples are drawn many at a time: one call a draw and member would take longer
        # than a small network. The number depends on the shape only, so the stream does too.
        self.block = max(1, 2048 // max(1, math.prod(self.shape)))
        numbers = (attempt, trial) if trial else (attempt,)
        self.generators = [generator(seed, i, *numbers) for i in members]
        self.buffer = torch.empty(0)
        self.used = self.block

    def again(self, rows: Tensor, trial: int) -> "MemberNoise":
        """Returns another stream, from its beginning, for some of the members."""
        members = [self.members[i] for i in rows.tolist()]
        rest = (self.shape, self.attempt, self.dtype, self.device)
        return MemberNoise(self.seed, members, *rest, trial=trial)

    def __call__(self, like: Tensor | None = None) -> Tensor:
        r"""Draws the next noise of every member, with shape :math:`(B, *)`.

        The argument is ignored; with it, a stream can stand for `torch.randn_like`.
        """
        if self.used == self.block:
            draws = [
                torch.randn((self.block, *self.shape), generator=g, dtype=self.dtype)
                for g in self.generators
            ]
            self.buffer, self.used = torch.stack(draws, dim=1), 0
        noise = self.buffer[self.used].to(self.device)
        self.used += 1
        return noise


def generator(*numbers: int) -> Generator:
    r"""Returns a generator on the CPU, seeded by several numbers :math:`\geq 0`.

    Its stream is unrelated to that of nearby numbers, and to that of `manual_seed(numbers[0])`,
    from which a user may have drawn the data that this noise is added to.
    """
    seed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return Generator().manual_seed(int(seed))
