r"""A constraint on decoded latents."""

__all__ = ["Decoded"]

from collections.abc import Callable

import torch
from torch import Tensor

from .base import Constraint


class Decoded(Constraint):
    r"""A constraint on :math:`D(z)`, for a model of latents :math:`z` and a decoder :math:`D`.

    Arguments:
        constraint: The constraint on decoded samples.
        decode: The decoder, which maps a batch of latents to a batch of samples, each by itself,
            and is differentiable.
        encode: The encoder, for methods that go back; None if there is none.
    """

    def __init__(
        self,
        constraint: Constraint,
        decode: Callable[[Tensor], Tensor],
        encode: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(constraint.tolerance)
        self.constraint, self.decode, self.encode = constraint, decode, encode

    @property
    def surface(self) -> Constraint | None:
        surface = self.constraint.surface
        return None if surface is None else Decoded(surface, self.decode, self.encode)

    def residual(self, x: Tensor) -> Tensor:
        return self.constraint.residual(self.decode(x))

    def violation(self, x: Tensor) -> Tensor:
        return self.constraint.violation(self.decode(x))

    @torch.no_grad()
    def assess(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.constraint.assess(self.decode(x))

    def __repr__(self) -> str:
        return f"{self.constraint!r}, decoded"
