r"""What methods that treat a constraint as an observation share: the gradient of its residual."""

__all__ = ["check_strength", "guidance", "unit"]

import torch
from torch import Tensor

from ..constraints.base import Constraint
from .base import Method

UNITS = ("vp", "state")


@torch.enable_grad()
def guidance(
    sampler: Method, constraint: Constraint, x_t: Tensor, t: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns the estimate :math:`d_\theta(x_t)`, the norm :math:`\|r(d_\theta(x_t))\|` of each
    sample, with shape (B), and its gradient with respect to :math:`x_t`, which is zero where the
    residual is."""
    x_t = x_t.detach().requires_grad_()
    x_0 = sampler.denoiser(x_t, t)
    norm = torch.linalg.vector_norm(constraint.residual(x_0), dim=1)
    (gradient,) = torch.autograd.grad(norm.sum(), x_t)
    return x_0.detach(), norm.detach(), gradient


def unit(sampler: Method, units: str, t: Tensor, s: Tensor) -> Tensor | float:
    r"""Returns the length of a unit step on :math:`x_s` along the gradient with respect to
    :math:`x_t`: one for the units "state", and for "vp" :math:`\rho_s \rho_t`, a unit step on
    variance-preserving states :math:`x / \rho`."""
    return 1.0 if units == "state" else sampler.scale(s) * sampler.scale(t)


def check_strength(sampler: Method, zeta: float, units: str) -> None:
    """Refuses a strength or units that make no sense."""
    name = type(sampler).__name__
    if not zeta >= 0:
        raise ValueError(f"{name}(zeta=...) must not be negative, got {zeta}.")
    if units not in UNITS:
        raise ValueError(f"{name}(units=...) must be one of {UNITS}, got {units!r}.")
