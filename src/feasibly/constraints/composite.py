"""Several constraints at once."""

__all__ = ["Composite", "without_inequalities"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments import typed
from .base import Constraint, Inequalities, Intervals


class Composite(Constraint):
    r"""All of several constraints, with the violation :math:`c(x) = \sum_i w_i c_i(x)`.

    A sample is feasible if it is feasible for *every* part, each with its own tolerance or atol.
    The weights only balance the parts during a projection. Parts that are noisy observations count
    neither for the violation nor for what is feasible. If all parts are linear, the projection has
    a closed form.

    Arguments:
        constraints: The parts.
        weights: The weights :math:`w_i > 0`. The default is one over each tolerance.

    Example:
        >>> both = feasibly.Composite([circle, feasibly.Bounds(0, None, atol=1e-3)])
        >>> both.is_feasible(torch.tensor([[0.6, 0.8], [-0.6, 0.8], [2.0, 0.0]])).tolist()
        [True, False, False]
    """

    @typed
    def __init__(
        self, constraints: Sequence[Constraint], weights: Sequence[float] | None = None
    ) -> None:
        if not isinstance(constraints, Sequence) or not constraints:
            raise ValueError(f"Composite takes at least one constraint, got {constraints!r}.")
        for part in constraints:
            if not isinstance(part, Constraint):
                raise ValueError(
                    f"Composite takes constraints, got {part!r}. Wrap a function with Equality or "
                    "Inequality first."
                )
        if weights is None:
            weights = [1 / part.tolerance if part.exact else 1.0 for part in constraints]
        if len(weights) != len(constraints) or min(weights) <= 0:
            raise ValueError(
                f"Composite needs one positive weight for each of its {len(constraints)} "
                f"constraints, got {list(weights)}."
            )
        # every part is feasible if sum_i w_i c_i <= min_i w_i tol_i: there minimizers may stop.
        # If all parts bound each component, it is enough that none exceeds that.
        least = min(w * c.tolerance for w, c in zip(weights, constraints, strict=True))
        each = math.isfinite(least) and all(part.atol or not part.exact for part in constraints)
        super().__init__(*((None, math.sqrt(least)) if each else (least, None)))
        self.constraints, self.weights = list(constraints), list(weights)
        self.linear = all(part.linear for part in constraints)
        self.differs = any(part.differs for part in constraints)

    @property
    def parts(self) -> Sequence[Constraint]:
        return [part for one in self.constraints for part in one.parts]

    @property
    def exact(self) -> Constraint | None:
        if self.noisy is None:
            return self
        return self._of([part.exact for part in self.constraints], self.weights)

    @property
    def noisy(self) -> Constraint | None:
        parts = [part.noisy for part in self.constraints]
        return self._of(parts, [1.0] * len(parts))  # each is in units of its errors

    @property
    def equalities(self) -> Constraint | None:
        return self._of([part.equalities for part in self.constraints], self.weights)

    def _of(
        self, parts: Sequence[Constraint | None], weights: Sequence[float]
    ) -> Constraint | None:
        """Returns the parts that there are; None if there are none."""
        kept = [(part, w) for part, w in zip(parts, weights, strict=True) if part is not None]
        return Composite(*zip(*kept, strict=True)) if kept else None

    @property
    def inequalities(self) -> Inequalities | None:
        found = [part.inequalities for part in self.constraints]
        parts = [part for part in found if part is not None]

        def joined(x: Tensor) -> Intervals:
            each = [part(x)[:3] for part in parts]
            return Intervals(*(torch.cat(tensors, dim=1) for tensors in zip(*each, strict=True)))

        return joined if parts else None

    def residual(self, x: Tensor) -> Tensor:
        parts = zip(self.weights, self.constraints, strict=True)
        return torch.cat([math.sqrt(w) * part.residual(x) for w, part in parts], dim=1)

    def violation(self, x: Tensor) -> Tensor:
        parts = zip(self.weights, self.constraints, strict=True)
        return torch.stack([w * part.violation(x) for w, part in parts]).sum(dim=0)

    @torch.no_grad()
    def assess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = [part.assess(x) for part in self.constraints]
        c = sum(w * c for w, (c, _) in zip(self.weights, parts, strict=True))
        return torch.as_tensor(c), torch.stack([feasible for _, feasible in parts]).all(dim=0)

    def projection(self, x: Tensor) -> Tensor:
        if not self.linear:
            nonlinear = next(part for part in self.constraints if not part.linear)
            raise NotImplementedError(f"{nonlinear!r} is not linear; project with a minimizer.")
        return super().projection(x)

    def _contradiction(self, x: Tensor) -> str:
        missed = [
            f"{part!r} with a violation of {part.violation(x).item():.3g}"
            for part in self.constraints
            if not part.is_feasible(x).all()
        ]
        return (
            "Composite: its parts contradict each other. The best sample still violates "
            f"{' and '.join(missed)}."
        )

    def __repr__(self) -> str:
        return f"Composite({', '.join(map(repr, self.constraints))})"


def without_inequalities(constraint: Constraint) -> Constraint | None:
    """Returns the equalities and the observations with noise; None if there are neither."""
    parts = [part for part in (constraint.equalities, constraint.noisy) if part is not None]
    return Composite(parts) if len(parts) > 1 else parts[0] if parts else None
