"""Tensors in double precision, which many tests need."""

import torch


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def normal(*shape, seed=0):
    """Standard normal numbers of a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
