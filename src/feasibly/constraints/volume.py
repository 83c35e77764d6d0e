r"""The two laws that a density has on a constraint."""

__all__ = ["log_volume"]

import torch
from torch import Tensor

from .base import Constraint


@torch.enable_grad()
def log_volume(constraint: Constraint, x: Tensor) -> Tensor:
    r"""Returns :math:`\frac{1}{2} \log \det J J^\top` with :math:`J = \partial r / \partial x`,
    for each sample and with shape :math:`(B)`.

    A density :math:`p` has more than one law on :math:`r(x) = 0`. That of the *tube*, the limit of
    :math:`p` restricted to :math:`\|r\| \leq \epsilon`, is Bayes' for an observation whose noise
    vanishes; it has the density :math:`p / (\det J J^\top)^{1/2}` with respect to the surface's
    own measure, since the tube is thin where :math:`r` is steep. It depends on how a constraint is
    written: :math:`r` and :math:`r \, e^{x}` have the same zeros, and other tubes. That of the
    *surface*, :math:`p` itself with respect to that measure, does not. By the co-area formula,
    samples of the tube's law, weighted or drawn again by `log_volume(...).softmax(0)`, are of the
    surface's law; samples of the surface's, by `(-log_volume(...)).softmax(0)`, of the tube's.

    :class:`PPR` and :class:`CalibratedPPR` aim at the tube's law. Where residuals depend on one
    another, such as more residuals than a sample has elements, the volume is zero; it is NaN of a
    sample that is not finite.

    References:
        | Geometric Measure Theory (Federer, 1969), Section 3.2
        | https://doi.org/10.1007/978-3-642-62010-2

    Arguments:
        constraint: The constraint, with :math:`m` residuals. It is differentiated :math:`m` times.
        x: The samples, with shape :math:`(B, *)`.
    """
    x = x.detach().requires_grad_()
    r = constraint.residual(x)
    rows = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in r.T]
    J = torch.stack([row.flatten(start_dim=1).double() for row in rows], dim=1)
    if J.shape[1] > J.shape[2]:
        return torch.full_like(r[:, 0].detach(), -torch.inf)
    good = J.isfinite().flatten(start_dim=1).all(dim=1)
    volume = torch.linalg.svdvals(torch.where(good[:, None, None], J, 1.0)).log().sum(dim=1)
    return volume.where(good, torch.nan).to(x.dtype)
