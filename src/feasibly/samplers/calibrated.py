r"""PPR with draws of the posterior in place of point estimates."""

__all__ = ["CalibratedPPR"]

import math
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..errors import CalibrationWarning
from ..linalg import gmres, square_root
from ..members import among, calling
from ..network import Network
from ..randomness import MemberNoise
from .base import Randn, Sampler
from .ppr import PPR

FEW = 8  # residuals for which members may be drawn until they come near
RTOL = 1e-3  # the relative residual at which the linear solver stops
PILOT = 256  # unconditional samples that tell how likely the constraint can be


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

    **Where it applies.** The posterior of a prior with edges or modes is Gaussian at low noise
    only, and that of a strongly curved residual likewise: what is conditioned above gets masses of
    modes wrong, or leaves the data. For priors that are nearly Gaussian given many observations,
    such as fields seen through linear or mildly curved residuals, the steps may begin at the top.
    For others and up to 8 residuals, set `sigma_max`. Above it a member goes as an unconditional
    sample would; there, at :math:`x_s`, it is kept with a probability in proportion to

    .. math:: h(x_s) = \mathcal{N}\big(0 \mid r(d_\theta(x_s)), J V J^\top\big)
        \approx p(r = 0 \mid x_s),

    and else drawn again, so that those kept are draws of :math:`p(x_s \mid r = 0)` if the
    approximation holds there. The largest :math:`h` is taken, before a run, from 256 unconditional
    samples of a seed of their own, whose calls are not counted. Of a member that none of `tries`
    draws is kept of, one is chosen among them, with :math:`h` as weights; if that is so of most
    members, there is a :class:`CalibrationWarning <feasibly.errors.CalibrationWarning>`.

    The target is the prior restricted to :math:`\|r\| \leq \epsilon`, with
    :math:`\epsilon \to 0`: its density on the constraint is :math:`p / |\det J J^\top|^{1/2}`,
    and not :math:`p` on the surface; :func:`feasibly.constraints.log_volume` tells them apart.

    References:
        | Learning Diffusion Priors from Observations by Expectation Maximization (Rozet et al.,
        | 2024), https://arxiv.org/abs/2405.13712, for the moments
        | Gaussian Processes and Matheron's rule (Wilson et al., 2021), https://jmlr.org/papers/v22/20-1260.html

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint.
        steps: The number of diffusion steps. With `sigma_max` take more, such as 48: those above
            it are an unconditional sample's.
        sigma_max: The highest noise level :math:`\sigma / \alpha` at which the constraint acts.
            For data of unit variance 0.1 is low enough for edges and modes.
        tries: How often a member may be drawn down to `sigma_max`.
        products: The number of products for the square root; 0 leaves the draw out.
        iterations: The most iterations of the solver, one product each: as many as there are
            residuals are exact, and fewer may leave a bias where the constraint is far.
        retries: How often an infeasible member is drawn again.
        kwargs: Keyword arguments passed to :class:`Sampler`.
    """

    default_readout = "clean"
    enforces = True
    space = "x_0"
    renoises = True
    differentiates = True
    advice = "allow more `iterations`, or more `steps`"
    constraint: Constraint

    def __init__(
        self,
        denoiser: Callable[[Tensor, Tensor], Any],
        constraint: Constraint,
        *,
        steps: int = 32,
        sigma_max: float = math.inf,
        tries: int = 16,
        products: int = 2,
        iterations: int = 8,
        retries: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(denoiser, constraint, steps=steps, retries=retries, **kwargs)
        least = {"tries": (tries, 1), "products": (products, 0), "iterations": (iterations, 1)}
        for name, (value, bound) in least.items():
            if value < bound:
                raise ValueError(
                    f"CalibratedPPR({name}=...) must be at least {bound}, got {value}."
                )
        last = self.noise_level(torch.tensor(0.0))
        if not sigma_max > last:
            raise ValueError(
                f"CalibratedPPR(sigma_max={sigma_max}) is below the schedule's last noise level, "
                f"{last:.3g}, so the constraint would not act; raise it."
            )
        self.products, self.iterations = products, iterations
        self.sigma_max, self.tries = sigma_max, tries
        self._highest = 0.0  # the largest log h
        self._ppr = PPR(denoiser, constraint)
        self._ppr.denoiser = self.denoiser  # whose calls are counted

    def step(
        self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn = torch.randn_like
    ) -> tuple[Tensor, Tensor]:
        if self.noise_level(t) > self.sigma_max:
            x_0 = self.denoiser(x_t, t)
            x_s = self.predict(x_t, x_0, t, s, randn)
            if self.noise_level(s) <= self.sigma_max and isinstance(randn, MemberNoise):
                x_s = self._accepted(x_s, s, randn)
            return x_s, x_0
        x_0 = self.draw_posterior(x_t, t, randn)
        x_s = self.predict(x_t, x_0, t, s, randn)
        if s == 0:
            x_s, x_0 = self._ppr.kernel(x_s, s, randn, reach=self.noise_level(t))
        return x_s, x_0

    def _accepted(self, x_s: Tensor, s: Tensor, noise: MemberNoise) -> Tensor:
        """Draws members again from the start, until they are kept."""
        rows = torch.arange(len(x_s), device=x_s.device)
        x_s, total = x_s.clone(), torch.full_like(x_s.flatten(start_dim=1)[:, 0], -math.inf)
        for trial in range(self.tries):
            again = noise.again(rows, trial) if trial else noise
            with among(rows):
                x = self._free(again, s) if trial else x_s
                log_h = self.log_likelihood(x, s)
            u, v = (torch.special.ndtr(again().flatten(1)[:, 0]).log() for _ in range(2))
            keep = u <= log_h - self._highest
            total[rows] = torch.logaddexp(total[rows], log_h)
            chosen = keep | (v <= log_h - total[rows])  # the latter for what is never kept
            x_s[rows[chosen]] = x[chosen]
            rows = rows[~keep]
            if not rows.numel():
                break
        if 2 * rows.numel() > len(x_s) and noise.attempt == 0:
            warnings.warn(
                f"Of {len(x_s)} members {rows.numel()} were kept at none of {self.tries} tries, "
                "and one of these stands for each, by its weight: the masses of modes are the "
                "prior's in part. Raise `tries`, or `sigma_max` if the data has no finer edges.",
                CalibrationWarning,
                stacklevel=2,
            )
        return x_s

    @torch.enable_grad()
    def log_likelihood(self, x_t: Tensor, t: Tensor) -> Tensor:
        r"""Returns :math:`\log h(x_t)` but for a constant, with shape :math:`(B)`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = x_t.detach().requires_grad_()
        mean = self.denoiser(x_t, t)
        z = mean.detach().requires_grad_()
        r = self.constraint.residual(z)
        rows = [torch.autograd.grad(c.sum(), z, retain_graph=True)[0] for c in r.unbind(dim=1)]
        images = [torch.autograd.grad(mean, x_t, row, retain_graph=True)[0] for row in rows]
        J, VJ = (torch.stack(v, dim=1).flatten(start_dim=2).double() for v in (rows, images))
        S = (sigma_t**2 / alpha_t).double() * J @ VJ.mT
        values, vectors = torch.linalg.eigh((S + S.mT) / 2)
        values = values.clamp_min(torch.finfo(r.dtype).tiny)
        p = (vectors.mT @ r.detach().double()[..., None]).squeeze(-1)
        log_h = -(p.square() / values + values.log()).sum(dim=1) / 2
        return log_h.nan_to_num(-math.inf).to(r.dtype)  # what is not finite is not kept

    def _free(self, noise: MemberNoise, end: Tensor) -> Tensor:
        """Draws states at time `end` without the constraint."""
        times = torch.linspace(1, 0, self.steps + 1, dtype=noise.dtype, device=noise.device)
        alpha_t, sigma_t = self.denoiser.schedule(times[0])
        x_t = torch.sqrt(alpha_t**2 + sigma_t**2) * noise()
        for t, s in pairwise(times[times >= end]):
            x_t = self.predict(x_t, self.denoiser(x_t, t), t, s, noise)
        return x_t

    @torch.enable_grad()
    def draw_posterior(self, x_t: Tensor, t: Tensor, randn: Randn) -> Tensor:
        r"""Draws :math:`x_0 \sim p(x_0 \mid x_t, r = 0)`, with shape :math:`(B, *)`."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = x_t.detach().requires_grad_()
        mean = self.denoiser(x_t, t)

        def V(v: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(mean, x_t, v, retain_graph=True)
            return sigma_t**2 / alpha_t * product

        z = mean.detach()
        if self.products:
            z = z + square_root(V, randn(z), self.products)
        return z + self._move(V, z)

    def _move(self, V: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        r""":math:`- V J^\top (J V J^\top)^{-1} r(z)`."""
        z = z.detach().requires_grad_()
        r = self.constraint.residual(z)
        u = torch.zeros_like(r, requires_grad=True)
        (J_T_u,) = torch.autograd.grad(r, z, u, create_graph=True)
        pushes = []

        def S(p: Tensor) -> Tensor:
            (J_T_p,) = torch.autograd.grad(r, z, p, retain_graph=True)
            pushes.append(V(J_T_p))
            (S_p,) = torch.autograd.grad(J_T_u, u, pushes[-1], retain_graph=True)
            return S_p

        _, weights = gmres(S, -r.detach(), min(self.iterations, r.shape[1]), RTOL)
        move = torch.zeros_like(z)
        for weight, push in zip(weights.unbind(dim=1), pushes, strict=True):
            move = move + weight.reshape(-1, *(1,) * (move.ndim - 1)) * push
        return move

    def prepare(self, x_0: Tensor, r: Tensor) -> None:
        surface = self.constraint.surface
        if surface is None or surface.residual(x_0).shape[1] < r.shape[1]:
            raise ValueError(
                "CalibratedPPR is for equalities: it moves every draw onto the constraint, and so "
                f"would gather members on the boundary of {self.constraint!r}; use PPR."
            )
        self._ppr.choose(r.shape[1])
        if self.sigma_max < math.inf:
            if r.shape[1] > FEW:
                raise ValueError(
                    f"CalibratedPPR(sigma_max={self.sigma_max}) draws members until they come "
                    f"near the constraint, which few do with {r.shape[1]} residuals; leave "
                    f"sigma_max out, or state at most {FEW} residuals."
                )
            self._rehearse(x_0)

    def _rehearse(self, like: Tensor) -> None:
        """Finds the largest likelihood on unconditional samples."""
        noise = MemberNoise(
            2**32 - 1, range(PILOT), like.shape[1:], dtype=like.dtype, device=like.device
        )
        counted, self.denoiser = self.denoiser, Network(self.denoiser.denoiser)
        try:
            with calling([0] * PILOT, noise.device):
                s = self._start(like)
                self._highest = self.log_likelihood(self._free(noise, s), s).max().item()
        finally:
            self.denoiser = counted

    def _start(self, like: Tensor) -> Tensor:
        """The first time at which the constraint acts."""
        times = torch.linspace(1, 0, self.steps + 1, dtype=like.dtype, device=like.device)
        return next((t for t in times if self.noise_level(t) <= self.sigma_max), times[-1])

    def cost(self, residuals: int) -> tuple[int, int]:
        return 1, self.products + min(self.iterations, residuals)

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        last = copy(self._ppr)
        minimize = last.choose(residuals)
        if last.last_steps:
            minimize = replace(minimize, steps=last.last_steps)
        calls, search = self.cost(residuals), minimize.cost(residuals)
        times = torch.linspace(1, 0, self.steps + 1)[:-1]
        above = sum(self.noise_level(t) > self.sigma_max for t in times)
        tries = self.tries if above else 0
        forward = self.steps + max(0, tries - 1) * above + tries + search[0]
        backward = (self.steps - above) * calls[1] + tries * residuals + search[1]
        forward += 1 if self.readout == "denoise" else 0
        return (self.retries + 1) * forward, (self.retries + 1) * backward
