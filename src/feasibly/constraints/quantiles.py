"""Constraints on the distribution of the values within a sample: histograms, quantiles."""

__all__ = ["Histogram", "Quantiles"]

import torch
from torch import Tensor

from ..arguments import typed
from .base import Array, Constraint, finite


class Histogram(Constraint):
    r"""The constraint that a sample has given values, in any order.

    The sorted values are equal, :math:`x_{(i)} = y_{(i)}`, so that both have one histogram.

    Arguments:
        y: The values, in units of a sample. There must be as many as a sample has.
        tolerance: The largest sum of squared differences of the sorted values, in those units
            squared. It is the number of values times the squared Wasserstein distance.
    """

    @typed
    def __init__(self, y: Array, tolerance: float) -> None:
        super().__init__(tolerance)
        self.y = finite(y, "Histogram(y=...)").flatten().sort().values

    def residual(self, x: Tensor) -> Tensor:
        x = x.flatten(start_dim=1)
        if x.shape[1] != self.y.numel():
            raise ValueError(
                f"Histogram: a sample has {x.shape[1]} values, but y has {self.y.numel()}. Give "
                "as many, or use Quantiles."
            )
        return x.sort(dim=1).values - self.y.to(x)

    def projection(self, x: Tensor) -> Tensor:
        r"""Returns `x` with each value replaced by the value of `y` with its rank."""
        rank = x.flatten(start_dim=1).argsort(dim=1).argsort(dim=1)
        return self.y.to(x)[rank].reshape(x.shape)


class Quantiles(Constraint):
    r"""The constraint that quantiles of the values within a sample are known.

    They are interpolated linearly between the sorted values.

    Arguments:
        levels: The levels in [0, 1], with shape :math:`(K)`; 0.5 is the median.
        y: The quantiles, in units of a sample, with shape :math:`(K)`.
        tolerance: The largest sum of squared errors, in those units squared.
    """

    @typed
    def __init__(self, levels: Array, y: Array, tolerance: float) -> None:
        super().__init__(tolerance)
        levels, y = finite(levels, "Quantiles(levels=...)"), finite(y, "Quantiles(y=...)")
        if levels.ndim != 1 or levels.shape != y.shape or levels.min() < 0 or levels.max() > 1:
            raise ValueError(
                "Quantiles needs levels in [0, 1] and as many values, both with shape (K), got "
                f"{levels.tolist()} and shape {tuple(y.shape)}."
            )
        order = levels.argsort()
        self.levels, self.y = levels[order], y[order]
        if (self.y.diff() < 0).any():
            raise ValueError("Quantiles(y=...) must not decrease with the level.")

    def residual(self, x: Tensor) -> Tensor:
        ordered = x.flatten(start_dim=1).sort(dim=1).values
        place = self.levels.to(x) * (ordered.shape[1] - 1)
        low = place.floor().long()
        high = (low + 1).clamp_max(ordered.shape[1] - 1)
        return torch.lerp(ordered[:, low], ordered[:, high], place - low) - self.y.to(x)
