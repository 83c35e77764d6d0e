r"""Trajectories longer than a prior's window, denoised in overlapping windows (blankets)."""

__all__ = ["Blankets"]

from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import typed
from ..denoisers import Posterior, broadcast, hand_on
from ..members import among

STITCHES = ("symmetric", "causal", "average")


class Blankets(nn.Module):
    r"""Denoises a trajectory of :math:`T` frames by a denoiser of :math:`K` frames.

    Windows of :math:`K` frames, a stride :math:`S` apart, are denoised each by itself, and their
    estimates are joined:

    - `symmetric`: the middle :math:`S` frames of each window, and the outer ones of the first and
      the last;
    - `causal`: the first window, and the last :math:`S` frames of each later one;
    - `average`: the mean of all windows that have a frame.

    All windows are one batch of the network: a call costs :math:`(T - K) / S + 1` windows each.

    References:
        | Score-based Data Assimilation (Rozet & Louppe, 2023), Section 3.1
        | https://arxiv.org/abs/2306.10574
        | Appa: Bending Weather Dynamics with Latent Diffusion Models (Andry et al., 2025)
        | https://arxiv.org/abs/2504.18720

    Arguments:
        denoiser: The denoiser of windows, with shape :math:`(B, K, *)`.
        window: The number :math:`K` of frames of a window.
        stride: The frames :math:`S` from one window to the next; by default half a window.
        stitch: How estimates are joined.

    Raises:
        ValueError: If the stride leaves frames out, or there is no such `stitch`.

    Example:
        >>> schedule = feasibly.schedules.VP()
        >>> short = feasibly.oracles.Gaussian(torch.zeros(4), torch.eye(4), schedule)  # 4 frames
        >>> long = feasibly.wrappers.Blankets(short, window=4, stride=2)
        >>> long(torch.zeros(3, 10), torch.tensor(0.5)).mean.shape
        torch.Size([3, 10])
    """

    @typed
    def __init__(
        self, denoiser: Any, window: int, stride: int | None = None, stitch: str = "symmetric"
    ) -> None:
        super().__init__()
        stride = max(1, window // 2) if stride is None else stride
        if not 1 <= stride <= window:
            raise ValueError(
                f"Blankets(stride=...) must lie in [1, {window}], so that no frame is left out, "
                f"got {stride}."
            )
        if stitch not in STITCHES:
            raise ValueError(f"Blankets(stitch=...) must be one of {STITCHES}, got {stitch!r}.")
        self.denoiser = denoiser
        hand_on(self, denoiser)
        self.data_moments = _of_frame(self.data_moments)
        self.window, self.stride, self.stitch = window, stride, stitch

    def forward(self, x_t: Tensor, t: Tensor) -> Posterior:
        r"""Estimates the clean trajectories.

        Arguments:
            x_t: The noisy trajectories, with shape :math:`(B, T, *)`.
            t: The diffusion time, with shape :math:`()` or :math:`(B)`.

        Raises:
            ValueError: If windows do not cover the trajectories exactly.
        """
        n, frames = x_t.shape[:2]
        weights = self.weights(frames).to(x_t)
        starts = range(0, frames - self.window + 1, self.stride)
        windows = torch.stack([x_t[:, i : i + self.window] for i in starts], dim=1)
        times = t.repeat_interleave(len(starts)) if t.ndim else t
        members = torch.arange(n, device=x_t.device).repeat_interleave(len(starts))
        with among(members):  # a member's conditions are those of all its windows
            posterior = self.denoiser(windows.flatten(end_dim=1), times)
        estimates = getattr(posterior, "mean", posterior).unflatten(0, (n, len(starts)))
        x_0 = torch.zeros_like(x_t)
        for k, i in enumerate(starts):
            part = broadcast(weights[k], estimates[0, k]) * estimates[:, k]
            x_0 = x_0 + nn.functional.pad(
                part, (0, 0) * (x_t.ndim - 2) + (i, frames - self.window - i)
            )
        return Posterior(x_0)

    def weights(self, frames: int) -> Tensor:
        """Returns the weight of each frame of each window, with shape (windows, K): those of one
        frame of the trajectory sum to 1."""
        count, rest = divmod(frames - self.window, self.stride)
        if frames < self.window or rest:
            raise ValueError(
                f"Blankets: windows of {self.window} frames, {self.stride} apart, do not cover "
                f"{frames} frames exactly; use {self.window} plus a multiple of {self.stride}."
            )
        weights = torch.ones(count + 1, self.window)
        overlap = self.window - self.stride
        before, after = {
            "symmetric": (overlap // 2, overlap - overlap // 2),
            "causal": (overlap, 0),
            "average": (0, 0),
        }[self.stitch]
        weights[1:, :before] = 0
        weights[:-1, self.window - after :] = 0
        places = torch.arange(count + 1)[:, None] * self.stride + torch.arange(self.window)
        total = torch.zeros(frames).index_put_((places,), weights, accumulate=True)
        return weights / total[places]


def _of_frame(moments: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    """The mean and the standard deviation of a frame, given those of windows, whose first axis
    are frames."""
    if moments is None:
        return None
    mean, std = (value.mean(dim=0, keepdim=True) if value.ndim else value for value in moments)
    return mean, std
