r"""Noise schedules that interpolate a table."""

__all__ = ["AlphaBar", "TimeTable"]

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..arguments import typed
from ..schedules import Schedule

LAST = 0.0682
"""The last signal scale of Stable Diffusion's table, before it is rescaled."""


def interpolate(table: Tensor, u: Tensor) -> Tensor:
    r"""Returns the entries of `table`, with shape (N), at positions `u` in [0, N - 1], with linear
    interpolation between them."""
    table = table.to(u)
    low = u.detach().floor().long().clamp(0, len(table) - 2)
    return torch.lerp(table[low], table[low + 1], u - low)


class AlphaBar(Schedule):
    r"""The variance-preserving schedule of a table :math:`\bar\alpha_0, \dots, \bar\alpha_{N-1}`:
    at the table's entries :math:`\alpha^2 = \bar\alpha` and :math:`\sigma^2 = 1 - \bar\alpha`, and
    between them the log signal-to-noise ratio is linear.

    The clock is the position :math:`u = (N - 1) t` in the table. Entries at the end that leave no
    signal (zero terminal SNR) are dropped.

    References:
        | Denoising Diffusion Probabilistic Models (Ho et al., 2020)
        | https://arxiv.org/abs/2006.11239
        | Common Diffusion Noise Schedules and Sample Steps are Flawed (Lin et al., 2023)
        | https://arxiv.org/abs/2305.08891, on zero terminal SNR

    Arguments:
        alpha_bar: The table, decreasing, from data to noise.

    Raises:
        ValueError: If it does not decrease from below 1, or has no two entries with signal.
    """

    least = 6e-8  # 2^-24 = 5.96e-8 stands for no signal in the tables of some libraries

    @typed
    def __init__(self, alpha_bar: Tensor) -> None:
        alpha_bar = alpha_bar.detach().double().cpu()
        self.steps = len(alpha_bar)
        alpha_bar = alpha_bar[alpha_bar > self.least]
        if len(alpha_bar) < 2 or not (alpha_bar.diff() < 0).all() or alpha_bar[0] >= 1:
            raise ValueError(
                "AlphaBar needs a table that decreases from below 1, from data to noise; got "
                f"{alpha_bar[:3].tolist()} ... {alpha_bar[-3:].tolist()}."
            )
        self.log_nsr = torch.log1p(-alpha_bar) - torch.log(alpha_bar)

    def other(self) -> "AlphaBar":
        """Returns the table rescaled to zero terminal SNR; or if it is so, the one before, taken
        to end with Stable Diffusion's signal."""
        root = torch.sigmoid(-self.log_nsr).sqrt()
        if len(root) == self.steps:
            return AlphaBar(((root - root[-1]) * root[0] / (root[0] - root[-1])).square())
        root = torch.cat([root, root.new_zeros(1)])  # steps without signal are one, at the end
        return AlphaBar((LAST + root * (root[0] - LAST) / root[0]).square())

    def time(self, t: Tensor) -> Tensor:
        return t * (len(self.log_nsr) - 1)

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        log_nsr = interpolate(self.log_nsr, self.time(t.double()))
        alpha, sigma = (torch.sigmoid(sign * log_nsr).sqrt().to(t) for sign in (-1, 1))
        return alpha, sigma

    def __repr__(self) -> str:
        kept, steps = len(self.log_nsr), self.steps
        dropped = "" if kept == steps else f", of {steps}: the last leave no signal"
        return f"AlphaBar({kept} steps{dropped})"


class TimeTable(Schedule):
    r"""The schedule :math:`(\alpha(s), \sigma(s))` of another library, whose times :math:`s` run
    over a table, geometrically between its entries.

    Arguments:
        alpha: The signal scale, a function of tensors :math:`s`.
        sigma: The noise scale, likewise.
        times: The positive times, from data to noise.
        name: What to call it.

    Raises:
        ValueError: If the times are not positive, finite and increasing, or fewer than two.
    """

    @typed
    def __init__(
        self,
        alpha: Callable[[Tensor], Tensor],
        sigma: Callable[[Tensor], Tensor],
        times: Sequence[float] | Tensor,
        name: str,
    ) -> None:
        self.alpha, self.sigma, self.name = alpha, sigma, name
        self.log_times = torch.as_tensor(times, dtype=torch.float64).log()
        if len(self.log_times) < 2 or not self.log_times.isfinite().all():
            raise ValueError(f"{name} has no range of positive, finite times: {times}.")
        if not (self.log_times.diff() > 0).all():
            raise ValueError(f"{name} must have times that increase from data to noise: {times}.")

    def time(self, t: Tensor) -> Tensor:
        return interpolate(self.log_times, t.double() * (len(self.log_times) - 1)).exp().to(t)

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor]:
        s = self.time(t)
        return self.alpha(s), self.sigma(s)

    def __repr__(self) -> str:
        low, high = (math.exp(self.log_times[k].item()) for k in (0, -1))
        return f"{self.name}(from {low:.3g} to {high:.3g})"
