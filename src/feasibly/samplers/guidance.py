r"""What methods that treat a constraint as an observation share: the gradient of its residual."""

__all__ = ["SCALES", "guidance", "in_variance_preserving_units"]

import torch
from torch import Tensor

from .base import Sampler

SCALES = ("vp", "state")


@torch.enable_grad()
def guidance(sampler: Sampler, x_t: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Returns the estimate :math:`d_\theta(x_t)`, the norm :math:`\|r(d_\theta(x_t))\|` of each
    member, with shape (B), and its gradient with respect to :math:`x_t`.

    The norm is that of each member's own residual: one norm over the batch, as several
    implementations have it, would make a member's step depend on its batch. Where the residual
    is zero, so is the gradient.
    """
    x_t = x_t.detach().requires_grad_()
    x_0 = sampler.denoiser(x_t, t)
    assert sampler.constraint is not None  # refused when the sampler was made
    norm = torch.linalg.vector_norm(sampler.constraint.residual(x_0), dim=1)
    (gradient,) = torch.autograd.grad(norm.sum(), x_t)
    return x_0.detach(), norm.detach(), gradient


def in_variance_preserving_units(sampler: Sampler, t: Tensor, s: Tensor) -> Tensor:
    r"""Returns :math:`\rho_s \rho_t`, with :math:`\rho = \sqrt{\alpha^2 + \sigma^2}`.

    A gradient step written for variance-preserving states :math:`x / \rho`, taken on :math:`x_s`
    with the gradient with respect to :math:`x_t`, is longer by this factor.
    """
    scales = (sampler.denoiser.schedule(t), sampler.denoiser.schedule(s))
    rho_t, rho_s = (torch.sqrt(alpha**2 + sigma**2) for alpha, sigma in scales)
    return rho_s * rho_t
