"""A few members at a time, for states that do not fit into memory together."""

__all__ = ["Chunked"]

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..denoisers import Posterior
from ..members import calling, current


class Chunked(nn.Module):
    r"""Runs a denoiser on a few members at a time, and keeps the activations of none.

    What a denoiser keeps for a gradient grows with the members of a call. Here a call is split,
    and each part is computed again when its gradient is taken, so that the activations of one
    part are all that there is at any time. The values are those of the denoiser; a gradient takes
    one forward more, which no count of calls shows.

    One member at a time is rounded alike in whatever batch it comes, which no other chunk is.

    A network whose single state does not fit needs the same inside: :func:`feasibly.nn.recompute`.

    References:
        | Training Deep Nets with Sublinear Memory Cost (Chen et al., 2016)
        | https://arxiv.org/abs/1604.06174

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t, **conditions)` with an attribute `schedule`,
            which treats members one by one.
        chunk: How many members to run at a time.
        recompute: Whether to compute activations again. Without it only calls without a gradient
            take less memory.
    """

    def __init__(
        self, denoiser: Callable[..., Any], chunk: int = 1, recompute: bool = True
    ) -> None:
        super().__init__()
        if chunk < 1:
            raise ValueError(f"Chunked(chunk=...) must be at least 1, got {chunk}.")
        self.denoiser, self.chunk, self.recompute = denoiser, chunk, recompute
        self.schedule = getattr(denoiser, "schedule", None)

    def forward(self, x_t: Tensor, t: Tensor, **conditions: Any) -> Posterior:
        r"""Estimates :math:`p(x_0 \mid x_t)`.

        Arguments:
            x_t: The noisy state, with shape :math:`(B, *)`.
            t: The diffusion time, with shape :math:`()` or :math:`(B)`.
            conditions: What the denoiser is conditioned on. Tensors have a row for every sample of
                `x_t`, or one row or none for all; other values are passed on.
        """
        keep = x_t.requires_grad and torch.is_grad_enabled() and self.recompute
        members, parts = current(), []
        for rows in torch.arange(len(x_t), device=x_t.device).split(self.chunk):
            # kept with the part: its gradient is taken later, and perhaps in another thread,
            # where nobody says any more which members a call is for
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
    """Those rows of a condition; all of it, if it is the same for all samples."""
    if not isinstance(value, Tensor) or value.ndim == 0 or len(value) == 1:
        return value
    return value[rows.to(value.device)]
