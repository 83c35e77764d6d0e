r"""Which members of an ensemble a network is being called for.

A conditional network needs the conditions of just those members that are in a call, and no caller
hands it the whole ensemble: samplers draw in chunks and draw again what failed, and minimizers ask
only for the members that still search. Passing indices through every one of them would burden all
constraints and methods for the sake of a few networks, so the rows of a call are kept here.
"""

__all__ = ["among", "calling", "current"]

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_MEMBERS: ContextVar[Tensor | None] = ContextVar("members", default=None)


def current() -> Tensor | None:
    r"""Returns the indices of the members in the batch, with shape :math:`(B)`; None outside of a
    run."""
    return _MEMBERS.get()


@contextmanager
def calling(
    members: Sequence[int] | Tensor, device: torch.device | str | None = None
) -> Generator[None]:
    """Says that every call within is for the members of these indices, in this order."""
    token = _MEMBERS.set(torch.as_tensor(members, dtype=torch.long, device=device))
    try:
        yield
    finally:
        _MEMBERS.reset(token)


@contextmanager
def among(rows: Tensor) -> Generator[None]:
    """Says that every call within is for these rows of the batch only."""
    batch = _MEMBERS.get()
    token = _MEMBERS.set(None if batch is None else batch[rows])
    try:
        yield
    finally:
        _MEMBERS.reset(token)
