"""Noise that belongs to a member: it depends on the seed and the member's index alone."""

__all__ = ["MemberNoise", "drawn_seed", "generator"]

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Generator, Tensor


class MemberNoise:
    r"""A stream of standard normal noise for each member of an ensemble.

    In attempt :math:`a`, the noise of member :math:`i` comes from a generator on the CPU, seeded
    by `(seed, i, a)`. Later streams :math:`k` of an attempt are seeded by `(seed, i, a, k)`. A
    member has the same noise alone as in any batch, and on any device.

    Arguments:
        seed: The seed of the ensemble.
        members: The indices of the members, with samples of a `shape`.
        attempt: The attempt :math:`a`, of which `trial` is the stream :math:`k`.
        dtype: The type of the noise, which is needed on a `device`.
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
        self.seed, self.members, self.shape = seed, tuple(members), tuple(shape)
        self.attempt, self.dtype, self.device = attempt, dtype, device
        # Noise of small samples is generated for many calls at once, which is faster. How many
        # depends on the shape alone, and so does the stream.
        self.block = max(1, 2048 // max(1, math.prod(self.shape)))
        numbers = (attempt, trial) if trial else (attempt,)
        self.generators = [generator(seed, i, *numbers) for i in members]
        self.buffer = torch.empty(0)
        self.used = self.block

    @property
    def rows(self) -> Tensor:
        """The rows of all members, with shape (B)."""
        return torch.arange(len(self.members), device=self.device)

    def shared(self) -> Callable[[Tensor], Tensor]:
        """Returns a stream that all these members share, of noise in the shape of its argument. It
        is seeded by the seed, the attempt, and all their indices."""
        own = generator(self.seed, self.attempt, len(self.members), *self.members, 1)

        def randn(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=own, dtype=like.dtype).to(like.device)

        return randn

    def again(self, rows: Tensor, trial: int) -> "MemberNoise":
        """Returns stream `trial` of the same attempt, from its beginning, for some members."""
        members = [self.members[i] for i in rows.tolist()]
        rest = (self.shape, self.attempt, self.dtype, self.device)
        return MemberNoise(self.seed, members, *rest, trial=trial)

    def __call__(self, like: Tensor | None = None) -> Tensor:
        r"""Returns the next noise of every member, with shape :math:`(B, *)`.

        The argument is ignored. It lets a stream take the place of `torch.randn_like`.
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


def drawn_seed() -> int:
    """Draws an ensemble's seed from torch's global generator."""
    return int(torch.randint(2**32, ()))


def generator(*numbers: int) -> Generator:
    r"""Returns a generator on the CPU, seeded by several numbers :math:`\geq 0`.

    Its stream is unrelated to that of nearby numbers. It is also unrelated to that of
    `manual_seed(numbers[0])`, from which a user may have made the data.
    """
    seed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return Generator().manual_seed(int(seed))
