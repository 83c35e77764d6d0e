r"""L-BFGS, batched: each member has its own history, step length and end."""

__all__ = ["LBFGS", "History", "WarmLBFGS"]

from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch
from torch import Tensor

from .base import QUIET, Minimizer, Search, capped, dot, words

PAIR_TYPES = {
    None: None,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True, repr=False)
class LBFGS(Minimizer):
    r"""Limited-memory BFGS on :math:`f = \|r\|^2`.

    With the line search, a sample whose step does not satisfy Armijo's condition
    :math:`f(x + a d) \leq f(x) + 10^{-4} a \, d^\top \nabla f(x)` halves :math:`a` in the next
    evaluation, while the other samples go on. Without, every step is accepted.

    The first direction is Polyak's, :math:`- 2 f \nabla f / \|\nabla f\|^2`, since the least
    :math:`f` is known to be zero (with a proximity it is not, and the line search shortens it).
    A pair with :math:`s^\top y \leq 10^{-10} \|s\| \|y\|` is skipped.

    References:
        | On the limited memory BFGS method for large scale optimization (Liu & Nocedal, 1989)
        | https://doi.org/10.1007/BF01589116

    Arguments:
        memory: The number of pairs :math:`(s, y)` kept. They are most of what a large state
            takes: :math:`2 D` numbers each.
        line_search: Whether to backtrack.
        pair_type: The type in which pairs are kept, `bfloat16`, `float32` or `float64`; None for
            the state's. A pair is rounded before its curvature is taken, so that every direction
            descends whatever the type.
        pairs_on_host: Whether pairs are kept in the host's memory, and copied one by one to where
            the state is.

    Example:
        >>> search = feasibly.minimizers.LBFGS(steps=16, max_step=None)
        >>> found = search(lambda x: (circle.residual(x), x), torch.tensor([[3.0, 4.0]]))
        >>> found.x.round(decimals=2)
        tensor([[0.6000, 0.8000]])
    """

    least: ClassVar[dict[str, float]] = {"memory": 1}

    steps: int = 8
    max_step: float | None = 0.5
    memory: int = 8
    line_search: bool = True
    pair_type: str | None = field(default=None, metadata=QUIET)
    pairs_on_host: bool = field(default=False, metadata=QUIET)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pair_type not in PAIR_TYPES:
            raise ValueError(
                f"{type(self).__name__}(pair_type=...) must be one of {[*PAIR_TYPES]}, got "
                f"{self.pair_type!r}; float16 has too small a range for the changes of a gradient."
            )

    def search(
        self, search: Search, cap: float | None, state: "History | None"
    ) -> "History | None":
        history = self.history(search.x) if state is None else state.copy()
        self.descend(search, cap, history)
        return None if state is None else history

    def descend(self, search: Search, cap: float | None, history: "History") -> None:
        """Runs the method, reading the curvature in `history` and adding to it."""
        state: _State | None = None
        for _ in range(self.steps):
            _, value, going = search.evaluate()
            if state is not None and self.line_search:
                going = going | ~value.detach().isfinite()  # a bad trial: backtrack from it
            if not going.any():
                return

            x, f = search.x.detach(), value.detach()
            g = search.gradient(value)
            search.select(going)
            x, f, g = x[going], f[going], g[going]
            if state is None:
                state = _State(x, f, g)
            else:
                # a member that has stopped leaves no pair, whether or not others go on
                state.select(going)
                state.receive(x, f, g, self.line_search, history, search.active)
            search.move(state.trial(cap, history, search.active))
        search.finish()

    def history(self, x: Tensor) -> "History":
        """Returns an empty history for members of the shape of `x`."""
        device = torch.device("cpu") if self.pairs_on_host else x.device
        return History.empty(self.memory, x, PAIR_TYPES[self.pair_type], device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({words(self)})"


@dataclass(frozen=True, repr=False)
class WarmLBFGS(LBFGS):
    r"""L-BFGS that begins with the pairs that the run's last search has found, since the objective
    changes little from one projection to the next. Outside of a run it is :class:`LBFGS`.

    Example:
        >>> search = feasibly.minimizers.WarmLBFGS(steps=16, max_step=None)
        >>> residual, x = (lambda x: (circle.residual(x), x)), torch.tensor([[3.0, 4.0]])
        >>> first = search(residual, x, state=search.init(x))
        >>> search(residual, first.x + 0.1, state=first.state).x.norm().round(decimals=2)
        tensor(1.)
    """

    memory: int = 12

    def init(self, x: Tensor) -> "History":
        return self.history(x)


@dataclass
class History:
    r"""The latest pairs :math:`(s, y)` of each member, in a ring.

    Attributes:
        s: Steps, with shape (memory, B, D).
        y: Changes of the gradient, likewise.
        rho: :math:`1 / s^\top y`, with shape (memory, B); 0 marks an empty place.
        gamma: :math:`s^\top y / y^\top y`, likewise.
        count: How many pairs each member has had, with shape (B); the next one comes to the place
            of this number, modulo `memory`.
    """

    s: Tensor
    y: Tensor
    rho: Tensor
    gamma: Tensor
    count: Tensor

    @classmethod
    def empty(
        cls,
        memory: int,
        x: Tensor,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> "History":
        """Returns a history without pairs, for so many of samples `x`, with shape (B, *). The type
        and device are those of `s` and `y`; None for those of `x`."""
        rows, size = x.shape[0], x[0].numel()
        pairs = x.new_zeros((memory, rows, size), dtype=dtype, device=device)
        rho = x.new_zeros((memory, rows))
        count = torch.zeros(rows, dtype=torch.long, device=x.device)
        return cls(pairs, torch.zeros_like(pairs), rho, torch.zeros_like(rho), count)

    @property
    def memory(self) -> int:
        """The number of pairs."""
        return self.s.shape[0]

    def copy(self) -> "History":
        """Returns another history with the same pairs."""
        return History(*(getattr(self, f.name).clone() for f in fields(self)))

    def rounded(self, v: Tensor) -> Tensor:
        """A step or a change, as it will be read again."""
        return v.to(self.s.dtype).to(v.dtype)

    def append(self, rows: Tensor, s: Tensor, y: Tensor) -> None:
        """Adds a pair of the members `rows`, in the place of their oldest."""
        place = self.count[rows] % self.memory
        s_y = dot(s, y)
        self.rho[place, rows], self.gamma[place, rows] = 1 / s_y, s_y / dot(y, y)
        self.count[rows] += 1
        place, rows = place.to(self.s.device), rows.to(self.s.device)
        self.s[place, rows], self.y[place, rows] = s.to(self.s), y.to(self.y)

    def inverse_times(self, g: Tensor, f: Tensor, rows: Tensor) -> Tensor:
        """The two-loop recursion: the inverse Hessian's approximation times the gradient."""
        counts = self.count[rows]
        # from the latest on; where a member has fewer pairs than others, zeros, which add nothing
        age = range(min(self.memory, int(counts.max())))
        places = [(counts - 1 - k) % self.memory for k in age]
        q, coefficients = g, []
        for place in places:
            coefficients.append(self.rho[place, rows] * dot(self._at(self.s, place, rows, g), q))
            q = q - coefficients[-1][:, None] * self._at(self.y, place, rows, g)

        # the latest pair's curvature or, until there is one, Polyak's step length
        scale = 2 * f / dot(g, g).clamp_min(torch.finfo(f.dtype).tiny)
        gamma = self.gamma[(counts - 1) % self.memory, rows]
        q = torch.where(gamma > 0, gamma, scale)[:, None] * q

        for place in reversed(places):
            down = self.rho[place, rows] * dot(self._at(self.y, place, rows, g), q)
            q = q + (coefficients.pop() - down)[:, None] * self._at(self.s, place, rows, g)
        return q

    def _at(self, kept: Tensor, place: Tensor, rows: Tensor, like: Tensor) -> Tensor:
        """One pair's part of each member, copied for the moment; never all of them."""
        return kept[place.to(kept.device), rows.to(kept.device)].to(like)


class _State:
    r"""The last accepted iterate of each active member and its search direction.

    A step is the pair (`direction`, `length`), and is tried until it is accepted. Everything is
    flattened to :math:`(B, D)`.
    """

    def __init__(self, x: Tensor, f: Tensor, g: Tensor) -> None:
        self.shape = x.shape[1:]
        self.x, self.f, self.g = x.flatten(start_dim=1), f, g.flatten(start_dim=1)
        self.fresh = torch.ones_like(f, dtype=torch.bool)  # who needs a new direction
        self.direction, self.length = torch.zeros_like(self.x), torch.ones_like(f)

    def receive(
        self, x: Tensor, f: Tensor, g: Tensor, line_search: bool, history: History, rows: Tensor
    ) -> None:
        """Accepts the trials that descend enough (without a line search: all), and shortens the
        steps of the others."""
        x, g = x.flatten(start_dim=1), g.flatten(start_dim=1)
        if line_search:
            slope = dot(self.direction, self.g)
            accepted = f <= self.f + 1e-4 * self.length * slope  # never, where f is NaN
        else:
            accepted = torch.ones_like(self.fresh)
        s, y = history.rounded(x - self.x), history.rounded(g - self.g)
        usable = accepted & (dot(s, y) > 1e-10 * (dot(s, s) * dot(y, y)).sqrt())
        usable &= (1 / dot(s, y)).isfinite() & (dot(s, y) / dot(y, y)).isfinite()  # underflow
        if usable.any():
            history.append(rows[usable], s[usable], y[usable])

        row = accepted[:, None]
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

    def trial(self, cap: float | None, history: History, rows: Tensor) -> Tensor:
        """Returns the next points to evaluate."""
        if self.fresh.any():
            direction = capped(-history.inverse_times(self.g, self.f, rows), cap)
            self.direction = torch.where(self.fresh[:, None], direction, self.direction)
        return (self.x + self.length[:, None] * self.direction).unflatten(1, self.shape)
