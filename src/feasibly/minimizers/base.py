r"""What every minimizer of :math:`\|r(x)\|^2` shares: the active set and the best iterate."""

__all__ = [
    "GAIN",
    "QUIET",
    "Minimizer",
    "Minimum",
    "Residual",
    "Search",
    "capped",
    "dot",
    "finite",
    "per_sample",
    "words",
]

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..arguments import fit_fields
from ..members import among

QUIET = {"quiet": True}
"""The metadata of options that :func:`words` leaves out at their defaults: results and stores know
a sampler by these words."""

GAIN = 0.1
"""A member that has enough stops at an evaluation that gains less than this share."""

Residual = Callable[[Tensor], tuple[Tensor, Tensor]]
r"""Maps :math:`x` to the residual :math:`r(x)`, with shape :math:`(B, m)`, and to the clean
estimate :math:`x_0` that it was computed from. It must treat samples one by one: minimizers call
it for the members that are still searching, and for no others."""


Violation = Callable[[Tensor], Tensor]
"""Maps residuals, with shape (B, m), to what a search may stop by, with shape (B)."""


class Minimum(NamedTuple):
    r"""What a search has found.

    Attributes:
        x: The best iterate of each member, with shape (B, *).
        x_0: Its clean estimate, with shape (B, *).
        value: Its objective, with shape (B): :math:`\|r\|^2` unless there is a proximity.
        state: What the next search may begin with; None for nothing.

    Example:
        >>> search = feasibly.minimizers.Polyak(steps=8)
        >>> found = search(lambda x: (circle.residual(x), x), torch.tensor([[3.0, 4.0]]))
        >>> found.x.shape, found.x_0.shape, found.value.shape
        (torch.Size([1, 2]), torch.Size([1, 2]), torch.Size([1]))
    """

    x: Tensor
    x_0: Tensor
    value: Tensor
    state: Any = None


@dataclass(frozen=True)
class Minimizer(ABC):
    r"""Minimizes :math:`\|r(x)\|^2` for each member on its own.

    A minimizer is an immutable value: it keeps nothing from one search to the next.

    Arguments:
        steps: The number :math:`P` of iterations, each with one evaluation of the residual and
            its derivatives.
        max_step: The longest iteration, in units of :math:`\sigma \sqrt{D}`, the typical length
            of the noise in a state; None for no cap.
        max_distance: How far from its start a member may get, in the same units: where a
            denoiser was never trained it cannot keep an estimate on the data. None for no bound.

    Example:
        >>> from dataclasses import replace
        >>> replace(feasibly.minimizers.GaussNewton(steps=2), steps=8).steps
        8
        >>> feasibly.minimizers.LBFGS(steps=8).cost(residuals=1)  # forward, backward
        (9, 8)
    """

    least: ClassVar[dict[str, float]] = {}  # the least values of a method's own parameters

    steps: int = 8
    max_step: float | None = None
    max_distance: float | None = None

    def __post_init__(self) -> None:
        fit_fields(self)
        for name in ("max_step", "max_distance"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise ValueError(
                    f"{type(self).__name__}({name}=...) must be positive or None, got {bound}."
                )
        for name, least in {"steps": 1, **self.least}.items():
            value = getattr(self, name)
            if not value >= least:
                raise ValueError(
                    f"{type(self).__name__}({name}=...) must be at least {least}, got {value}."
                )

    def init(self, x: Tensor) -> Any:
        """Returns the state that the first search of a run begins with, for samples of the shape
        of `x`; None for a minimizer that keeps nothing from one search to the next."""
        return None

    def cost(self, residuals: int) -> tuple[int, int]:
        r"""Returns the most forward and backward evaluations of a search, for so many residual
        components."""
        return self.steps + 1, self.steps

    def __call__(
        self,
        residual: Residual,
        x: Tensor,
        threshold: float = 0.0,
        unit: float = 1.0,
        proximity: float = 0.0,
        state: Any = None,
        enough: float = 0.0,
        violation: Violation | None = None,
    ) -> Minimum:
        r"""Searches for the least :math:`\|r(z)\|^2 + p \|z - x\|^2`, from `x`.

        Arguments:
            residual: The residual and clean estimate, as functions of the iterate.
            x: The starting points, with shape :math:`(B, *)`.
            threshold: A sample stops once the objective is at or below this.
            unit: The length in which `max_step` and `max_distance` are measured.
            proximity: The weight :math:`p` of staying near the start, for a proximal map.
            state: What :meth:`init` or the search before returned, which is left as it is.
            enough: A sample whose best objective is at or below this also stops at an evaluation
                that lowers it by less than a tenth. One that raises it is a trial, and goes on.
            violation: What `threshold` and `enough` are compared with, as a function of
                the residual; None for the objective.

        Returns:
            The best iterate of each sample. A sample whose residual is not finite stops there.
        """
        cap, radius = (
            None if bound is None else bound * unit for bound in (self.max_step, self.max_distance)
        )
        search = Search(residual, x, threshold, radius, proximity, enough, violation)
        state = self.search(search, cap, state)
        return search.best._replace(state=state)

    @abstractmethod
    def search(self, search: "Search", cap: float | None, state: Any) -> Any:
        r"""Runs the method, with iterations no longer than `cap`; returns the next state."""


class Search:
    r"""Evaluates the residual for the members that still search, and keeps their best iterates.

    Attributes:
        active: The indices of the members that still search.
        x: The current iterates of these members.
    """

    def __init__(
        self,
        residual: Residual,
        x: Tensor,
        threshold: float,
        radius: float | None,
        proximity: float = 0.0,
        enough: float = 0.0,
        violation: Violation | None = None,
    ) -> None:
        self.violation = violation
        self._residual, self.radius, self.proximity = residual, radius, proximity
        self.threshold, self.enough = threshold, enough
        self.start = self.x = x.detach()
        self.active = torch.arange(x.shape[0], device=x.device)
        nothing = torch.full(x.shape[:1], torch.inf, dtype=x.dtype, device=x.device)
        self.best = Minimum(self.start, torch.full_like(x, torch.nan), nothing)
        self.least = nothing  # what was compared with it so far

    def residual(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Evaluates the residual at `x`, a point for each active member."""
        with among(self.active):
            return self._residual(x)

    def evaluate(self, derivatives: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        r"""Evaluates the residual at the current iterates.

        Returns:
            The residual, the objective, and the mask of the members that should go on: those
            with a finite objective above where they stop, unless it is enough and falls no more.
        """
        self.x = self.x.detach().requires_grad_(derivatives)
        with torch.set_grad_enabled(derivatives):
            r, x_0 = self.residual(self.x)
            value = r.square().sum(dim=1)
            if self.proximity:
                value = value + self.proximity * self.offset().square().sum(dim=1)
        self._keep_best(x_0.detach(), value.detach())
        now = value.detach() if self.violation is None else self.violation(r.detach())
        best = self.least[self.active]
        self.least = self.least.index_copy(0, self.active, torch.fmin(best, now).to(best))
        settled = (best <= self.enough) & (now <= best) & (now > (1 - GAIN) * best)
        return r, value, now.isfinite() & (now > self.threshold) & ~settled

    def _keep_best(self, x_0: Tensor, value: Tensor) -> None:
        better = value < self.best.value[self.active]  # never, where the value is NaN
        rows = self.active[better]
        self.best = Minimum(
            *(
                best.index_copy(0, rows, now[better].to(best))
                for best, now in zip(self.best[:3], (self.x.detach(), x_0, value), strict=True)
            )
        )

    def select(self, going: Tensor) -> None:
        r"""Lets all members rest but those in the mask `going`."""
        self.active, self.x = self.active[going], self.x.detach()[going]

    def move(self, x: Tensor) -> None:
        r"""Moves the active members to `x`, or towards it as far as the radius lets them."""
        if self.radius is not None:
            start = self.start[self.active]
            x = start + capped(x - start, self.radius)
        self.x = x

    def offset(self) -> Tensor:
        r"""Returns how far the iterates are from their starts, with shape :math:`(B, D)`."""
        return (self.x - self.start[self.active]).flatten(start_dim=1)

    def finish(self) -> None:
        r"""Evaluates the last iterates, which no later iteration would look at."""
        if self.active.numel():
            self.evaluate(derivatives=False)

    @torch.enable_grad()
    def gradient(self, value: Tensor, retain_graph: bool = False) -> Tensor:
        r"""Returns the gradient of each member's `value`, with shape :math:`(B)`."""
        # a sum, since `grad_outputs` makes torch import sympy, for a second, at its first use
        return torch.autograd.grad(value.sum(), self.x, retain_graph=retain_graph)[0]


def words(value: Any, *without: str) -> str:
    """Returns the options of a dataclass in words, but for some, and for quiet ones at their
    defaults."""
    shown = (
        f"{f.name}={option!r}"
        for f in fields(value)
        if f.repr and f.name not in without
        for option in [getattr(value, f.name)]
        if not (f.metadata == QUIET and option == f.default)
    )
    return ", ".join(shown)


def per_sample(v: Tensor, like: Tensor) -> Tensor:
    r"""Gives `v`, with shape :math:`(B)`, trailing axes to multiply `like`."""
    return v.reshape(-1, *(1,) * (like.ndim - 1))


def finite(x: Tensor) -> Tensor:
    """Returns which samples are finite, with shape (B)."""
    return x.isfinite().flatten(start_dim=1).all(dim=1)


def dot(a: Tensor, b: Tensor) -> Tensor:
    r"""Returns the inner products of samples, with shape :math:`(B)`."""
    return (a * b).flatten(start_dim=1).sum(dim=1)


def capped(step: Tensor, cap: float | None) -> Tensor:
    r"""Shortens the steps that are longer than `cap`, and makes non-finite ones zero."""
    length = step.flatten(start_dim=1).norm(dim=1)
    scale = torch.ones_like(length) if cap is None else (cap / length).clamp(max=1)
    return torch.where(per_sample(length.isfinite(), step), step * per_sample(scale, step), 0.0)
