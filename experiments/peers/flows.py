"""PCFM's and ECI's own samplers, on flows of ours."""

__all__ = ["eci", "pcfm", "velocity"]

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

import torch
from torch import Tensor

from .checkouts import load

CHUNK = 16

Velocity = Callable[[Any, Tensor], Tensor]


def velocity(denoiser: Callable[[Tensor, Tensor], Tensor]) -> Velocity:
    """Returns the velocity of a rectified flow, whose time is 0 for noise and 1 for data."""

    def v(t: Any, u: Tensor) -> Tensor:
        s = 1 - torch.as_tensor(t).to(u)
        with torch.no_grad():
            return ((denoiser(u, s) - u) / s).to(u).contiguous()

    return v


def pcfm(
    v: Velocity, u: Tensor, residual: Callable[[Tensor], Tensor], steps: int, guided: bool
) -> Tensor:
    """Samples by PCFM's own code, with its final projection, 16 members at a time.

    Arguments:
        v: The velocity.
        u: The noise, with shape (N, nx, nt).
        residual: Maps a sample, with shape (nx nt), to its residuals.
        steps: The number of steps.
        guided: Whether its relaxed correction is on, with the settings that it has by default.
    """
    module = load("PCFM", "ffm_sampler")
    project = load("PCFM", "pcfm_sampling").fast_project_batched
    sampler, found = module.FFM_sampler(v, None), []
    for part in u.split(CHUNK):
        with redirect_stderr(io.StringIO()):  # a bar of progress
            x = sampler.pcfm_sample(
                part, steps, residual, guided_interpolation=guided, use_vmap=not guided
            )
        found.append(project(x.flatten(start_dim=1), residual).reshape(x.shape))
    return torch.cat(found)


def eci(
    v: Velocity, value: Tensor, known: Tensor, members: int, steps: int, mix: int, resample: int
) -> Tensor:
    """Samples under given values by ECI's own code, with white noise.

    Arguments:
        v: The velocity.
        value: A field with the given values, with shape (nx, nt).
        known: Where they are, with the same shape.
        members: The number of samples.
        steps: The number of steps.
        mix: How often a step is repeated.
        resample: After how many evaluations noise is resampled; 0 for never.
    """
    functional = load("ECI-sampling", "functional")
    given = load("ECI-sampling", "constraints").DirichletCondition(value, known)

    class Flow(torch.nn.Module):
        forward = staticmethod(v)

    model = functional.FFM(Flow(), kernel="randn")
    with redirect_stderr(io.StringIO()):
        return model.eci_sample(members, steps, mix, resample, tuple(value.shape), "cpu", given)
