r"""L-BFGS, batched: each member has its own history, step length and end."""

__all__ = ["LBFGS"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Minimizer, Search, capped


@dataclass(frozen=True)
class LBFGS(Minimizer):
    r"""Limited-memory BFGS on :math:`f = \|r\|^2`.

    With the line search, a member whose step does not satisfy Armijo's condition
    :math:`f(x + a d) \leq f(x) + 10^{-4} a \, d^\top \nabla f(x)` halves :math:`a` and tries
    again in the next evaluation, while the other members go on; so the budget of `steps`
    evaluations is the same with and without it. Without, every step is accepted.

    The first direction is Polyak's, :math:`- 2 f \nabla f / \|\nabla f\|^2`, since the least
    :math:`f` is known to be zero (with a proximity it is not, and the line search shortens it).
    A pair with :math:`s^\top y \leq 10^{-10} \|s\| \|y\|` is skipped.

    References:
        | On the limited memory BFGS method for large scale optimization (Liu & Nocedal, 1989)
        | https://doi.org/10.1007/BF01589116

    Arguments:
        steps: The number :math:`P` of evaluations with a gradient.
        max_step: The longest iteration, in units of :math:`\sigma \sqrt{D}`.
        max_distance: How far a member may get from its start, in the same units.
        memory: The number of pairs :math:`(s, y)` kept.
        line_search: Whether to backtrack.
    """

    least: ClassVar[dict[str, float]] = {"memory": 1}

    steps: int = 8
    max_step: float | None = 0.5
    memory: int = 8
    line_search: bool = True

    def search(self, search: Search, cap: float | None) -> None:
        state: _State | None = None
        for _ in range(self.steps):
            _, value, going = search.evaluate()
            if state is not None and self.line_search:
                going = going | ~value.detach().isfinite()  # a bad trial: backtrack from it
            if not going.any():
                return

            x, f = search.x.detach(), value.detach()
            g = search.gradient(value)
            if state is None:
                state = _State(x, f, g, self.memory)
            else:
                state.receive(x, f, g, self.line_search)
            state.select(going)
            search.select(going)
            search.move(state.trial(cap))
        search.finish()


class _State:
    r"""The last accepted iterate of each active member, its history and its search direction.

    A step is the pair (`direction`, `length`), and is tried until it is accepted. Everything is
    flattened to :math:`(B, D)`; the history has an axis for the pairs in front.
    """

    def __init__(self, x: Tensor, f: Tensor, g: Tensor, memory: int) -> None:
        self.shape = x.shape[1:]
        self.x, self.f, self.g = x.flatten(start_dim=1), f, g.flatten(start_dim=1)
        self.memory = memory
        self.s = self.y = self.x.new_empty((0, *self.x.shape))
        self.rho = self.gamma = f.new_empty((0, *f.shape))  # 1 / s.y and s.y / y.y, 0 if skipped
        self.fresh = torch.ones_like(f, dtype=torch.bool)  # who needs a new direction
        self.direction, self.length = torch.zeros_like(self.x), torch.ones_like(f)

    def receive(self, x: Tensor, f: Tensor, g: Tensor, line_search: bool) -> None:
        """Accepts the trials that descend enough (without a line search: all), and shortens the
        steps of the others."""
        x, g = x.flatten(start_dim=1), g.flatten(start_dim=1)
        if line_search:
            slope = dot(self.direction, self.g)
            accepted = f <= self.f + 1e-4 * self.length * slope  # never, where f is NaN
        else:
            accepted = torch.ones_like(self.fresh)
        row = accepted[:, None]
        s, y = torch.where(row, x - self.x, 0.0), torch.where(row, g - self.g, 0.0)
        s_y, y_y = dot(s, y), dot(y, y)
        usable = s_y > 1e-10 * (dot(s, s) * y_y).sqrt()
        rho, gamma = torch.where(usable, 1 / s_y, 0.0), torch.where(usable, s_y / y_y, 0.0)
        for name, new in (("s", s), ("y", y), ("rho", rho), ("gamma", gamma)):
            history = torch.cat((getattr(self, name), new[None]))
            setattr(self, name, history[-self.memory :])

        self.x, self.g = torch.where(row, x, self.x), torch.where(row, g, self.g)
        self.f = torch.where(accepted, f, self.f)
        self.length = torch.where(accepted, 1.0, self.length / 2)
        self.fresh = accepted

    def select(self, going: Tensor) -> None:
        """Forgets the members that have stopped."""
        if going.all():
            return
        for name in ("x", "f", "g", "fresh", "direction", "length"):
            setattr(self, name, getattr(self, name)[going])
        for name in ("s", "y", "rho", "gamma"):
            setattr(self, name, getattr(self, name)[:, going])

    def trial(self, cap: float | None) -> Tensor:
        """Returns the next points to evaluate."""
        if self.fresh.any():
            direction = capped(-self._inverse(), cap)
            self.direction = torch.where(self.fresh[:, None], direction, self.direction)
        return (self.x + self.length[:, None] * self.direction).unflatten(1, self.shape)

    def _inverse(self) -> Tensor:
        """The two-loop recursion: the inverse Hessian's approximation times the gradient."""
        q, coefficients = self.g, []
        for s, y, rho in zip(self.s.flip(0), self.y.flip(0), self.rho.flip(0), strict=True):
            coefficients.append(rho * dot(s, q))
            q = q - coefficients[-1][:, None] * y

        # the latest pair's curvature or, until there is one, Polyak's step length
        scale = 2 * self.f / dot(self.g, self.g).clamp_min(torch.finfo(self.f.dtype).tiny)
        for gamma in self.gamma:
            scale = torch.where(gamma > 0, gamma, scale)
        q = scale[:, None] * q

        for s, y, rho in zip(self.s, self.y, self.rho, strict=True):
            q = q + (coefficients.pop() - rho * dot(y, q))[:, None] * s
        return q


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each member's rows, with shape (B)."""
    return (a * b).sum(dim=1)
