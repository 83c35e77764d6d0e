"""The volume factor between two distributions on a constraint."""

__all__ = ["log_volume"]

import torch
from torch import Tensor

from .base import Constraint


@torch.enable_grad()
def log_volume(constraint: Constraint, x: Tensor) -> Tensor:
    r"""Returns :math:`\frac{1}{2} \log \det J J^\top` with :math:`J = \partial r / \partial x`,
    with shape :math:`(B)`.

    A density :math:`p` can be restricted to :math:`r(x) = 0` in two ways.

    * The *tube* distribution is the limit of :math:`p` restricted to :math:`\|r\| \leq \epsilon`.
      It is Bayes' posterior for an observation whose noise vanishes. With respect to the surface
      measure of the constraint, its density is :math:`p / (\det J J^\top)^{1/2}`, since the tube
      is thin where :math:`r` is steep. It depends on how the residual is written: :math:`r` and
      :math:`r \, e^{x}` have the same zeros but different tubes.
    * The *surface* distribution has the density :math:`p` with respect to the surface measure. It
      depends on the zeros of :math:`r` only.

    The co-area formula relates the two. Weight or resample tube samples by
    `log_volume(...).softmax(0)` to get the surface distribution, and surface samples by
    `(-log_volume(...)).softmax(0)` to get the tube distribution. :class:`PPR` and
    :class:`CalibratedPPR` aim at the tube distribution.

    The result is -inf if the residuals depend on each other, for example if they outnumber the
    elements of a sample. It is NaN for a sample that is not finite.

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
