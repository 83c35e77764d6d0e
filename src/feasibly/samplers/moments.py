r"""What methods that match the moments of :math:`p(x_0 \mid x_t)` share: these moments by Tweedie,
the move onto a residual along the posterior's covariance, and the covariance of a residual."""

__all__ = ["Moved", "Product", "cost", "numbers", "toward", "tweedie"]

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..constraints.decoded import is_decoded
from ..derivatives import Jacobian
from ..linalg import Solution, eigh, extremes
from ..minimizers.base import finite, per_sample
from ..network import Network
from .base import Randn

HALVINGS = 6  # of a move onto a curved residual, at most
ROUNDING = 1e-3  # the relative error of a squared residual in single precision, with a margin
STIFF = 100.0  # the largest variance of exact residuals, in units of that of an error
SIZED = 3  # the products that find this variance
FEW = 32  # exact residuals beside others that join one by one, with a product each
TRUSTED = 4.0  # how many widths from a sample a residual may be linearised
REACH = 8.0  # how many times what it changes by over a width a residual may be, or it is cut
PROBES = 8  # the random steps that tell these changes
UNEVEN = 5.0  # how many times as much some must change as others to be scaled
RAISED = 30.0  # by how much a residual is scaled up at most, so that none rules the others
KEPT = 32  # residuals whose derivatives may be kept, each as large as a sample
ROUNDED = 10.0  # how many rounding errors of a variance count as zero
NEGATIVE = 0.1  # the share of it that may be found negative

Product = Callable[[Tensor], Tensor]
Solve = Callable[[Product, Tensor, int, float, Tensor], Solution]


class Rows(NamedTuple):
    r"""Residuals of samples, with shape (B, m), and the variances of their errors, likewise; the
    residuals as a function of samples; the least eigenvalue of the covariance of residuals and
    errors, with shape (B, 1), a share of the largest for exact residuals; and the products with
    :math:`J = \partial r / \partial x` and :math:`J^\top`."""

    r: Tensor
    variance: Tensor
    joined: Product
    least: Tensor
    J: Product
    J_T: Product


class Moved(NamedTuple):
    r"""Moved samples, with shape (B, *); how far they were from :math:`r = 0` along the steepest
    descent, with shape (B), or 0 where residuals were cut; and the number of residuals."""

    x: Tensor
    distance: Tensor
    residuals: int


@torch.enable_grad()
def tweedie(denoiser: Network, x_t: Tensor, t: Tensor) -> tuple[Tensor, Product]:
    r"""Returns Tweedie's moments of :math:`p(x_0 \mid x_t)`: the mean :math:`d_\theta(x_t)`, with
    shape :math:`(B, *)`, and the product with the covariance, which maps :math:`(B, *)` to
    :math:`(B, *)`,

    .. math:: V = \frac{\sigma_t^2}{\alpha_t} \frac{\partial d_\theta}{\partial x_t}.
    """
    alpha_t, sigma_t = denoiser.schedule(t)
    x_t = x_t.detach().requires_grad_()
    x_0 = denoiser(x_t, t)

    def V(v: Tensor) -> Tensor:
        (product,) = torch.autograd.grad(x_0, x_t, v, retain_graph=True)
        return sigma_t**2 / alpha_t * product

    return x_0.detach(), V


@torch.enable_grad()
def toward(
    constraint: Constraint,
    x: Tensor,
    V: Product,
    noise: float | None,
    solve: Solve,
    iterations: int,
    rtol: float,
    randn: Randn | None = None,
    near: Tensor | None = None,
    width: Tensor | None = None,
) -> Moved:
    r"""Returns :math:`x - V J^\top (J V J^\top + R)^{-1} (r(y) + J (x - y) + e)`, with
    :math:`J = \partial r / \partial x` at :math:`y`.

    The residual is linearised at :math:`y`, which is `x` itself, or a sample that is known to be
    near the constraint. From level to level of a run this is Gauss-Newton's method.

    The covariance :math:`R` of the residual's errors is :math:`\sigma_y^2 I` for what is exact,
    and the identity for observations with noise, whose residual is in units of their errors.
    Beside such observations an exact residual joins where the covariance :math:`J V J^\top` knows
    it: up to 32 of them one by one, along its eigenvectors, and more of them together.

    Arguments:
        x: Clean samples, with shape :math:`(B, *)`.
        V: The covariance, which maps :math:`(B, *)` to :math:`(B, *)`.
        noise: The variance :math:`\sigma_y^2` of an exact residual; None for the tolerance's share
            of it.
        solve: The linear solver: of the product with the matrix, the right-hand side, the most
            iterations, `rtol`, and the least eigenvalue that the matrix should have, with shape
            :math:`(B, 1)`.
        iterations: The most iterations of it, and no more than there are residuals.
        rtol: The relative residual at which it stops.
        randn: The noise of which :math:`e \sim \mathcal{N}(0, R)` is made, for observations with
            noise; None for :math:`e = 0`. With it, moves that overshoot a nonlinear residual are
            shortened.
        near: Samples near the constraint, with shape (B, *), at which a nonlinear residual is
            linearised.
        width: The largest standard deviation of the samples, with shape (B). With it, no element
            of `near` counts as farther than four of them. If all is exact and some residuals are
            much flatter than others over eight random steps, flat ones are scaled up, and all are
            cut to what they change by over eight widths.
    """
    x = x.detach()
    y = x
    if near is not None and not constraint.linear:
        apart = torch.where(per_sample(finite(near), x), near - x, 0.0)
        if width is not None:
            bound = per_sample(TRUSTED * width, x)
            apart = apart.clamp(-bound, bound)
        y = x + apart
    z = y.clone().requires_grad_()
    rows = _rows(constraint, z, V, noise, iterations)
    at_y = rows.r.detach()
    r = at_y if y is x else at_y + rows.J(x - y)
    uneven = torch.zeros_like(r[:, 0], dtype=torch.bool)
    if width is not None and constraint.noisy is None and not constraint.linear:
        change = _change(constraint, y, at_y, width)
        unit = _unit(change)
        uneven = (unit > 1).any(dim=1)
        cut = r.clamp(-REACH * change, REACH * change)
        r = unit * torch.where(uneven[:, None], cut, r)
        rows = rows._replace(
            variance=unit.square() * rows.variance,
            J=lambda v, J=rows.J: unit * J(v),
            J_T=lambda p, J_T=rows.J_T: J_T(unit * p),
        )
    _, variance, joined, least, J, J_T = rows
    e = torch.zeros_like(r)
    drawn = randn is not None and constraint.noisy is not None
    if randn is not None and drawn:
        e = variance.sqrt() * numbers(randn, e, x)
        r = r + e
    moves = []  # V J^T p for every p that the solver asks for
    slopes = []  # the length of J^T p; the first p has the residual's direction

    def S(p: Tensor) -> Tensor:
        J_T_p = J_T(p)
        slopes.append(J_T_p.flatten(start_dim=1).norm(dim=1))
        moves.append(V(J_T_p))
        return variance * p + J(moves[-1])

    w, weights = solve(S, -r, min(iterations, r.shape[1]), rtol, least)
    move = torch.zeros_like(x)
    for weight, one in zip(weights.unbind(dim=1), moves, strict=True):
        move = move + per_sample(weight, x) * one
    if drawn and not constraint.linear:
        price = (-w * (r + variance * w)).sum(dim=1).clamp_min(0)  # w J V J^T w, as S w = -r
        move = _shortened(lambda v: joined(v) + e, x, move, price)
    x = x + move
    size = r.norm(dim=1)
    distance = torch.where(size > 0, size / slopes[0], 0.0) if slopes else size
    distance = torch.where(uneven, 0.0, distance)
    return Moved(x, distance, r.shape[1])


def cost(constraint: Constraint, iterations: int, residuals: int) -> int:
    """Returns the most products with the covariance that :func:`toward` takes."""
    scaled = constraint.noisy is not None and constraint.equalities is not None
    return min(iterations, residuals) + FEW * scaled


@torch.no_grad()
def _shortened(residual: Product, x: Tensor, move: Tensor, price: Tensor) -> Tensor:
    """Returns moves that were halved until they lessen the misfit by more than they cost in prior
    probability, as the whole move does if the residual is linear. The price of a move is its
    squared length in units of the posterior's covariance, with shape (B)."""
    before, share = residual(x).square().sum(dim=1), torch.ones_like(price)
    for _ in range(HALVINGS):
        after = residual(x + per_sample(share, x) * move).square().sum(dim=1)
        worse = ~(after + share.square() * price <= before * (1 + ROUNDING))
        if not worse.any():
            break
        share = torch.where(worse, share / 2, share)
    return per_sample(share, x) * move


def _rows(
    constraint: Constraint, x: Tensor, V: Product, noise: float | None, iterations: int
) -> Rows:
    """Returns all residuals, what is exact before what has errors."""
    kept = min(KEPT, 2 * iterations)  # a product takes about two passes more than kept rows do
    one = x.new_ones((len(x), 1))
    observed, equalities = constraint.noisy, constraint.equalities
    if observed is None:
        r, J, J_T = _products(constraint, x, kept)
        share = _allowed(constraint, r.shape[1]) if noise is None else noise
        return Rows(r, torch.full_like(r, share), constraint.residual, one, J, J_T)
    values, J_v, J_v_T = _products(observed, x, kept)
    if equalities is None:
        return Rows(values, torch.ones_like(values), observed.residual, one, J_v, J_v_T)
    r, J_r, J_r_T = _products(equalities, x, KEPT)
    m = r.shape[1]
    share = _allowed(equalities, m) if noise is None else noise
    stiff, rounding = torch.full_like(one, STIFF), torch.zeros_like(one)
    if m > FEW:  # one solver meets both, so both are of the same size
        of_values = _size(values.detach(), lambda p: J_v(V(J_v_T(p))))[1]
        stiff = stiff.maximum(of_values)
        alike = _size(values.detach(), lambda p: J_v(J_v_T(p)))[1]
        steep = _size(r.detach(), lambda p: J_r(J_r_T(p)))[1]
        rounding = ROUNDED * torch.finfo(r.dtype).eps * steep * of_values / alike
        rounding = rounding.nan_to_num(0.0)  # values that depend on no sample
    turn, turn_T, known = _known(r.detach(), lambda p: J_r(V(J_r_T(p))), stiff, rounding)
    # the product of the turn and its transpose is diagonal
    exact = share * turn(turn_T(torch.ones_like(r)))
    return Rows(
        torch.cat([turn(r), values], dim=1),
        torch.cat([exact, torch.ones_like(values)], dim=1),
        lambda x: torch.cat([turn(equalities.residual(x)), observed.residual(x)], dim=1),
        torch.where(known, (stiff / STIFF**2).clamp_max(1.0), one),
        lambda v: torch.cat([turn(J_r(v)), J_v(v)], dim=1),
        lambda p: J_r_T(turn_T(p[:, :m])) + J_v_T(p[:, m:]),
    )


@torch.no_grad()
def _change(constraint: Constraint, x: Tensor, r: Tensor, width: Tensor) -> Tensor:
    """Returns the root mean square change of residuals `r` of samples over random steps of a
    width, with shape (B, m)."""
    generator = torch.Generator().manual_seed(0)  # the same steps for all samples
    squares, counts = torch.zeros_like(r), torch.zeros_like(r)
    for _ in range(PROBES):
        step = torch.randn(x.shape[1:], generator=generator).sign().to(x)
        square = (constraint.residual(x + per_sample(width, x) * step) - r).square()
        known = square.isfinite()  # a step may leave the domain of a logarithm
        squares, counts = squares + torch.where(known, square, 0.0), counts + known
    return torch.where(counts > 0, squares / counts, torch.inf).sqrt()


def _unit(change: Tensor) -> Tensor:
    """Returns what residuals are multiplied by, given their change, with shape (B, m), so that a
    bound on singular values does not leave out flat ones; one if all change by about as much."""
    known = change.isfinite() & (change > 0)
    largest = torch.where(known, change, 0.0).amax(dim=1, keepdim=True)
    least = torch.where(known, change, torch.inf).amin(dim=1, keepdim=True)
    scaled = known & (largest > UNEVEN * least)
    return torch.where(scaled, (largest / change).clamp_max(RAISED), 1.0)


def _size(r: Tensor, S: Product) -> tuple[Tensor, Tensor]:
    """Returns the least and the largest variance of residuals that a few products find, both with
    shape (B, 1)."""
    begin = torch.where(r.norm(dim=1, keepdim=True) > 0, r, 1.0)
    least, most = extremes(S, begin, SIZED)
    return least[:, None], most[:, None]


def _known(
    r: Tensor, S: Product, stiff: Tensor, rounding: Tensor
) -> tuple[Product, Product, Tensor]:
    """Returns how exact residuals, with covariance `S`, join those with errors: a linear map, its
    transpose, and for which samples it is not zero, with shape (B, 1).

    The covariance of a learned denoiser may have negative eigenvalues, which are errors. Up to FEW
    residuals are turned to its eigenvectors, and scaled to the variance STIFF. One joins if its
    eigenvalue is larger than these errors. More residuals are scaled to at most the variance
    `stiff` and join together, if a few products find no large negative eigenvalue, and their
    variance is above what is `rounding`.
    """
    if r.shape[1] > FEW:
        least, size = _size(r, S)
        known = (size > rounding) & (least >= -NEGATIVE * size) & size.isfinite()
        scale = torch.where(known, stiff / size, 0.0).sqrt()
        return lambda v: scale * v, lambda p: scale * p, known
    rows = [S(e.expand_as(r)) for e in torch.eye(r.shape[1]).to(r)]
    M = torch.stack(rows, dim=1).double()
    values, vectors = eigh((M + M.mT) / 2)
    least, most = values[:, :1], values[:, -1:]
    known = (values > 0) & (values > -least)
    w = torch.where(known, STIFF / torch.maximum(values, most / STIFF**2), 0.0).sqrt()
    T = torch.where(known[:, None], vectors * w[:, None], 0.0).mT.to(r)
    return (
        lambda v: torch.einsum("bkm,bm->bk", T, v),
        lambda p: torch.einsum("bkm,bk->bm", T, p),
        known.any(dim=1, keepdim=True),
    )


def _products(part: Constraint, x: Tensor, kept: int) -> tuple[Tensor, Product, Product]:
    r"""Returns the residuals of a part of the constraint, and the products with
    :math:`J = \partial r / \partial x` and with :math:`J^\top`, of which up to so many rows are
    kept."""
    r = part.residual(x)
    # two derivatives of a decoder would keep the activations that its checkpoints give up
    J = Jacobian(part.residual, r, x, part.linear, twice=not is_decoded(part))
    if r.shape[1] > kept:
        return r, J, J.T
    rows = J.rows()
    return (
        r,
        lambda v: torch.einsum("bm...,b...->bm", rows, v),
        lambda p: torch.einsum("bm...,bm->b...", rows, p),
    )


def numbers(randn: Randn, like: Tensor, x: Tensor) -> Tensor:
    """Returns standard normal numbers in the shape of `like`, (B, m), of noise for samples `x`."""
    count = -(-like.shape[1] // max(1, x[0].numel()))
    noise = torch.cat([randn(x).flatten(start_dim=1) for _ in range(count)], dim=1)
    return noise[:, : like.shape[1]].to(like)


def _allowed(constraint: Constraint, m: int) -> float:
    """Returns the square that the tolerance leaves to one of m residual components."""
    return constraint.tolerance / m if constraint.atol is None else constraint.tolerance
