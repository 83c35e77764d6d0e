r"""Gauss-Newton: solve :math:`r(x) = 0`, moving as little as possible."""

__all__ = ["GaussNewton"]

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..derivatives import Jacobian
from ..linalg import cg, dependent, range_of
from .base import Minimizer, Search, capped

ROUNDING = 32.0
"""The relative error of a gradient, in units of the precision."""


@dataclass(frozen=True)
class GaussNewton(Minimizer):
    r"""Damped, matrix-free, minimum-norm Gauss-Newton.

    .. math::
        x \gets x - J^\top (J J^\top + \lambda I)^{-1} r, \qquad J = \partial r / \partial x ,

    the least-distance solution of the linearised constraint; :math:`\lambda` is `damping` times
    :math:`\|J^\top r\|^2 / \|r\|^2`. For one residual it is
    :math:`x - r \nabla r / \|\nabla r\|^2`, with one vector-Jacobian product (vjp). Up to
    `dense` residuals, :math:`J` is formed row by row (:math:`m` vjps an iteration). Above, the
    system is solved by conjugate gradients, each iteration of which takes a vjp and a central
    difference of two forward evaluations; see :class:`feasibly.derivatives.Jacobian`.

    With a proximity :math:`p`, the linearised problem's solution is
    :math:`x \gets x_s - J^\top (J J^\top + (\lambda + p) I)^{-1} (r - J (x - x_s))`, from the
    start :math:`x_s`.

    With at most `dense` residuals, combinations of rows of :math:`J` that vanish but for rounding
    are left out. So dependent residuals that contradict each other end at their least squares.

    Iterates are not forced to descend, so that a member can leave a local minimum of
    :math:`\|r\|` with :math:`r \neq 0`; the best one is returned.

    Arguments:
        damping: The relative damping.
        dense: The largest number of residuals for which :math:`J` is formed.
        krylov: The most conjugate-gradient iterations, above that number.
        rtol: The relative residual at which conjugate gradients stop.

    Example:
        >>> search = feasibly.minimizers.GaussNewton(steps=8, max_distance=None)
        >>> found = search(lambda x: (circle.residual(x), x), torch.tensor([[3.0, 4.0]]))
        >>> found.x.round(decimals=2)
        tensor([[0.6000, 0.8000]])
    """

    least: ClassVar[dict[str, float]] = {"damping": 0, "dense": 0, "krylov": 1, "rtol": 0}

    steps: int = 2
    max_distance: float | None = 1.5
    damping: float = 1e-6
    dense: int = 32
    krylov: int = 4
    rtol: float = 1e-2

    def cost(self, residuals: int) -> tuple[int, int]:
        if residuals <= self.dense:
            return self.steps + 1, self.steps * residuals
        # the differences of a network in low precision are tried with two more steps
        forward = 1 + 2 * (self.krylov + 2)
        return self.steps * forward + 1, self.steps * (2 + self.krylov)

    def search(self, search: Search, cap: float | None, state: Any) -> None:
        for _ in range(self.steps):
            r, _, going = search.evaluate()
            if not going.any():
                return
            x = search.x.detach() - capped(self._step(search, r), cap)
            search.select(going)
            search.move(x[going])
        search.finish()

    @torch.enable_grad()  # so that combinations of residuals can be differentiated
    def _step(self, search: Search, r: Tensor) -> Tensor:
        if r.shape[1] == 1:
            return self._scalar_step(search, r[:, 0])
        if r.shape[1] <= self.dense:
            return self._dense_step(search, r)
        return self._krylov_step(search, r)

    def _scalar_step(self, search: Search, r: Tensor) -> Tensor:
        g = search.gradient(r).flatten(start_dim=1)
        offset, rhs = torch.zeros_like(g), r.detach()
        if search.proximity:
            offset = search.offset().detach()
            rhs = rhs - (g * offset).sum(dim=1)
        norm = g.square().sum(dim=1) * (1 + self.damping) + search.proximity
        return (offset + (rhs / norm)[:, None] * g).reshape(search.x.shape)

    def _dense_step(self, search: Search, r: Tensor) -> Tensor:
        m = r.shape[1]
        rows = [search.gradient(r[:, i], retain_graph=i + 1 < m) for i in range(m)]
        J = torch.stack([row.flatten(start_dim=1) for row in rows], dim=1).double()
        offset, r = torch.zeros_like(J[:, 0]), r.detach().double()
        # a member with a non-finite Jacobian gets a non-finite step, which `capped` drops
        bad = ~(J.isfinite().all(dim=2).all(dim=1) & r.isfinite().all(dim=1))
        J, r = J.masked_fill(bad[:, None, None], 0.0), r.masked_fill(bad[:, None], 0.0)
        damping = self._damping(r, (J.mT @ r[..., None]).squeeze(-1)) + search.proximity
        if search.proximity:
            offset = search.offset().detach().double()
            r = r - (J @ offset[..., None]).squeeze(-1)
        rounding = ROUNDING * torch.finfo(search.x.dtype).eps
        v = solved(J @ J.mT, damping, r, rounding)[..., None]
        step = (offset + (J.mT @ v).squeeze(-1)).masked_fill(bad[:, None], torch.nan)
        return step.reshape(search.x.shape).to(search.x.dtype)

    def _krylov_step(self, search: Search, r: Tensor) -> Tensor:
        J = Jacobian(lambda x: search.residual(x)[0], r, search.x)
        rhs = torch.nan_to_num(r.detach(), nan=0.0, posinf=0.0, neginf=0.0)
        damping = self._damping(rhs, J.T(rhs).flatten(start_dim=1))[:, None] + search.proximity
        offset = torch.zeros_like(search.x)
        if search.proximity:
            offset = search.offset().detach().reshape(offset.shape)
            rhs = rhs - J(offset)
        v = cg(lambda p: J(J.T(p)) + damping * p, rhs, self.krylov, self.rtol).x
        return offset + J.T(v)

    def _damping(self, r: Tensor, J_r: Tensor) -> Tensor:
        squares = r.square().sum(dim=1).clamp_min(torch.finfo(r.dtype).tiny)
        return self.damping * J_r.square().sum(dim=1) / squares


def solved(gram: Tensor, damping: Tensor, r: Tensor, rounding: float) -> Tensor:
    r"""Solves :math:`(J J^\top + \lambda I) v = r` for each sample, where dependent residuals make
    :math:`J J^\top` singular by least squares.

    Arguments:
        gram: The matrices :math:`J J^\top`, with shape (B, m, m).
        damping: The dampings :math:`\lambda`, with shape (B).
        r: The residuals, with shape (B, m).
        rounding: The relative error of :math:`J`. Combinations of rows that are no longer than
            that, in units of rows, are left out: a step along them would be noise.
    """
    m = gram.shape[1]
    rtol = max(rounding**2, m * torch.finfo(gram.dtype).eps)
    one = torch.eye(m, dtype=gram.dtype, device=gram.device)
    L, failed = torch.linalg.cholesky_ex(gram + damping[:, None, None] * one)
    v = torch.cholesky_solve(r[..., None], L)
    some = dependent(gram, m * rtol) | (failed > 0)
    if some.any():
        basis = range_of(gram[some], rtol)
        missing = torch.diag_embed((basis == 0).all(dim=1).to(gram))
        inner = basis.mT @ gram[some] @ basis + damping[some, None, None] * one + missing
        v[some] = basis @ torch.linalg.solve(inner, basis.mT @ r[some, :, None])
    return v[..., 0]
