"""A test that numbers are uniform."""

__all__ = ["p_uniform"]

import math

import torch
from torch import Tensor


def p_uniform(values: Tensor, low: float, high: float) -> float:
    """Returns the p-value of Kolmogorov and Smirnov's test that values are uniform on an
    interval.

    References:
        | Use of the Kolmogorov-Smirnov, Cramer-von Mises and Related Statistics Without Extensive
        | Tables (Stephens, 1970), https://doi.org/10.1111/j.2517-6161.1970.tb00821.x
    """
    n = len(values)
    u = ((values.double() - low) / (high - low)).clamp(0, 1).sort().values
    steps = torch.arange(n + 1).double() / n
    gap = torch.maximum(steps[1:] - u, u - steps[:-1]).max().item()
    z = gap * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    if z < 0.2:  # where the series has not begun to converge, and the value is 1
        return 1.0
    return 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * z) ** 2) for k in range(1, 101))
