r"""Derivatives that any network has that can be differentiated once, by reverse mode.

Forward-mode derivatives and derivatives of derivatives are missing from attention, recurrent
layers, checkpoints and most custom functions. So none is required of a network.
"""

__all__ = ["CHECKPOINTS", "Jacobian", "ordinary"]

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint

AGREES = 0.01
"""By how much of its length a product may miss an exact one, before a longer step is tried."""

COARSER = (torch.float32, torch.bfloat16)
"""The precisions that a function may compute in, though its input has a finer one."""


class Jacobian:
    r"""Products with the Jacobian :math:`J = \partial f / \partial x` of each sample, and with
    :math:`J^\top`.

    The products with :math:`J^\top` are vector-Jacobian products. Those with :math:`J` are central
    differences, unless `twice` is given. They take two evaluations. Their step is the cube root of
    the precision, in units of the sample's size. The exact
    :math:`p^\top (J v) = (J^\top p)^\top v`, with the last product :math:`J^\top p`, tells if a
    function computes in a coarser precision: steps are then longer.

    Differences lose most digits of a residual with derivatives, such as that of a differential
    equation, which amplifies rounding. With `twice`, :math:`J v` is the gradient of
    :math:`v^\top J^\top u` in :math:`u`. A sample of which that is missing, or misses the equation
    above, has differences from then on. A backward pass that detaches its argument in a few
    components may go unnoticed.

    References:
        | A new trick for calculating Jacobian vector products (Townsend, 2017)
        | https://j-towns.github.io/2017/06/12/A-new-trick.html
        | Jacobian-free Newton-Krylov methods (Knoll & Keyes, 2004), Section 2.3
        | https://doi.org/10.1016/j.jcp.2003.08.010

    Arguments:
        f: The function, from samples of shape :math:`(B, *)` to values of shape :math:`(B, m)`.
        r: Its values at `x`, with their graph.
        x: The samples, which require gradients.
        linear: Whether it is linear up to a constant. Steps are then as long as the samples.
        spread: The largest unit of a step, one number or with shape :math:`(B)`, such as the
            standard deviation of the data; None for that of a sample's elements.
        twice: Whether to differentiate the function twice where that is possible.
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor],
        r: Tensor,
        x: Tensor,
        linear: bool = False,
        spread: Tensor | float | None = None,
        twice: bool = False,
    ) -> None:
        self.f, self.r, self.x = f, r, x
        eps = torch.finfo(x.dtype).eps
        precisions = [eps, *(e for d in COARSER if (e := torch.finfo(d).eps) > eps)]
        self.steps = [1.0] if linear else [e ** (1 / 3) for e in precisions]
        self.level = torch.zeros(len(x), dtype=torch.long, device=x.device)  # of each sample
        self.size = self._sizes(spread)
        self.known: tuple[Tensor, Tensor] | None = None
        self.exact = torch.full_like(self.level, twice, dtype=torch.bool)  # of each sample
        self.transposed: tuple[Tensor, Tensor] | None = None  # u, and J^T u with its graph

    def T(self, p: Tensor) -> Tensor:
        r"""Returns :math:`J^\top p`, with the shape of `x`, for `p` of shape :math:`(B, m)`."""
        # a sum, since `grad_outputs` makes torch import sympy, for a second, at its first use
        with torch.enable_grad():
            value = (self.r * p).sum()
        (product,) = torch.autograd.grad(value, self.x, retain_graph=True)
        self.known = p, product
        return product

    def rows(self) -> Tensor:
        r"""Returns :math:`J`, with shape :math:`(B, m, *)`, by a backward pass a row."""
        eye = torch.eye(self.r.shape[1], dtype=self.r.dtype, device=self.r.device)
        return torch.stack([self.T(row.expand_as(self.r)) for row in eye], dim=1)

    @torch.no_grad()
    def __call__(self, v: Tensor) -> Tensor:
        r"""Returns :math:`J v`, with shape :math:`(B, m)`, for `v` of the shape of `x`."""
        good = v.isfinite().flatten(start_dim=1).all(dim=1)
        v = torch.where(_fit(good, v), v, 0.0)  # a network may refuse states that are not finite
        product = self._twice(v)
        if not self.exact.all():
            product = torch.where(self.exact[:, None], product, self._differences(v))
        return torch.where(good[:, None], product, torch.nan)

    def _twice(self, v: Tensor) -> Tensor:
        """Returns the products by two derivatives, and notes of which samples they are right."""
        product = torch.zeros_like(self.r)
        if not self.exact.any():
            return product
        if self.known is None:
            self.T(self.r.detach())
        try:
            with torch.enable_grad():
                if self.transposed is None:
                    u = torch.zeros_like(self.r, requires_grad=True)
                    value = (self.r * u).sum()
                    (J_T_u,) = torch.autograd.grad(value, self.x, create_graph=True)
                    self.transposed = u, J_T_u
                u, J_T_u = self.transposed
                (product,) = torch.autograd.grad((J_T_u * v).sum(), u, retain_graph=True)
            self.exact = self.exact & (self._error(product, v) <= AGREES)
        except Exception:  # of a user's derivative; differences need the first one alone
            self.exact = torch.zeros_like(self.exact)
        if not self.exact.any():
            self.transposed = None
        return product

    def _differences(self, v: Tensor) -> Tensor:
        """Returns the products by differences, with longer steps where these are right."""
        product = self._difference(v, self.level)
        for _ in self.steps[1:]:
            error = self._error(product, v)
            level = (self.level + (error > AGREES)).clamp_max(len(self.steps) - 1)
            if (level == self.level).all():
                break
            coarser = self._difference(v, level)
            better = (level > self.level) & (self._error(coarser, v) < error)
            product = torch.where(better[:, None], coarser, product)
            if not better.any():
                break
            self.level = torch.where(better, level, self.level)
        return product

    def _sizes(self, spread: Tensor | float | None) -> Tensor:
        """Returns the length of a step of one for each sample, with shape (B)."""
        x = self.x.detach().flatten(start_dim=1)
        size = (x - x.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt()
        size = torch.where(size > 0, size, x.square().mean(dim=1).sqrt())
        size = torch.where(size > 0, size, 1.0)
        return size if spread is None else torch.minimum(size, torch.as_tensor(spread).to(size))

    def _difference(self, v: Tensor, level: Tensor) -> Tensor:
        longest = v.flatten(start_dim=1).abs().amax(dim=1)
        # of the largest element, since that of a sparse direction would be far longer than most
        step = v.new_tensor(self.steps)[level]
        h = step * self.size / torch.where(longest > 0, longest, 1.0)
        move = _fit(h, v) * v
        return (self.f(self.x + move) - self.f(self.x - move)) / (2 * h)[:, None]

    def _error(self, product: Tensor, v: Tensor) -> Tensor:
        """Returns by what share a product is off along the last `p`, with shape (B)."""
        if self.known is None:
            return torch.zeros_like(product[:, 0])
        p, J_T_p = self.known
        off = (p * product).sum(dim=1) - (J_T_p * v).flatten(start_dim=1).sum(dim=1)
        return off.abs() / (p.norm(dim=1) * product.norm(dim=1)).clamp_min(
            torch.finfo(off.dtype).tiny
        )


class Checkpoints:
    """While it is entered, checkpoints of torch's reentrant kind, which know `backward` alone, are
    made as those of the other kind, which `torch.autograd.grad` differentiates."""

    def __init__(self) -> None:
        self.lock, self.entered = threading.Lock(), 0
        self.original = checkpoint.CheckpointFunction

    def __enter__(self) -> None:
        with self.lock:
            self.entered += 1
            vars(checkpoint)["CheckpointFunction"] = self

    def __exit__(self, *_: Any) -> None:
        with self.lock:
            self.entered -= 1
            if not self.entered:
                vars(checkpoint)["CheckpointFunction"] = self.original

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """What torch calls of a checkpoint of the reentrant kind."""
        return checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve
        )


CHECKPOINTS = Checkpoints()


def ordinary(x: Tensor) -> Tensor:
    """Returns a tensor that can be part of a graph: a copy of one made in inference mode."""
    if not x.is_inference():
        return x
    with torch.inference_mode(False):
        return x.clone()


def _fit(v: Tensor, like: Tensor) -> Tensor:
    return v.reshape(-1, *(1,) * (like.ndim - 1))
