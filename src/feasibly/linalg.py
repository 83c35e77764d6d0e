"""Matrix-free linear algebra, batched per sample."""

__all__ = ["cg"]

from collections.abc import Callable

import torch
from torch import Tensor


def cg(A: Callable[[Tensor], Tensor], b: Tensor, iterations: int, rtol: float = 1e-3) -> Tensor:
    r"""Solves :math:`A x = b` for each sample by conjugate gradients.

    A sample stops, and keeps its iterate, once :math:`\|A x - b\| \leq` `rtol` :math:`\|b\|` or
    where the curvature is not positive; scalars are accumulated in double precision.

    Arguments:
        A: A positive semi-definite operator, which maps :math:`(B, m)` to :math:`(B, m)`.
        b: The right-hand sides, with shape :math:`(B, m)`.
        iterations: The most iterations, each with one application of `A`.
        rtol: The relative residual at which to stop.

    Returns:
        The solutions, with shape :math:`(B, m)`.
    """
    x, r, p = torch.zeros_like(b), b.clone(), b.clone()
    rho = r.double().square().sum(dim=1)
    goal = rtol**2 * rho
    live = rho > goal

    for _ in range(iterations):
        if not live.any():
            break
        A_p = A(p)
        curvature = (p.double() * A_p.double()).sum(dim=1)
        live = live & (curvature > 0) & curvature.isfinite()
        step = torch.where(live, rho / curvature.where(live, torch.ones_like(rho)), 0.0)
        x = x + (step[:, None] * p).to(b.dtype)
        r = r - (step[:, None] * torch.where(live[:, None], A_p, 0.0)).to(b.dtype)

        rho_next = r.double().square().sum(dim=1)
        beta = torch.where(live, rho_next / rho.where(live, torch.ones_like(rho)), 0.0)
        p = (r + beta[:, None] * p).to(b.dtype)
        rho = rho_next
        live = live & (rho > goal)
    return x
