r"""PPR with draws of the posterior in place of point estimates."""

__all__ = ["CalibratedPPR"]

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..linalg import gmres, square_root
from ..members import among, calling
from ..minimizers import GaussNewton
from ..network import Network
from ..randomness import MemberNoise
from .base import Randn, Sampler
from .ppr import PPR

LOW = 0.1  # the noise level below which posteriors are taken as Gaussian, whatever the prior
PILOT = 256  # unconditional samples that tell which residuals are near


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

    **Non-Gaussian priors.** The posterior of a prior with edges or modes is Gaussian only at low
    noise, and whatever starts above gets the masses of the modes wrong. So where a share
    `acceptance` of the prior comes near the constraint by itself, nothing is conditioned above
    `sigma_max`: a member goes there as an unconditional sample would, :math:`x_0` is drawn, and
    the member is drawn again (up to `tries` times) unless :math:`\|r(x_0)\|` is among that share
    of least residuals, as found on unconditional samples of a seed of their own. With it the
    target is the prior restricted to :math:`\|r\| \leq \epsilon`, with :math:`\epsilon \to 0`:
    its density on the constraint is :math:`p / |\det J J^\top|^{1/2}`, and not the surface's.

    References:
        | Learning Diffusion Priors from Observations by Expectation Maximization (Rozet et al.,
        | 2024), https://arxiv.org/abs/2405.13712, for the moments
        | Gaussian Processes and Matheron's rule (Wilson et al., 2021), https://jmlr.org/papers/v22/20-1260.html

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint.
        steps: The number of diffusion steps.
        sigma_max: The highest noise level :math:`\sigma / \alpha` at which the constraint acts;
            None for 0.1 where the share `acceptance` of the prior is within three times that of
            the constraint, and for infinity elsewhere. It is for data of unit variance.
        tries: How often a member may be drawn before the last one is taken as it is; without
            effect where `sigma_max` is infinite.
        acceptance: The share of the prior that is taken to be near the constraint.
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
        steps: int = 48,
        sigma_max: float | None = None,
        tries: int = 16,
        acceptance: float = 0.15,
        products: int = 2,
        rounds: int = 1,
        iterations: int = 8,
        rtol: float = 1e-3,
        retries: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(denoiser, constraint, steps=steps, retries=retries, **kwargs)
        self.products, self.rounds, self.iterations, self.rtol = products, rounds, iterations, rtol
        self.sigma_max, self.tries, self.acceptance = sigma_max, tries, acceptance
        self._near = math.inf  # the largest norm of a residual that is near
        self._ppr = PPR(denoiser, constraint)
        self._ppr.denoiser = self.denoiser  # whose calls are counted

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        if self.noise_level(t) > self._start:
            x_0 = self.denoiser(x_t, t)
            x_s = self.predict(x_t, x_0, t, s, randn)
            if self.noise_level(s) <= self._start and isinstance(randn, MemberNoise):
                x_s = self._accepted(x_s, s, randn)
            return x_s, x_0
        x_0 = self.draw_posterior(x_t, t, randn)
        x_s = self.predict(x_t, x_0, t, s, randn)
        if s == 0:
            found = self._ppr.search(x_s, s, reach=self.noise_level(t))
            x_s, x_0 = found.x, found.x_0
        return x_s, x_0

    def _accepted(self, x_s: Tensor, s: Tensor, noise: MemberNoise) -> Tensor:
        """Draws members again from the start, until a draw of their posterior is near."""
        rows = torch.arange(len(x_s), device=x_s.device)
        x_s = x_s.clone()
        for trial in range(self.tries):
            again = noise.again(rows, trial) if trial else noise
            with among(rows):
                if trial:
                    x_s[rows] = self._free(again, s)
                r = self.constraint.residual(self.draw_posterior(x_s[rows], s, again, rounds=0))
            rows = rows[~(r.norm(dim=1) <= self._near)]
            if not rows.numel():
                break
        return x_s

    def _free(self, noise: MemberNoise, end: Tensor) -> Tensor:
        """Draws states at time `end` without the constraint."""
        times = torch.linspace(1, 0, self.steps + 1, dtype=noise.dtype, device=noise.device)
        alpha_t, sigma_t = self.denoiser.schedule(times[0])
        x_t = torch.sqrt(alpha_t**2 + sigma_t**2) * noise()
        for t, s in pairwise(times[times >= end]):
            x_t = self.predict(x_t, self.denoiser(x_t, t), t, s, noise)
        return x_t

    @torch.enable_grad()
    def draw_posterior(
        self, x_t: Tensor, t: Tensor, randn: Randn, rounds: int | None = None
    ) -> Tensor:
        r"""Draws :math:`x_0 \sim p(x_0 \mid x_t, r = 0)`, with shape :math:`(B, *)`; without the
        constraint if `rounds` is 0."""
        rounds = self.rounds if rounds is None else rounds
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = x_t.detach().requires_grad_()
        mean = self.denoiser(x_t, t)

        def V(v: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(mean, x_t, v, retain_graph=True)
            return sigma_t**2 / alpha_t * product

        x_0 = mean.detach()
        if self.products:
            x_0 = x_0 + square_root(V, randn(x_0), self.products)
        for _ in range(rounds):
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
        self._start = math.inf if self.sigma_max is None else self.sigma_max
        if self.sigma_max is None or self.sigma_max < math.inf:
            self._rehearse(x_0)

    def _rehearse(self, like: Tensor) -> None:
        """Finds on unconditional samples which residuals are near, and where to begin."""
        noise = MemberNoise(
            2**32 - 1, range(PILOT), like.shape[1:], dtype=like.dtype, device=like.device
        )
        free = Network(self.denoiser.denoiser)  # not in the counts
        denoiser, self.denoiser = self.denoiser, free
        try:
            with calling([0] * PILOT, noise.device):
                x_0 = self._free(noise, torch.zeros((), dtype=like.dtype, device=like.device))
        finally:
            self.denoiser = denoiser
        size = self.constraint.residual(x_0).norm(dim=1)
        self._near = size.quantile(self.acceptance).item()
        if self.sigma_max is None:
            near = x_0[size <= self._near]
            with calling([0] * len(near), like.device):
                moved = GaussNewton(8)(
                    lambda x: (self.constraint.residual(x), x), near, self.stop
                )
            distance = (moved.x - near).norm(dim=1).median().item()
            self._start = LOW if distance <= 3 * LOW else math.inf

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, self.products + self.rounds * min(self.iterations, residuals)
