"""Matrix-free linear algebra, batched per sample."""

__all__ = [
    "Root",
    "Solution",
    "cg",
    "dependent",
    "eigh",
    "extremes",
    "gmres",
    "least_squares",
    "range_of",
    "square_root",
]

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Solution(NamedTuple):
    r"""The solutions of linear systems, as sums :math:`x = \sum_j w_j p_j` of the vectors that an
    operator was applied to, so that its by-products can be summed too.

    Attributes:
        x: The solutions, with shape :math:`(B, m)`.
        weights: The weights :math:`w` of the `k` vectors in order, with shape :math:`(B, k)`.
    """

    x: Tensor
    weights: Tensor


def cg(A: Callable[[Tensor], Tensor], b: Tensor, iterations: int, rtol: float = 1e-3) -> Solution:
    r"""Solves :math:`A x = b` for each sample by conjugate gradients.

    A sample stops, and keeps its iterate, when :math:`\|A x - b\| \leq` `rtol` :math:`\|b\|` or
    when the curvature is not positive. Scalars are accumulated in double precision.

    Arguments:
        A: A positive semi-definite operator, which maps :math:`(B, m)` to :math:`(B, m)`. Each
            iteration applies it once.
        b: The right-hand sides, with shape :math:`(B, m)`.
        iterations: The most iterations.
        rtol: The relative residual at which to stop.
    """
    x, r, p = torch.zeros_like(b), b.clone(), b.clone()
    rho = r.double().square().sum(dim=1)
    goal = rtol**2 * rho
    live = rho > goal
    weights: list[Tensor] = []

    for _ in range(iterations):
        if not live.any():
            break
        A_p = A(p)
        curvature = (p.double() * A_p.double()).sum(dim=1)
        live = live & (curvature > 0) & curvature.isfinite()
        step = torch.where(live, rho / curvature.where(live, torch.ones_like(rho)), 0.0)
        weights.append(step.to(b.dtype))
        x = x + (step[:, None] * p).to(b.dtype)
        r = r - (step[:, None] * torch.where(live[:, None], A_p, 0.0)).to(b.dtype)

        rho_next = r.double().square().sum(dim=1)
        beta = torch.where(live, rho_next / rho.where(live, torch.ones_like(rho)), 0.0)
        p = (r + beta[:, None] * p).to(b.dtype)
        rho = rho_next
        live = live & (rho > goal)
    return Solution(x, torch.stack(weights, dim=1) if weights else b.new_empty((len(b), 0)))


def gmres(
    A: Callable[[Tensor], Tensor], b: Tensor, iterations: int, rtol: float = 1e-3
) -> Solution:
    r"""Solves :math:`A x = b` for each sample by the generalised minimal residual method.

    The arguments are those of :func:`cg`, but :math:`A` need not be symmetric. A sample also stops
    when its Krylov space ends. The basis and the least-squares problem are in double precision.

    References:
        | GMRES: A Generalized Minimal Residual Algorithm (Saad & Schultz, 1986)
        | https://doi.org/10.1137/0907058
    """
    size = b.double().norm(dim=1)
    live = size > 0
    basis = [b.double() / size.where(live, torch.ones_like(size))[:, None]]
    R = torch.eye(iterations, dtype=size.dtype, device=b.device).repeat(len(b), 1, 1)
    g = [size]  # the right-hand side of the least-squares problem, rotated
    rotations: list[tuple[Tensor, Tensor]] = []

    for j in range(iterations):
        if not live.any():
            break
        w = A(basis[j].to(b.dtype)).double()
        live = live & w.isfinite().all(dim=1)
        w = torch.where(live[:, None], w, 0.0)
        scale = w.norm(dim=1)
        column = []
        for q in basis:  # modified Gram-Schmidt
            column.append((w * q).sum(dim=1))
            w = w - column[-1][:, None] * q
        length = w.norm(dim=1)
        ended = length <= 1e-12 * scale
        basis.append(torch.where(ended, 0.0, 1 / length)[:, None] * w)

        for i, (c, s) in enumerate(rotations):
            column[i], column[i + 1] = (
                c * column[i] + s * column[i + 1],
                c * column[i + 1] - s * column[i],
            )
        diagonal = torch.hypot(column[j], length)
        live = live & (diagonal > 0)
        safe = torch.where(live, diagonal, 1.0)
        c, s = column[j] / safe, length / safe
        rotations.append((c, s))
        # a sample that has stopped gets a row of the identity, and so the weight zero
        for i in range(j):
            R[:, i, j] = torch.where(live, column[i], 0.0)
        R[:, j, j] = safe
        g.append(-s * g[j])
        g[j] = torch.where(live, c * g[j], 0.0)
        live = live & ~ended & (g[j + 1].abs() > rtol * size)

    k = len(basis) - 1
    y = torch.linalg.solve_triangular(R[:, :k, :k], torch.stack(g, dim=1)[:, :k, None], upper=True)
    x = (torch.stack(basis[:k], dim=2) @ y).squeeze(2) if k else torch.zeros_like(b)
    return Solution(x.to(b.dtype), y.squeeze(2).to(b.dtype))


def least_squares(
    A: Callable[[Tensor], Tensor],
    b: Tensor,
    iterations: int,
    rtol: float = 1e-3,
    floor: float = 1e-2,
    least: float | Tensor | None = None,
) -> Solution:
    r"""Minimises :math:`\|A x - b\|` for each sample, with bounded singular values.

    It is for the covariance of a learned denoiser, which should be symmetric and positive
    definite, and may be neither. It does what GMRES does, but bounds small singular values of
    :math:`A` in the Krylov space. A part of the solution whose singular value is below its bound
    is multiplied by the square of the ratio of the two. So :math:`\|A x - b\| \leq \|b\|`.

    A bound is `floor` times the largest singular value. It is also no less than the length of the
    antisymmetric part of :math:`A` along the direction, since that part is an error.

    References:
        | Iterative Methods for Sparse Linear Systems (Saad, 2003), Sections 6.3 and 6.5
        | https://doi.org/10.1137/1.9780898718003

    Arguments:
        A: An operator, which maps :math:`(B, m)` to :math:`(B, m)`.
        b: The right-hand sides, with shape :math:`(B, m)`.
        iterations: The most iterations, each with one application of `A`.
        rtol: A sample's space ends when a new direction adds less than this, relative to `A`
            times the last one, or when the misfit is less, relative to :math:`\|b\|`. It also ends
            when the last direction lowered the misfit, and the next would hardly change it.
        floor: The bound relative to the largest singular value, at least 1e-7.
        least: The least eigenvalue that :math:`A` should have, above 0, a number or with shape
            :math:`(B, 1)`. It takes the place of `floor`; None for none.
    """

    def weigh(H: Tensor, T: Tensor) -> Tensor:
        squares, vectors = eigh(H.mT @ H)
        top = squares[:, -1:]
        bound = max(floor, 1e-7) ** 2 * top if least is None else torch.zeros_like(top) + least**2
        wrong = ((T - T.mT) / 2 @ vectors).square().sum(dim=1)
        bound = torch.maximum(bound, wrong)
        inverse = torch.where(top > 0, 1 / torch.maximum(squares, bound), 0.0)
        return (vectors * inverse[:, None] @ vectors.mT @ H[:, 0, :, None]).squeeze(2)

    misfit = torch.ones_like(b[:, 0], dtype=torch.float64)  # of the solution, relative to b

    def converged(H: Tensor, T: Tensor) -> Tensor:
        nonlocal misfit
        weights = weigh(H, T)
        before, missed = misfit, (H @ weights[..., None])[..., 0]
        missed[:, 0] -= 1
        misfit = missed.norm(dim=1)
        # what the space lacks of A x, which is also small where the misfit does not fall
        lacks = (weights[:, -1] * H[:, -1, -1]).abs() <= rtol
        return (misfit <= rtol) | lacks & (misfit < (1 - rtol) * before)

    Q, H, T, size = _krylov(A, b, iterations, rtol, converged)
    weights = weigh(H, T) * size
    return Solution(_combined(Q, weights).to(b.dtype), weights.to(b.dtype))


class Root(NamedTuple):
    r"""The products `x` of :math:`A^{1/2}` with vectors, and the `largest` eigenvalues that were
    found, with shape :math:`(B)`."""

    x: Tensor
    largest: Tensor


def square_root(
    A: Callable[[Tensor], Tensor], b: Tensor, iterations: int, rtol: float = 0.0
) -> Root:
    r"""Returns :math:`A^{1/2} b` for each sample, by Lanczos' method.

    The basis is orthogonalised in full and kept in double precision. Negative eigenvalues of
    :math:`A` count as zero. For one iteration it is the root of Nyström's approximation
    :math:`A b \, (A b)^\top / (b^\top A b)`, since Lanczos' would be along :math:`b` alone.

    References:
        | Functions of Matrices (Higham, 2008), Section 13.2
        | https://doi.org/10.1137/1.9780898717778
        | Using the Nyström Method to Speed Up Kernel Machines (Williams & Seeger, 2000)

    Arguments:
        A: A positive semi-definite operator, on tensors of the shape of `b`.
        b: The vectors, with shape :math:`(B, *)`.
        iterations: The most iterations, each with one application of `A`; at least 1.
        rtol: A sample's space ends when the last two directions have no more than this share of
            the product. The error is then some ten times as large, as a rule of thumb.
    """

    if iterations == 1:
        return _rank_one(A, b)

    def product(T: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = eigh((T + T.mT) / 2)
        roots = values.clamp_min(0).sqrt()[:, None]
        return (vectors * roots @ vectors[:, 0, :, None]).squeeze(2), values

    def converged(H: Tensor, T: Tensor) -> Tensor:
        if T.shape[2] <= 2:
            return torch.zeros_like(T[:, 0, 0], dtype=torch.bool)
        share, _ = product(T)
        whole = share.norm(dim=1)  # 0 if no positive eigenvalue was found so far
        return (share[:, -2:].norm(dim=1) <= rtol * whole) & (whole > 0)

    Q, _, T, size = _krylov(A, b, iterations, converged=converged if rtol else None)
    share, values = product(T)
    x = _combined(Q, size * share)
    return Root(x.reshape(b.shape).to(b.dtype), values[:, -1].clamp_min(0).to(b.dtype))


def _rank_one(A: Callable[[Tensor], Tensor], b: Tensor) -> Root:
    """Returns :math:`A^{1/2} b` from one product. It is exact if all eigenvalues but zero are
    equal. Else its length is right, and large eigenvalues get too much of it."""
    product = A(b).double().flatten(start_dim=1)
    share = (product * b.double().flatten(start_dim=1)).sum(dim=1)
    size = product.norm(dim=1)
    none = share <= 0
    x = torch.where(none, 0.0, share.sqrt() / size)[:, None] * product
    largest = torch.where(none, 0.0, size.square() / share)
    return Root(x.reshape(b.shape).to(b.dtype), largest.to(b.dtype))


def extremes(A: Callable[[Tensor], Tensor], b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Returns the least and the largest eigenvalue that Lanczos' method finds of each sample's
    symmetric operator, from `b` on, both with shape (B). The true ones may be farther apart."""
    _, _, T, _ = _krylov(A, b, iterations)
    values, _ = eigh((T + T.mT) / 2)
    return values[:, 0].to(b.dtype), values[:, -1].to(b.dtype)


def _combined(vectors: list[Tensor], weights: Tensor) -> Tensor:
    """Returns the sums of `k` vectors of shape (B, m) with weights of shape (B, k)."""
    total = torch.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights.unbind(dim=1), strict=True):
        total += weight[:, None] * vector
    return total


def _krylov(
    A: Callable[[Tensor], Tensor],
    b: Tensor,
    iterations: int,
    rtol: float = 1e-12,
    converged: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    r"""Returns a basis of each sample's Krylov space, what :math:`A` makes of it, and the length
    of `b`, by Arnoldi's method in double precision, orthogonalised in full.

    The `k` basis vectors :math:`q_j` have the shape (B, m), and are zero after the space has
    ended, also where `converged` says so. Of :math:`A q_j` it returns the components along the
    basis and the next direction, :math:`H` with shape (B, k + 1, k), and along the basis alone,
    :math:`T` with shape (B, k, k).
    """
    flat = b.flatten(start_dim=1).double()
    size = flat.norm(dim=1, keepdim=True)
    q = flat / size.where(size > 0, torch.ones_like(size))
    basis: list[Tensor] = []
    H = flat.new_zeros(len(flat), iterations + 1, iterations)
    T = H.clone()
    for k in range(iterations):
        basis.append(q)
        q = A(q.reshape(b.shape).to(b.dtype)).flatten(start_dim=1).double()
        whole = q.norm(dim=1)
        for _ in range(2):  # twice is enough
            for i, p in enumerate(basis):
                along = (q * p).sum(dim=1)
                H[:, i, k] += along
                q = q - along[:, None] * p
        length = q.norm(dim=1)
        T[:, : k + 1, k], H[:, k + 1, k] = H[:, : k + 1, k], length
        ended = length <= rtol * whole
        if converged is not None:
            ended = ended | converged(H[:, : k + 2, : k + 1], T[:, : k + 1, : k + 1])
        q = torch.where(ended[:, None], 0.0, q / length[:, None])
        T[:, k + 1, k] = torch.where(ended, 0.0, length)
        if converged is not None and ended.all():
            break
    k = len(basis)
    return basis, H[:, : k + 1, :k], T[:, :k, :k], size


def eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the eigenvalues and eigenvectors of symmetric matrices, with shape (B, m, m).

    They are NaN for a sample whose matrix is not finite, so that it does not stop the others.
    """
    if A.shape[1] == 1:
        A = A.where(A.isfinite(), torch.nan)
        return A[:, 0], torch.ones_like(A).where(A.isfinite(), torch.nan)
    good = A.isfinite().all(dim=2, keepdim=True).all(dim=1, keepdim=True)
    values, vectors = torch.linalg.eigh(torch.where(good, A, 0.0))
    return values.where(good[:, 0], torch.nan), vectors.where(good, torch.nan)


def dependent(gram: Tensor, rtol: float) -> Tensor:
    """Returns which samples have rows that depend on others, or are zero, with shape (B).

    Arguments:
        gram: The rows' inner products, with shape (B, m, m).
        rtol: The squared length of a combination of rows that counts as zero, in units of rows.
    """
    even, _ = _evened(gram)
    one = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.cholesky_ex(even - rtol * one).info > 0


def range_of(gram: Tensor, rtol: float) -> Tensor:
    r"""Returns an orthonormal basis of the range of a matrix :math:`J`, as columns with shape
    (B, m, m), the first of which are zero where the rank is less than m.

    Arguments:
        gram: The products :math:`J J^\top`, with shape (B, m, m).
        rtol: As of :func:`dependent`, relative to the largest eigenvalue.
    """
    even, unit = _evened(gram)
    squares, turn = eigh(even)
    kept = squares > rtol * squares[:, -1:]
    spanning = turn * kept[:, None] * unit[..., None]
    _, basis = eigh(spanning @ spanning.mT)
    missing = gram.shape[1] - kept.sum(dim=1, keepdim=True)
    return basis * (torch.arange(gram.shape[1], device=gram.device) >= missing)[:, None]


def _evened(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Returns inner products of rows of length one, and the rows' lengths, one for zero."""
    unit = gram.diagonal(dim1=1, dim2=2).sqrt()
    unit = unit.where(unit > 0, 1.0)
    return gram / unit[:, None] / unit[..., None], unit
