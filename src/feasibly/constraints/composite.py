"""Several constraints at once."""

__all__ = ["Composite"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Constraint


class Composite(Constraint):
    r"""All of several constraints: :math:`c(x) = \sum_i w_i c_i(x)`.

    A sample is feasible if it is feasible for *every* part, each with its own tolerance; the
    weights only balance the parts while a projection is under way.

    Arguments:
        constraints: The parts.
        weights: The weights :math:`w_i > 0`. By default the inverse tolerances, so that each
            part counts by how far it is from being feasible.
    """

    def __init__(
        self, constraints: Sequence[Constraint], weights: Sequence[float] | None = None
    ) -> None:
        if not constraints:
            raise ValueError("Composite needs at least one constraint.")
        if weights is None:
            weights = [1 / part.tolerance for part in constraints]
        if len(weights) != len(constraints) or min(weights) <= 0:
            raise ValueError(
                f"Composite needs one positive weight for each of its {len(constraints)} "
                f"constraints, got {list(weights)}."
            )
        # sum_i w_i c_i <= min_i w_i tol_i makes every part feasible: where minimizers may stop
        super().__init__(min(w * c.tolerance for w, c in zip(weights, constraints, strict=True)))
        self.constraints, self.weights = list(constraints), list(weights)

    @property
    def equalities(self) -> Constraint | None:
        parts = zip([part.equalities for part in self.constraints], self.weights, strict=True)
        kept = [(part, w) for part, w in parts if part is not None]
        return Composite(*zip(*kept, strict=True)) if kept else None

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

    def __repr__(self) -> str:
        return f"Composite({', '.join(map(repr, self.constraints))})"
