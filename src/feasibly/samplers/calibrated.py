r"""PPR with draws of the posterior in place of point estimates."""

__all__ = ["CalibratedPPR"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..linalg import gmres, square_root
from .base import Randn, Sampler
from .ppr import PPR


class CalibratedPPR(Sampler):
    r"""Samples under a hard constraint by predicting with *draws* of
    :math:`p(x_0 \mid x_t, r = 0)`.

    PPR renoises a point estimate, and so leaves out the variance that the posterior has around
    it: its ensembles are too narrow. Here the posterior is taken as Gaussian, with Tweedie's
    moments,

    .. math::
        p(x_0 \mid x_t) \approx \mathcal{N}\big(d_\theta(x_t), V\big), \qquad
        V = \frac{\sigma_t^2}{\alpha_t} \frac{\partial d_\theta}{\partial x_t},

    and each step draws from it under the constraint:

    .. math::
        z = d_\theta(x_t) + V^{1/2} \xi, \qquad
        x_0 = z - V J^\top (J V J^\top)^{-1} r(z), \qquad J = \partial r / \partial z,

    then goes from :math:`x_t` to :math:`x_s` as DDPM does with that :math:`x_0`. The last state
    is projected through the denoiser, as in PPR, and that estimate returned.

    For a Gaussian prior and a linear residual the steps are exact, whatever their number: by
    Matheron's rule :math:`x_0` is a draw of :math:`p(x_0 \mid x_t, r = 0)`, and DDPM's step given
    such a draw is one of :math:`p(x_s \mid x_t, r = 0)`.

    :math:`V^{1/2} \xi` takes `products` vector-Jacobian products by Lanczos' method. Two are
    enough, since the draw is renoised: between levels that are a factor of two apart the
    covariance of a step is :math:`\sigma^2 I` and as much again of :math:`V` at most, whose square
    root is nearly linear.

    References:
        | Learning Diffusion Priors from Observations by Expectation Maximization (Rozet et al.,
        | 2024), https://arxiv.org/abs/2405.13712, for the moments
        | Gaussian Processes and Matheron's rule (Wilson et al., 2021), https://jmlr.org/papers/v22/20-1260.html

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint.
        steps: The number of diffusion steps.
        products: The number of products for the square root; 0 leaves the draw out.
        rounds: How often a draw is moved onto the constraint, each time linearised anew.
        iterations: The most iterations of the solver in each round, one product each.
        rtol: The relative residual at which it stops.
        retries: How often an infeasible member is drawn again.
        kwargs: Keyword arguments passed to :class:`Sampler`.
    """

    default_readout = "clean"
    enforces = True
    space = "x_t"
    renoises = True
    differentiates = True
    advice = "allow more `iterations`, or more `steps`"
    constraint: Constraint

    def __init__(
        self,
        denoiser: Callable[[Tensor, Tensor], Any],
        constraint: Constraint,
        *,
        steps: int = 64,
        products: int = 2,
        rounds: int = 1,
        iterations: int = 8,
        rtol: float = 1e-3,
        retries: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(denoiser, constraint, steps=steps, retries=retries, **kwargs)
        self.products, self.rounds, self.iterations, self.rtol = products, rounds, iterations, rtol
        self._ppr = PPR(denoiser, constraint)
        self._ppr.denoiser = self.denoiser  # whose calls are counted

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        x_0 = self.draw_posterior(x_t, t, randn)
        x_s = self.predict(x_t, x_0, t, s, randn)
        if s == 0:
            found = self._ppr.search(x_s, s, reach=self.noise_level(t))
            x_s, x_0 = found.x, found.x_0
        return x_s, x_0

    @torch.enable_grad()
    def draw_posterior(self, x_t: Tensor, t: Tensor, randn: Randn) -> Tensor:
        r"""Draws :math:`x_0 \sim p(x_0 \mid x_t, r = 0)`, with shape :math:`(B, *)`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = x_t.detach().requires_grad_()
        mean = self.denoiser(x_t, t)

        def V(v: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(mean, x_t, v, retain_graph=True)
            return sigma_t**2 / alpha_t * product

        x_0 = mean.detach()
        if self.products:
            x_0 = x_0 + square_root(V, randn(x_0), self.products)
        for _ in range(self.rounds):
            x_0 = x_0 + self._move(V, x_0)
        return x_0.detach()

    def _move(self, V: Callable[[Tensor], Tensor], x_0: Tensor) -> Tensor:
        r""":math:`- V J^\top (J V J^\top)^{-1} r(x_0)`."""
        x_0 = x_0.detach().requires_grad_()
        r = self.constraint.residual(x_0)
        u = torch.zeros_like(r, requires_grad=True)
        (J_T_u,) = torch.autograd.grad(r, x_0, u, create_graph=True)
        pushes = []

        def S(p: Tensor) -> Tensor:
            (J_T_p,) = torch.autograd.grad(r, x_0, p, retain_graph=True)
            pushes.append(V(J_T_p))
            (S_p,) = torch.autograd.grad(J_T_u, u, pushes[-1], retain_graph=True)
            return S_p

        _, weights = gmres(S, -r.detach(), min(self.iterations, r.shape[1]), self.rtol)
        move = torch.zeros_like(x_0)
        for weight, push in zip(weights.unbind(dim=1), pushes, strict=True):
            move = move + weight.reshape(-1, *(1,) * (move.ndim - 1)) * push
        return move

    def prepare(self, x_0: Tensor, r: Tensor) -> None:
        self._ppr.choose(r.shape[1])

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, self.products + self.rounds * min(self.iterations, residuals)
