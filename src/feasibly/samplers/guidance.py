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
    member, with shape (B), and its gradient with respect to :math:`x_t`.

    The norm is that of each member's own residual: one norm over the batch, as several
    implementations have it, would make a member's step depend on its batch. Where the residual
    is zero, so is the gradient.
    """
    x_t = x_t.detach().requires_grad_()
    x_0 = sampler.denoiser(x_t, t)
    norm = torch.linalg.vector_norm(constraint.residual(x_0), dim=1)
    (gradient,) = torch.autograd.grad(norm.sum(), x_t)
    return x_0.detach(), norm.detach(), gradient


def unit(sampler: Method, units: str, t: Tensor, s: Tensor) -> Tensor | float:
    r"""Returns the length of a unit step on :math:`x_s` along the gradient with respect to
    :math:`x_t`: one for the units "state", and :math:`\rho_s \rho_t` for "vp", with :math:`\rho =
    \sqrt{\alpha^2 + \sigma^2}`, which is a unit step on variance-preserving states
    :math:`x / \rho`.
    """
    if units == "state":
        return 1.0
    return sampler.scale(s) * sampler.scale(t)


def check_strength(sampler: Method, zeta: float, units: str) -> None:
    """Refuses a strength or units that make no sense."""
    name = type(sampler).__name__
    if not zeta >= 0:
        raise ValueError(f"{name}(zeta=...) must not be negative, got {zeta}.")
    if units not in UNITS:
        raise ValueError(f"{name}(units=...) must be one of {UNITS}, got {units!r}.")
