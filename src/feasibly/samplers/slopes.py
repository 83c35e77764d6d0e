r"""Derivatives of values through the denoiser, and how they follow from one noise level to a lower
one."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..linalg import eigh

LARGE = 2**21  # numbers: arithmetic on larger tensors takes longer than on several of this size
DEPENDENT = 1e-6  # the least squared length of a combination of rows, relative to the largest


class Frame(NamedTuple):
    r"""A basis :math:`P` in which values are independent.

    Attributes:
        basis: The matrix :math:`P`, with shape (B, m, m). The rows of :math:`P J` are orthonormal,
            and their covariance :math:`P J V J^\top P^\top` is diagonal. Rows of dependent values
            are shorter.
        spread: This diagonal, with shape (B, m).
        turn: The orthogonal matrix :math:`P (J J^\top)^{1/2}`, with shape (B, m, m). Of values
            that are alike :math:`P` is any basis, and this says which.
        log_volume: :math:`-\log |\det P|`, with shape (B).
    """

    basis: Tensor
    spread: Tensor
    turn: Tensor
    log_volume: Tensor


class Slopes(NamedTuple):
    r"""The derivatives :math:`J = \partial v / \partial x_0` of values at states, with shape
    (B, m, D); their products :math:`J V` with the covariance of :math:`x_0` given the states; the
    states' noise level; the basis in which the values are independent, if it is known; and which
    values they are of, with shape (B, m), or None for all."""

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


def diagonal(J: Tensor, VJ: Tensor) -> Frame:
    """Returns the basis in which values are independent, NaN for states that are not finite, given
    their derivatives and the products with the covariance, both with shape (B, m, D)."""
    if bool((J[:1] == J).all()):  # of linear values, which take one decomposition for all
        J = J[:1]
    unit = J.norm(dim=2)  # in units in which a value's slope is one
    unit = torch.where(unit > 0, unit, 1.0)
    J, VJ = J / unit[..., None], VJ / unit[..., None]
    squares, first = eigh(J @ J.mT)
    largest = torch.where(squares[:, -1:] > 0, squares[:, -1:], 1.0)  # of flat values
    squares = squares.clamp_min(DEPENDENT * largest)
    basis = (first / squares.sqrt()[:, None]).mT
    covariance = basis @ J @ VJ.mT @ basis.mT
    spread, second = eigh((covariance + covariance.mT) / 2)
    basis = second.mT @ basis / unit[:, None]
    turn = (first @ second).mT
    log_volume = squares.log().sum(dim=1) / 2 + unit.log().sum(dim=1)
    return Frame(basis, spread, turn, log_volume.expand(len(spread)))


def followed(before: Slopes, J: Tensor | None, level: float) -> Tensor:
    r"""Returns :math:`J V` at a lower noise level without a gradient through the denoiser.

    The variance of normal values given a state goes from :math:`v` to :math:`v / (1 + \gamma v)`,
    where :math:`\gamma` is the growth of :math:`\alpha^2 / \sigma^2`. So in the basis of
    :func:`diagonal` each of the former products shrinks. What of :math:`J` lies in the space of
    its former rows has the same combination of their products. The rest is taken to have the
    mean of these variances.

    For normal data and independent rows this is exact if :math:`V` maps their space to itself.
    Else the variances are too large, and never too small, as long as :math:`J` is the same.

    Arguments:
        before: The slopes at the noise level before.
        J: The derivatives at this one, with shape (B, m, D); None for the same, in all states.
        level: This noise level.
    """
    basis, spread, *_ = before.frame or diagonal(before.J, before.VJ)
    spread = spread.clamp_min(0)
    shrunk = 1 / (1 + spread * (1 / level**2 - 1 / before.level**2))
    VJ = shrunk[..., None] * (basis @ before.VJ)
    if J is None:
        return torch.linalg.solve_ex(basis, VJ)[0]
    old = basis @ before.J
    shares = J @ old.mT  # of rows in those before
    rank = old.square().sum(dim=(1, 2)).clamp_min(1)
    rest = (shrunk * spread).sum(dim=1) / rank
    return shares @ VJ + rest[:, None, None] * (J - shares @ old)
