r"""L-BFGS, batched: each member has its own history, step length and end."""

__all__ = ["LBFGS"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Minimizer, Search, capped, per_sample


@dataclass(frozen=True)
class LBFGS(Minimizer):
    r"""Limited-memory BFGS on :math:`f = \|r\|^2`.

    With the line search, a member whose step does not satisfy Armijo's condition
    :math:`f(x + a d) \leq f(x) + 10^{-4} a \, d^\top \nabla f(x)` halves :math:`a` and tries
    again in the next evaluation, while the other members go on; so the budget of `steps`
    evaluations is the same with and without it. Without, every step is accepted.

    The first direction is Polyak's, :math:`- 2 f \nabla f / \|\nabla f\|^2`, since the least
    :math:`f` is known to be zero. A pair with :math:`s^\top y \leq 10^{-10} \|s\| \|y\|` is
    skipped.

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

    A step is the pair (`direction`, `length`), and is tried until it is accepted.
    """

    def __init__(self, x: Tensor, f: Tensor, g: Tensor, memory: int) -> None:
        self.x, self.f, self.g = x, f, g
        self.memory = memory
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # s, y, 1 / s.y, or 0 if skipped
        self.fresh = torch.ones_like(f, dtype=torch.bool)  # who needs a new direction
        self.direction, self.length = torch.zeros_like(x), torch.ones_like(f)

    def receive(self, x: Tensor, f: Tensor, g: Tensor, line_search: bool) -> None:
        """Accepts the trials that descend enough (without a line search: all), and shortens the
        steps of the others."""
        if line_search:
            slope = dot(self.direction, self.g)
            accepted = f <= self.f + 1e-4 * self.length * slope  # never, where f is NaN
        else:
            accepted = torch.ones_like(self.fresh)
        row = per_sample(accepted, x)
        s, y = (torch.where(row, now - last, 0.0) for now, last in ((x, self.x), (g, self.g)))
        s_y = dot(s, y)
        usable = s_y > 1e-10 * (dot(s, s) * dot(y, y)).sqrt()
        self.pairs.append((s, y, torch.where(usable, 1 / s_y, 0.0)))
        self.pairs = self.pairs[-self.memory :]

        self.x, self.g = torch.where(row, x, self.x), torch.where(row, g, self.g)
        self.f = torch.where(accepted, f, self.f)
        self.length = torch.where(accepted, 1.0, self.length / 2)
        self.fresh = accepted

    def select(self, going: Tensor) -> None:
        """Forgets the members that have stopped."""
        if going.all():
            return
        names = ("x", "f", "g", "fresh", "direction", "length")
        for name in names:
            setattr(self, name, getattr(self, name)[going])
        self.pairs = [(s[going], y[going], rho[going]) for s, y, rho in self.pairs]

    def trial(self, cap: float | None) -> Tensor:
        """Returns the next points to evaluate."""
        if self.fresh.any():
            fresh = per_sample(self.fresh, self.x)
            self.direction = torch.where(fresh, capped(-self._inverse(), cap), self.direction)
        return self.x + per_sample(self.length, self.x) * self.direction

    def _inverse(self) -> Tensor:
        """The two-loop recursion: the inverse Hessian's approximation times the gradient."""
        q, coefficients = self.g, []
        for s, y, rho in reversed(self.pairs):
            coefficients.append(rho * dot(s, q))
            q = q - per_sample(coefficients[-1], q) * y

        # Polyak's step length, until there is curvature to go by
        scale = 2 * self.f / dot(self.g, self.g).clamp_min(torch.finfo(self.f.dtype).tiny)
        for _, y, rho in self.pairs:
            scale = torch.where(rho > 0, 1 / (rho * dot(y, y)), scale)
        q = per_sample(scale, q) * q

        for (s, y, rho), coefficient in zip(self.pairs, reversed(coefficients), strict=True):
            q = q + per_sample(coefficient - rho * dot(y, q), q) * s
        return q


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each member's rows, with shape (B)."""
    return (a * b).flatten(start_dim=1).sum(dim=1)
