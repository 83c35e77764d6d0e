r"""First-order minimizers of :math:`f = \|r\|^2`, batched per sample."""

__all__ = ["SGD", "Adam", "FirstOrder", "Fromage", "Muon", "Polyak"]

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Minimizer, Search, capped, per_sample


@dataclass(frozen=True)
class FirstOrder(Minimizer):
    """A minimizer whose step depends on the gradients seen so far."""

    def search(self, search: Search, cap: float | None, state: Any) -> None:
        moments: dict[str, Tensor] = {}
        for k in range(self.steps):
            _, value, going = search.evaluate()
            if not going.any():
                return
            g = search.gradient(value)
            x = search.x.detach()
            step = self.step(x, value.detach(), g, moments, k + 1)
            search.select(going)
            search.move((x - capped(step, cap))[going])
            moments = {name: moment[going] for name, moment in moments.items()}
        search.finish()

    @abstractmethod
    def step(self, x: Tensor, f: Tensor, g: Tensor, state: dict[str, Tensor], k: int) -> Tensor:
        r"""Returns what to subtract from `x` in iteration `k` = 1, 2, ..., and updates `state`,
        a dictionary of tensors with one row a member."""


def _norm(x: Tensor) -> Tensor:
    return per_sample(x.flatten(start_dim=1).norm(dim=1), x)


@dataclass(frozen=True)
class Polyak(FirstOrder):
    r"""Polyak's step :math:`x \gets x - 2 f \nabla f / \|\nabla f\|^2` for a least value of zero.

    The factor two makes it exact for a quadratic; it equals a Gauss-Newton step on
    :math:`\sqrt{f}`.

    References:
        | Introduction to Optimization (Polyak, 1987)

    Example:
        >>> search = feasibly.minimizers.Polyak(steps=16)
        >>> found = search(lambda x: (circle.residual(x), x), torch.tensor([[3.0, 4.0]]))
        >>> found.x.round(decimals=2)
        tensor([[0.6000, 0.8000]])
    """

    steps: int = 4

    def step(self, x: Tensor, f: Tensor, g: Tensor, state: dict[str, Tensor], k: int) -> Tensor:
        return per_sample(2 * f, g) * g / _norm(g) ** 2


@dataclass(frozen=True)
class SGD(FirstOrder):
    r"""Gradient descent :math:`x \gets x - \eta \nabla f`.

    Arguments:
        lr: The learning rate :math:`\eta`.

    Example:
        >>> search = feasibly.minimizers.SGD(steps=64, lr=0.01)
        >>> found = search(lambda x: (circle.residual(x), x), torch.tensor([[1.2, 1.6]]))
        >>> found.x.round(decimals=2)
        tensor([[0.6000, 0.8000]])
    """

    least: ClassVar[dict[str, float]] = {"lr": 0}

    lr: float = 1e-2

    def step(self, x: Tensor, f: Tensor, g: Tensor, state: dict[str, Tensor], k: int) -> Tensor:
        return self.lr * g


@dataclass(frozen=True)
class Adam(FirstOrder):
    r"""Adam.

    References:
        | Adam: A Method for Stochastic Optimization (Kingma & Ba, 2015)
        | https://arxiv.org/abs/1412.6980

    Arguments:
        lr: The learning rate. The two betas are the decays of the two moments.

    Example:
        >>> search = feasibly.minimizers.Adam(steps=64, lr=0.1)
        >>> found = search(lambda x: (circle.residual(x), x), torch.tensor([[1.2, 1.6]]))
        >>> bool(found.value < 0.1)
        True
    """

    least: ClassVar[dict[str, float]] = {"lr": 0}

    lr: float = 1e-1
    beta_1: float = 0.9
    beta_2: float = 0.999

    def step(self, x: Tensor, f: Tensor, g: Tensor, state: dict[str, Tensor], k: int) -> Tensor:
        zero = torch.zeros_like(g)
        state["m"] = torch.lerp(g, state.get("m", zero), self.beta_1)
        state["v"] = torch.lerp(g.square(), state.get("v", zero), self.beta_2)
        m, v = state["m"] / (1 - self.beta_1**k), state["v"] / (1 - self.beta_2**k)
        return self.lr * m / (v.sqrt() + 1e-8)


@dataclass(frozen=True)
class Fromage(FirstOrder):
    r"""Fromage: :math:`x \gets (x - \eta \, \|x\| \, \nabla f / \|\nabla f\|) /
    \sqrt{1 + \eta^2}`.

    References:
        | On the distance between two neural networks and the stability of learning
        | (Bernstein et al., 2020), https://arxiv.org/abs/2002.03432

    Arguments:
        lr: The learning rate :math:`\eta`.

    Example:
        >>> search = feasibly.minimizers.Fromage(steps=64, lr=0.1)
        >>> found = search(lambda x: (circle.residual(x), x), torch.tensor([[1.2, 1.6]]))
        >>> bool(found.value < 0.1)
        True
    """

    least: ClassVar[dict[str, float]] = {"lr": 0}

    lr: float = 1e-2

    def step(self, x: Tensor, f: Tensor, g: Tensor, state: dict[str, Tensor], k: int) -> Tensor:
        return x - (x - self.lr * _norm(x) * g / _norm(g)) / (1 + self.lr**2) ** 0.5


@dataclass(frozen=True)
class Muon(FirstOrder):
    r"""Muon: momentum, orthogonalised by a Newton-Schulz iteration.

    A sample is taken as a matrix, its last axis against the others.

    References:
        | Muon: An optimizer for hidden layers in neural networks (Jordan et al., 2024)
        | https://kellerjordan.github.io/posts/muon/

    Arguments:
        lr: The learning rate.
        beta: The momentum.

    Example:
        >>> search = feasibly.minimizers.Muon(steps=64, lr=0.1)
        >>> found = search(lambda x: (circle.residual(x), x), torch.tensor([[1.2, 1.6]]))
        >>> bool(found.value < 0.5)
        True
    """

    least: ClassVar[dict[str, float]] = {"lr": 0}

    lr: float = 1e-1
    beta: float = 0.95

    def step(self, x: Tensor, f: Tensor, g: Tensor, state: dict[str, Tensor], k: int) -> Tensor:
        state["m"] = self.beta * state.get("m", torch.zeros_like(g)) + g
        nesterov = g + self.beta * state["m"]
        matrix = nesterov.reshape(x.shape[0], -1, x.shape[-1])
        return self.lr * _orthogonalise(matrix).reshape(x.shape)


def _orthogonalise(G: Tensor, iterations: int = 5) -> Tensor:
    """Replaces the singular values of each matrix by values from 0.7 to 1.2, with the quintic
    Newton-Schulz iteration and the coefficients of Muon."""
    wide = G.shape[-2] <= G.shape[-1]
    X = G if wide else G.mT
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(X.dtype).tiny)
    for _ in range(iterations):
        A = X @ X.mT
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X if wide else X.mT
