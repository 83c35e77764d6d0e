r"""Particles: each member weighs a few states by the constraint, level by level, and keeps one."""

__all__ = ["Particles", "Twist"]

import math
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ..linalg import eigh
from ..minimizers import GaussNewton, Minimizer
from ..minimizers.base import per_sample
from ..randomness import MemberNoise
from ..sampling import Problem
from .base import Last, Randn, Start
from .ppr import PPR

PAIRS = 4  # pairs of clean samples that tell the curvature of a residual
FLOOR = 1e-3  # the least variance of a residual, relative to that of white noise
FARTHEST = 10.0  # how many standard deviations of a step a particle is moved at most
EVEN = 1 / 2  # the share of particles that must matter, or they are resampled


class Twist(NamedTuple):
    r"""What the constraint says of states.

    Attributes:
        x_0: The denoiser's estimates, with shape (B, *).
        move: How far the constraint moves them, with shape (B, *).
        log_h: The log-likelihood :math:`\log h` of the constraint, but for a constant, with
            shape (B).
    """

    x_0: Tensor
    move: Tensor
    log_h: Tensor


@dataclass(frozen=True, repr=False, eq=False)
class Particles(PPR):
    r"""Samples several particles a member, weighs them by the constraint, and projects one.

    A member is a population of its own, of :math:`K` particles :math:`x_t^k`. At each noise level
    they are weighed by

    .. math::
        h(x_t) = \mathcal{N}\big(0 \mid \bar r, S\big) \approx p(r = 0 \mid x_t), \qquad
        S = J V J^\top + C, \qquad
        V = \frac{\sigma_t^2}{\alpha_t} \frac{\partial d_\theta}{\partial x_t},

    where :math:`J` is the residual's derivative at the estimate :math:`d_\theta(x_t)`. The
    curvature of the residual shifts its mean to :math:`\bar r` and adds :math:`C`. Both are taken
    from a few pairs :math:`d_\theta(x_t) \pm v^{1/2} \xi`, with :math:`v` the posterior variance
    of Gaussian data of the scale `spread`. A particle goes to :math:`x_s` by an unconditional
    step of second order (see :class:`Ancestral <feasibly.samplers.Ancestral>`), whose mean is
    moved by what :math:`-V J^\top S^{-1} \bar r` does to the estimate. Its weight is multiplied by

    .. math::
        \frac{h(x_s)}{h(x_t)} \, \frac{p(x_s \mid x_t)}{q(x_s \mid x_t)},

    with :math:`p` the unconditional step and :math:`q` the moved one. If few particles matter,
    they are resampled in proportion to their weights. At a low noise level one is kept, and goes
    on as in PPR. There, a renoised point estimate lacks a variance of that level only.

    With many particles samples follow the constrained distribution whatever :math:`h` is, but
    for the size of a step and for what lies below `level`. So modes get their weights. A few
    particles are enough where :math:`h` is good. Above `branch` a member has one particle, which
    is moved as the others are.

    The target is the prior restricted to :math:`\|r\| \leq \epsilon`, with
    :math:`\epsilon \to 0`, as for :class:`CalibratedPPR <feasibly.samplers.CalibratedPPR>`.

    References:
        | Practical and Asymptotically Exact Conditional Sampling in Diffusion Models (Wu et al.,
        | 2023), Algorithm 1, https://arxiv.org/abs/2306.17775, for the weights
        | DPM-Solver++ (Lu et al., 2022), https://arxiv.org/abs/2211.01095, for the step

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint, an equality. A weight takes a gradient for each residual.
        steps: The number of diffusion steps.
        spacing: Where the steps are; see :class:`Sampler`.
        repeats: The number of kernel applications in a step below `level`.
        particles: The number :math:`K` of particles of a member.
        branch: The noise level :math:`\sigma / \alpha` from which on there are particles.
        level: The noise level at which one of them is kept, in units of the data.
        spread: The standard deviation of the data.
        minimize: The minimizer of projections, below `level`.
        last: The minimizer of the projection at :math:`t = 0`; None for `minimize`.
        sigma_max: The highest noise level at which a projection is made, below `level`.
        eta: The share of fresh noise in a prediction; not 0.
        output: What to return; see :class:`Sampler`.
    """

    advice = (
        "allow the last projection more iterations, such as "
        "last=GaussNewton(steps=100, max_distance=None)"
    )

    _: KW_ONLY
    steps: int = 32
    spacing: str = "noise"
    repeats: int = 1
    particles: int = 8
    branch: float = math.inf
    level: float = 0.05
    spread: float = 1.0
    minimize: Minimizer = GaussNewton()
    last: Minimizer | None = GaussNewton(steps=16)

    def begin(self, noise: MemberNoise) -> Start:
        """Goes down to `level`, and keeps one particle of each member."""
        x_t, times, memory, _ = super().begin(noise)
        branch, kept = self._stages()
        everyone = torch.arange(len(x_t), device=x_t.device)
        streams = [noise.again(everyone, k + 1) for k in range(self.particles)]
        x, last = x_t[None], None  # (1, B, *), and (K, B, *) from `branch` on
        log_w = log_h = x.new_zeros(x.shape[:2], dtype=torch.float64)
        for step, (t, s) in enumerate(pairwise(times[: kept + 1])):
            if step == branch:
                x, log_w, log_h = (torch.cat([v] * self.particles) for v in (x, log_w, log_h))
                last = last and Last(torch.cat([last.x_0] * self.particles), last.t)
            twists = [self.twist(one, t, stream) for one, stream in zip(x, streams, strict=False)]
            x_0, move, now = (torch.stack(part) for part in zip(*twists, strict=True))
            log_w = log_w + now - log_h
            chosen, log_w = resampled(log_w, uniform(noise))
            x, x_0, move, log_h = (pick(part, chosen) for part in (x, x_0, move, now))
            last = last and Last(pick(last.x_0, chosen), last.t)
            ahead = self.extrapolate(x_0, t, s, last)
            moved = [
                self.moved(*parts, t, s, stream)
                for *parts, stream in zip(x, ahead, move, streams, strict=False)
            ]
            x, ratio = (torch.stack(part) for part in zip(*moved, strict=True))
            log_w, last = log_w + ratio, Last(x_0, t)
        if len(x) > 1:
            twists = [self.twist(x[k], times[kept], stream) for k, stream in enumerate(streams)]
            log_w = log_w + torch.stack([twist.log_h for twist in twists]) - log_h
            x = pick(x, choose(log_w, uniform(noise))[None])
        return Start(x[0], times[kept:], memory)

    @torch.enable_grad()
    def twist(self, x_t: Tensor, t: Tensor, randn: Randn) -> Twist:
        """Returns what the constraint says of states, with shape (B, *)."""
        alpha_t, sigma_t = self.denoiser.schedule(t)
        x_t = x_t.detach().requires_grad_()
        mean = self.denoiser(x_t, t)
        z = mean.detach().requires_grad_()
        r = self.constraint.residual(z)
        rows = [torch.autograd.grad(c.sum(), z, retain_graph=True)[0] for c in r.unbind(dim=1)]
        images = [torch.autograd.grad(mean, x_t, row, retain_graph=True)[0] for row in rows]
        J, VJ = (torch.stack(v, dim=1).flatten(start_dim=2).double() for v in (rows, images))
        VJ = (sigma_t**2 / alpha_t).double() * VJ
        mean, r = mean.detach(), r.detach().double()
        shift, C = self._curvature(mean, r, (sigma_t / alpha_t).item(), randn)
        S = J @ VJ.mT
        values, vectors = eigh((S + S.mT) / 2 + C)
        least = FLOOR * (sigma_t / alpha_t).double() ** 2 * J.square().sum(dim=2).mean(dim=1)
        values = torch.maximum(values, least[:, None].clamp_min(torch.finfo(torch.float64).tiny))
        p = (vectors.mT @ (r + shift)[..., None]).squeeze(-1)
        log_h = -(p.square() / values + values.log()).sum(dim=1) / 2
        move = -(VJ.mT @ (vectors @ (p / values)[..., None])).reshape(mean.shape)
        # what is not finite has no weight, and is not moved
        return Twist(mean, move.to(mean).nan_to_num(0, 0, 0), log_h.nan_to_num(-math.inf))

    def _curvature(
        self, mean: Tensor, r: Tensor, sigma: float, randn: Randn
    ) -> tuple[Tensor, Tensor]:
        """Returns how the curvature of the residual shifts its mean, with shape (B, m), and what
        it adds to its covariance, with shape (B, m, m). Both are zero for a linear residual."""
        v = 1 / (1 / sigma**2 + 1 / self.spread**2)
        bends = []
        with torch.no_grad():
            for _ in range(0 if self.constraint.linear else PAIRS):
                step = math.sqrt(v) * randn(mean)
                above, below = map(self.constraint.residual, (mean + step, mean - step))
                bends.append((above + below).double() / 2 - r)  # the slope cancels
        if not bends:
            return torch.zeros_like(r), r.new_zeros((*r.shape, r.shape[1]))
        bend = torch.stack(bends, dim=2)
        return bend.mean(dim=2), bend @ bend.mT / PAIRS

    def moved(
        self, x_t: Tensor, x_0: Tensor, move: Tensor, t: Tensor, s: Tensor, randn: Randn
    ) -> tuple[Tensor, Tensor]:
        r"""Samples :math:`x_s \sim q(x_s \mid x_t)`, and returns it with
        :math:`\log p(x_s \mid x_t) / q(x_s \mid x_t)`."""
        mean, std = self.transition(x_t, x_0, t, s)
        step = (self.transition(x_t, x_0 + move, t, s)[0] - mean) / std
        size = step.flatten(start_dim=1).norm(dim=1)
        step = step * per_sample((FARTHEST / size).clamp_max(1), step)
        noise = randn(x_t)
        gain = (noise.double().square() - (noise + step).double().square()).flatten(start_dim=1)
        return mean + std * (step + noise), gain.sum(dim=1) / 2

    def _stages(self) -> tuple[int, int]:
        """The number of steps above `branch`, and of those above `level`; the last step is below
        both."""
        levels = [self.noise_level(t) for t in self.times()[:-2]]
        return sum(v > max(self.branch, self.level) for v in levels), sum(
            v > self.level for v in levels
        )

    def prepare(self, problem: Problem) -> Self:
        equalities = self.constraint.equalities
        known = 0 if equalities is None else equalities.residual(problem.x_0).shape[1]
        if known < problem.residuals:
            raise ValueError(
                f"{type(self).__name__} is for equalities: it weighs particles by a density on "
                f"the constraint. {self.constraint!r} has inequalities; use PPR."
            )
        return self

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "particles")
        for name in ("branch", "level", "spread"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise ValueError(
                    f"{type(self).__name__}({name}=...) must be a positive number, got {value!r}."
                )
        if self.eta == 0:
            raise ValueError(
                f"{type(self).__name__} needs fresh noise, which tells particles apart; set "
                "`eta` above 0."
            )

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        branch, kept = self._stages()
        levels = [self.noise_level(s) for s in self.times()[kept + 1 :]]
        searches = [self.minimize] * sum(level <= self.sigma_max for level in levels)
        searches[-1] = self.last or self.minimize
        weighed = branch + (self.particles * (kept + 1 - branch) if kept > branch else 0)
        costs = [search.cost(residuals) for search in searches]
        forward, backward = (self.repeats * sum(c[i] for c in costs) for i in (0, 1))
        return weighed + len(levels) + forward, weighed * residuals + backward


def uniform(noise: MemberNoise) -> Tensor:
    """Returns a random number in [0, 1] for each member, with shape (B)."""
    return torch.special.ndtr(noise().flatten(start_dim=1)[:, 0].double())


def shares(log_w: Tensor) -> Tensor:
    """Returns weights that add up to one for each member, with shape (K, B); equal ones for a
    member all of whose weights are zero."""
    none = ~log_w.isfinite().any(dim=0)
    return torch.where(none, 0.0, log_w).softmax(dim=0)


def resampled(log_w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    r"""Resamples the particles of members of which few matter, by systematic resampling.

    Arguments:
        log_w: The logarithms of the weights, with shape (K, B).
        u: A random number in [0, 1] for each member, with shape (B).

    Returns:
        The chosen particles, with shape (K, B); the weights after it, likewise; and how many
        particles mattered, :math:`1 / \sum_k w_k^2`, with shape (B).
    """
    K = len(log_w)
    w = shares(log_w)
    effective = 1 / w.square().sum(dim=0)
    own = torch.arange(K, device=w.device)[:, None].expand_as(w)
    points = (own + u) / K
    chosen = torch.searchsorted(w.T.cumsum(dim=1).contiguous(), points.T.contiguous()).T
    again = effective < EVEN * K
    chosen = torch.where(again, chosen.clamp_max(K - 1), own)
    return chosen, torch.where(again, 0.0, log_w)


def choose(log_w: Tensor, u: Tensor) -> Tensor:
    """Returns one particle of each member, in proportion to the weights, with shape (B)."""
    below = shares(log_w).cumsum(dim=0) < u
    return below.sum(dim=0).clamp_max(len(log_w) - 1)


def pick(x: Tensor, chosen: Tensor) -> Tensor:
    """Returns the chosen particles of each member: `x` has shape (K, B, *), `chosen` (J, B)."""
    return x[chosen, torch.arange(x.shape[1], device=x.device)]
