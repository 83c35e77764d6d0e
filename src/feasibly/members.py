"""The members of an ensemble that a network is evaluated for.

A conditional network needs the conditions of the members in its batch, which is rarely the whole
ensemble: runs sample in chunks and resample some members, and minimizers evaluate those that still
search. So the indices of the current batch are kept here, and passed by nobody.
"""

__all__ = ["among", "calling", "current"]

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_MEMBERS: ContextVar[Tensor | None] = ContextVar("members", default=None)


def current() -> Tensor | None:
    r"""Returns the indices of the members in the batch, with shape :math:`(B)`.

    It is None outside of a run.
    """
    return _MEMBERS.get()


@contextmanager
def calling(
    members: Sequence[int] | Tensor, device: torch.device | str | None = None
) -> Generator[None]:
    """Declares that all evaluations inside are for the members of these indices, in this order."""
    token = _MEMBERS.set(torch.as_tensor(members, dtype=torch.long, device=device))
    try:
        yield
    finally:
        _MEMBERS.reset(token)


@contextmanager
def among(rows: Tensor) -> Generator[None]:
    """Declares that all evaluations inside are for these rows of the batch only."""
    batch = _MEMBERS.get()
    token = _MEMBERS.set(None if batch is None else batch[rows])
    try:
        yield
    finally:
        _MEMBERS.reset(token)
