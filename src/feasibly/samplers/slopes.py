r"""Derivatives of values through the denoiser, and how they follow from one noise level to a lower
one."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..linalg import dependent, eigh, range_of
from .normals import positive

LARGE = 2**21  # numbers: arithmetic on larger tensors takes longer than on several of this size
DEPENDENT = 1e-6  # the least squared length of a combination of rows of length one


class Frame(NamedTuple):
    r"""A basis :math:`P` in which the derivatives of values are orthonormal.

    Attributes:
        basis: The matrix :math:`P`, with shape (B, m, m). The rows of :math:`P J` are orthonormal;
            those of dependent values are shorter.
        covariance: The values' covariance :math:`P J V J^\top P^\top`, with shape (B, m, m).
        log_volume: :math:`-\log |\det P|`, with shape (B).
    """

    basis: Tensor
    covariance: Tensor
    log_volume: Tensor


class Slopes(NamedTuple):
    r"""The derivatives of values.

    Attributes:
        J: The derivatives :math:`J = \partial v / \partial x_0` at states, with shape (B, m, D).
        VJ: Their products :math:`J V` with the covariance of :math:`x_0` given the states.
        level: The states' noise level.
        frame: The basis in which the derivatives are orthonormal, if it is known.
        kept: Which values they are of, with shape (B, m), or None for all.
    """

    J: Tensor
    VJ: Tensor
    level: float
    frame: Frame | None = None
    kept: Tensor | None = None

    def at(self, index: Any) -> Self:
        """Returns those of some states."""
        frame = self.frame and Frame(*(part[index] for part in self.frame))
        kept = None if self.kept is None else self.kept[index]
        return self._replace(J=self.J[index], VJ=self.VJ[index], frame=frame, kept=kept)


def blocks(count: int, size: int) -> Iterator[slice]:
    """Yields the parts of a batch of `count` states, with at most `size` states each."""
    for first in range(0, count, size):
        yield slice(first, first + size)


def mapped(function: Callable[..., Tensor], *values: Any) -> Any:
    """Returns nested tuples like the first, with a function of their tensors in place of each."""
    first = values[0]
    if isinstance(first, Tensor):
        return function(*values)
    if isinstance(first, tuple):
        parts = [mapped(function, *part) for part in zip(*values, strict=True)]
        return tuple(parts) if type(first) is tuple else type(first)(*parts)
    return first


def rows(values: Tensor, x_0: Tensor) -> Tensor:
    r"""Returns :math:`J = \partial v / \partial x_0`, in float64 with shape (B, m, D), of values
    with shape (B, m) and clean samples with shape (B, *)."""
    found = [torch.autograd.grad(v.sum(), x_0, retain_graph=True)[0] for v in values.unbind(dim=1)]
    return torch.stack(found, dim=1).flatten(start_dim=2).double()


def products(J: Tensor, mean: Tensor, x_t: Tensor, scale: Tensor) -> Tensor:
    r"""Returns :math:`J V` with :math:`V = c \, \partial d_\theta / \partial x_t`, in float64 with
    the shape of :math:`J`, (B, m, D), given the denoiser's estimates of states, with shape (B, *),
    and the scale :math:`c = \sigma_t^2 / \alpha_t`. It takes a gradient through the denoiser for
    each row."""
    found = [
        torch.autograd.grad(mean, x_t, row.reshape(mean.shape).to(mean), retain_graph=True)[0]
        for row in J.unbind(dim=1)
    ]
    return scale.double() * torch.stack(found, dim=1).flatten(start_dim=2).double()


class Common(NamedTuple):
    r"""Products with the covariance at some states, which stand for those of all states whose
    estimates are nearest to theirs.

    Attributes:
        x_0: The estimates, with shape (R, D).
        basis: An orthonormal basis :math:`Q` of the derivatives of values there, with shape
            (r, D).
        products: The products :math:`Q V`, with shape (R, r, D).
    """

    x_0: Tensor
    basis: Tensor
    products: Tensor

    def nearest(self, x_0: Tensor) -> Tensor:
        """Returns which of the states has the nearest estimate, with shape (B)."""
        return torch.cdist(x_0.flatten(start_dim=1).double(), self.x_0).argmin(dim=1)

    def of(self, J: Tensor, x_0: Tensor) -> Tensor:
        """Returns :math:`J V` at states, with shape (B, m, D), given the derivatives of values
        there, likewise, and the estimates, with shape (B, *). Outside of the basis :math:`V` is
        taken as its mean there."""
        nearest, found = self.nearest(x_0), torch.empty_like(J)
        for k, known in enumerate(self.products):
            some = J[nearest == k]
            shares = some @ self.basis.mT
            mean = (known * self.basis).sum() / len(self.basis)
            found[nearest == k] = shares @ known + mean * (some - shares @ self.basis)
        return found


def across(J: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    r"""Returns the covariance that a residual is given across the range of its Jacobian, with
    shape (B, m, m), and half the logarithm of its determinant there, with shape (B).

    If components depend on others, a change of a sample changes the residual along the range of
    :math:`J` alone, to first order. Its part across is small where components agree, and their
    contradiction where they do not. This part is taken as no more precise than white noise of the
    sample allows, :math:`\sigma^2 P D^2 P`, with :math:`P` the projection across the range and
    :math:`D` the lengths of the rows. It is zero if all are independent.

    Arguments:
        J: The Jacobian, with shape (B, m, D).
        sigma: The noise level.
    """
    gram = J @ J.mT
    squares = gram.diagonal(dim1=1, dim2=2)
    flat = torch.diag_embed((squares == 0).to(gram))  # rows of zeros, which add nothing below
    if not dependent(gram + flat, DEPENDENT).any():
        return torch.zeros_like(gram), torch.zeros_like(squares[:, 0])
    basis = range_of(gram, DEPENDENT)
    rest = torch.eye(J.shape[1]).to(gram) - basis @ basis.mT
    found = sigma**2 * (rest * squares[:, None] @ rest)
    values, _ = eigh(found)
    least = DEPENDENT**2 * sigma**2 * squares.amax(dim=1, keepdim=True)
    return found, values.where(values > least, 1.0).log().sum(dim=1) / 2


def spanned(J: Tensor, most: int) -> Tensor:
    """Returns an orthonormal basis of rows, with shape (r, D), given them with shape (n, D), or of
    the principal ones if there are more than `most`."""
    J = J[J.isfinite().all(dim=1) & J.any(dim=1)]
    _, sizes, basis = torch.linalg.svd(torch.nn.functional.normalize(J), full_matrices=False)
    return basis[:most][sizes[:most].square() > DEPENDENT * sizes[:1].square()]


def whitened(J: Tensor, VJ: Tensor, least: float = 0.0) -> Frame:
    """Returns the basis in which the derivatives of values are orthonormal, given them and their
    products with the covariance, both with shape (B, m, D), and the least variance of a value in
    this basis. It is NaN for states that are not finite."""
    if bool((J[:1] == J).all()):  # of linear values, which take one decomposition for all
        J = J[:1]
    unit = J.norm(dim=2)  # in units in which a value's slope is one
    unit = torch.where(unit > 0, unit, 1.0)
    J, VJ = J / unit[..., None], VJ / unit[..., None]
    one = torch.eye(J.shape[1]).to(J)
    root, _ = torch.linalg.cholesky_ex(positive(J @ J.mT, DEPENDENT))
    basis = torch.linalg.solve_triangular(root, one.expand_as(root), upper=False)
    covariance = basis @ J @ VJ.mT @ basis.mT
    covariance = positive((covariance + covariance.mT) / 2, least)
    log_volume = (root.diagonal(dim1=1, dim2=2).log() + unit.log()).sum(dim=1)
    basis = (basis / unit[:, None]).expand_as(covariance)
    return Frame(basis, covariance, log_volume.expand(len(VJ)))


def followed(before: Slopes, J: Tensor | None, level: float) -> Tensor:
    r"""Returns :math:`J V` at a lower noise level without a gradient through the denoiser.

    The covariance of normal values given a state goes from :math:`C` to
    :math:`(I + \gamma C)^{-1} C` in the basis of :func:`whitened`, where :math:`\gamma` is the
    growth of :math:`\alpha^2 / \sigma^2`. What of :math:`J` lies in the space of its former rows
    has the same combination of their products. The rest is taken to have the mean of the
    variances.

    For normal data and independent rows this is exact if :math:`V` maps their space to itself.
    Else the variances are too large, and never too small, as long as :math:`J` is the same.

    Arguments:
        before: The slopes at the noise level before.
        J: The derivatives at this one, with shape (B, m, D); None for the same, in all states.
        level: This noise level.
    """
    basis, covariance, _ = before.frame or whitened(before.J, before.VJ)
    gain = 1 / level**2 - 1 / before.level**2
    root, _ = torch.linalg.cholesky_ex(torch.eye(basis.shape[-1]).to(basis) + gain * covariance)
    VJ = torch.cholesky_solve(basis @ before.VJ, root)
    if J is None:
        return torch.linalg.solve_ex(basis, VJ)[0]
    old = basis @ before.J
    shares = J @ old.mT  # of rows in those before
    rank = old.square().sum(dim=(1, 2)).clamp_min(1)
    left = torch.cholesky_solve(covariance, root).diagonal(dim1=1, dim2=2).sum(dim=1)
    return shares @ VJ + (left / rank)[:, None, None] * (J - shares @ old)
