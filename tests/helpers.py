"""What tests share: methods on a problem, and runs of them."""

from dataclasses import replace
from typing import Any

import torch

from feasibly.problem import Problem
from feasibly.run import run


def on(method: Any, denoiser: Any, constraint: Any = None, shape: Any = (2,)) -> Any:
    """Returns the kernel of a method; `sampled` gives it the shape and the type."""
    return method.bind(Problem(denoiser, constraint, shape))


def sampled(
    kernels: Any,
    n: Any,
    shape: Any,
    *,
    attempts: int = 1,
    dtype: torch.dtype = torch.float32,
    device: Any = None,
    batch_size: int | None = None,
    **options: Any,
) -> Any:
    """Samples by one kernel, or by several in turn."""
    several = [kernels] * attempts if not isinstance(kernels, list | tuple) else kernels
    place = {"shape": shape, "dtype": dtype, "device": device, "batch_size": batch_size}
    made = {id(one): replace(one, problem=one.problem.but(**place)) for one in several}
    return run([made[id(one)] for one in several], n, **options)
