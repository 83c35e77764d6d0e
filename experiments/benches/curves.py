"""Smooth curves that nothing was tuned on."""

__all__ = ["CURVES", "Curves"]

from collections.abc import Callable, Mapping

from torch import Tensor

from feasibly.constraints import Constraint, LevelSet
from feasibly.problems.data2d import Data2D

Function = Callable[[Tensor, Tensor], Tensor]


def tilted(x: Tensor, y: Tensor) -> Tensor:
    """A parabola whose axis is turned by 30 degrees."""
    along, across = 0.866 * x + 0.5 * y, 0.866 * y - 0.5 * x
    return along + 0.4 - 0.7 * across.square()


def humps(x: Tensor, y: Tensor) -> Tensor:
    """A level of two humps of different width."""
    first = (-((x - 0.6).square() + (y - 0.4).square()) / 0.8).exp()
    return first + 0.8 * (-((x + 0.7).square() + (y + 0.3).square()) / 0.5).exp() - 0.45


CURVES: Mapping[str, Function] = {
    "Cassini oval": lambda x, y: (
        ((x - 0.8).square() + y.square()) * ((x + 0.8).square() + y.square()) - 0.9
    ),
    "superellipse": lambda x, y: (x**4 + y**4 - 1.2**4) / 4,
    "cubic": lambda x, y: y.square() - x**3 + 1.5 * x - 0.8,
    "clover": lambda x, y: x.square() + y.square() + 0.15 * (x**3 - 3 * x * y.square()) - 1.4,
    "waves": lambda x, y: (2 * x).sin() + (2 * y).cos() - 0.3,
    "tilted parabola": tilted,
    "two humps": humps,
    "two ovals": lambda x, y: x**4 - 2 * x.square() + y.square() + 0.3,
}
"""Functions whose zeros they are, by name."""


class Curves(Data2D):
    """The two priors of Data2D under these curves; constraint k is the k-th."""

    def constraint(self, k: int) -> Constraint:
        function = list(CURVES.values())[k]
        return LevelSet(lambda x: function(*x.unbind(dim=-1)))
