"""Denoisers that run a few members at a time, to save memory."""

__all__ = ["Chunked"]

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..arguments import typed
from ..denoisers import Posterior, hand_on
from ..members import calling, current


class Chunked(nn.Module):
    r"""Runs a denoiser on a few members at a time, and keeps no activations.

    The batch is split, and each part is computed again when its gradient is taken, so that memory
    holds the activations of one part. A gradient takes one more forward evaluation, which is not
    counted. With `chunk=1`, rounding is the same in every batch. With a larger chunk it is not.

    If the activations of a single state do not fit, see :func:`feasibly.nn.recompute`.

    References:
        | Training Deep Nets with Sublinear Memory Cost (Chen et al., 2016)
        | https://arxiv.org/abs/1604.06174

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t, **conditions)` with an attribute `schedule`.
            It must treat members one by one.
        chunk: How many members to run at a time.
        recompute: Whether to compute activations again. If not, only evaluations without a
            gradient take less memory.

    Example:
        >>> small = feasibly.Chunked(denoiser, chunk=2)
        >>> x, t = torch.zeros(5, 2), torch.tensor(0.5)
        >>> torch.equal(small(x, t).mean, denoiser(x, t).mean)  # by 2, 2 and 1 states
        True
    """

    @typed
    def __init__(
        self, denoiser: Callable[..., Any], chunk: int = 1, recompute: bool = True
    ) -> None:
        super().__init__()
        if chunk < 1:
            raise ValueError(f"Chunked(chunk=...) must be at least 1, got {chunk}.")
        self.denoiser, self.chunk, self.recompute = denoiser, chunk, recompute
        hand_on(self, denoiser)

    def forward(self, x_t: Tensor, t: Tensor, **conditions: Any) -> Posterior:
        r"""Estimates :math:`p(x_0 \mid x_t)`.

        Arguments:
            x_t: The noisy state, with shape :math:`(B, *)`.
            t: The diffusion time, with shape :math:`()` or :math:`(B)`.
            conditions: What else the denoiser is conditioned on. A tensor has one row for each
                sample of `x_t`, or one row or none for all. Other values are passed on.
        """
        keep = x_t.requires_grad and torch.is_grad_enabled() and self.recompute
        members, parts = current(), []
        for rows in torch.arange(len(x_t), device=x_t.device).split(self.chunk):
            # kept with the part, whose gradient is taken later and perhaps in another thread,
            # outside of the context that declares the members
            ids = None if members is None else members[rows.to(members.device)]
            given = {k: _rows_of(v, rows) for k, v in conditions.items()}
            part = x_t[rows[0] : rows[-1] + 1], t[rows] if t.ndim else t, ids, given
            parts.append(
                checkpoint(self._mean, *part, use_reentrant=False) if keep else self._mean(*part)
            )
        return Posterior(torch.cat(parts))

    def _mean(
        self, x_t: Tensor, t: Tensor, members: Tensor | None, conditions: dict[str, Any]
    ) -> Tensor:
        with nullcontext() if members is None else calling(members, members.device):
            found = self.denoiser(x_t, t, **conditions)
        return found if isinstance(found, Tensor) else found.mean


def _rows_of(value: Any, rows: Tensor) -> Any:
    """Returns some rows of a condition; all of it, if it is the same for all samples."""
    if not isinstance(value, Tensor) or value.ndim == 0 or len(value) == 1:
        return value
    return value[rows.to(value.device)]
