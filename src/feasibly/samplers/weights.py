r"""Importance weights: Pareto smoothing, the effective sample size, resampling.

References:
    | Pareto Smoothed Importance Sampling (Vehtari et al., JMLR 25(72), 2024)
    | https://arxiv.org/abs/1507.02646
    | A new and efficient estimation method for the generalized Pareto distribution (Zhang &
    | Stephens, 2009), https://doi.org/10.1198/tech.2009.08017
"""

__all__ = ["effective_size", "log_mean", "shares", "smoothed", "systematic"]

import math

import torch
from torch import Tensor

FEWEST = 5  # weights that a tail can be fitted to
FLAT = 1e-9  # of weights that are relatively as near to the largest, differences are rounding


def shares(log_w: Tensor) -> Tensor:
    """Returns weights that add up to one along the first axis, in the shape of their logarithms;
    equal ones where all are zero."""
    log_w = log_w.masked_fill(log_w.isnan(), -math.inf)  # of a particle that is not finite
    none = ~log_w.isfinite().any(dim=0)
    return torch.where(none, 0.0, log_w).softmax(dim=0)


def log_mean(log_w: Tensor) -> Tensor:
    """Returns the logarithm of the mean weight along the first axis, given the logarithms."""
    log_w = log_w.nan_to_num(-math.inf, neginf=-math.inf)
    return log_w.logsumexp(dim=0) - math.log(len(log_w))


def effective_size(log_w: Tensor) -> Tensor:
    """Returns Kish's effective sample size of weights along the first axis."""
    return 1 / shares(log_w).square().sum(dim=0)


def systematic(w: Tensor, u: Tensor, count: int) -> Tensor:
    """Resamples systematically: returns the rows that are drawn, in order, with shape (count, B),
    given weights that add up to one along the first axis, with shape (K, B), and a number in
    [0, 1) for each column."""
    points = (torch.arange(count, device=w.device)[:, None] + u) / count
    ends = w.T.cumsum(dim=1).contiguous()
    drawn = torch.searchsorted(ends, points.T.contiguous(), right=True)
    return drawn.T.clamp_max(len(w) - 1)


def smoothed(log_w: Tensor) -> tuple[Tensor, float]:
    r"""Smooths the largest of `n` weights, and returns the logarithms and the diagnostic k-hat.

    The largest :math:`\min(n / 5, 3 \sqrt n)` weights are replaced by quantiles of a generalised
    Pareto distribution that is fitted to them. Its shape is k-hat: infinite if the tail has fewer
    than five weights, so that it cannot be fitted, and zero if all of them are equal.
    """
    log_w = log_w.double().nan_to_num(-math.inf, neginf=-math.inf)
    tail = min(len(log_w) // 5, math.ceil(3 * math.sqrt(len(log_w))))
    if not bool(log_w.isfinite().any()):
        return log_w, math.inf
    log_w = log_w - log_w.max()
    w, order = log_w.exp(), log_w.argsort()
    cut = w[order[-tail - 1]].clamp_min(torch.finfo(w.dtype).tiny)
    if tail >= FEWEST and cut > 1 - FLAT:
        return log_w, 0.0
    largest = order[w[order] > cut]
    if len(largest) < FEWEST:
        return log_w, math.inf
    excess = w[largest] - cut
    k, scale = _fit(excess)
    if not math.isfinite(k):
        return log_w, math.inf
    p = (torch.arange(len(largest), dtype=excess.dtype, device=excess.device) + 0.5) / len(largest)
    quantiles = -torch.log1p(-p) if k == 0 else torch.expm1(-k * torch.log1p(-p)) / k
    found = log_w.clone()
    found[largest] = (scale * quantiles + cut).log().clamp_max(0)
    return found, k


def _fit(x: Tensor) -> tuple[float, float]:
    """Returns shape and scale of a generalised Pareto distribution, by Zhang and Stephens' method,
    given a sample in ascending order. The shape is drawn towards 1/2, as by ten more values."""
    n = len(x)
    count = 30 + int(math.sqrt(n))
    j = torch.arange(1, count + 1, dtype=x.dtype, device=x.device)
    b = (1 - (count / (j - 0.5)).sqrt()) / (3 * x[int(n / 4 + 0.5) - 1]) + 1 / x[-1]
    k = torch.log1p(-b[:, None] * x).mean(dim=1)
    weights = (n * ((-b / k).log() - k - 1)).softmax(dim=0)
    b = (b * weights).sum()
    k = torch.log1p(-b * x).mean()
    return ((n * k + 10 * 0.5) / (n + 10)).item(), (-k / b).item()
