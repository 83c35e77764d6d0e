r"""Particles: samples are drawn from weighted states, which a population shares."""

__all__ = ["ALONE", "Levels", "Particles", "Twist"]

import itertools
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..constraints.base import Constraint, Intervals
from ..constraints.decoded import is_decoded
from ..members import among
from ..minimizers import GaussNewton, Minimizer
from ..minimizers.base import per_sample
from ..randomness import MemberNoise
from ..result import RELIABLE, Weights
from ..sampling import finite, passed
from .ancestral import Ancestral, Last
from .answers import answers, same
from .base import Randn, Sampler, Start, Step, bisected
from .calibrated import CalibratedPPR
from .normals import inside, positive
from .ppr import PPR
from .principal import Principal, given, principal
from .slopes import LARGE, Slopes, blocks, diagonal, followed, mapped, products, rows
from .truncated import TruncatedPPR
from .weights import effective_size, log_mean, shares, smoothed, systematic

MOST = 12  # weighted values, unless there are more equalities: those nearest to a bound
HEAVY = 1.5  # degrees of freedom of a value that varies by curvature alone
FLOOR = 1e-3  # the least variance of a value, relative to that of white noise
RIDGE = 0.05  # the same for a move into intervals, several of which may have one direction
FARTHEST = 10.0  # how many standard deviations of a step a particle is moved at most
ITERATIONS = 32  # of the solver of posterior samples, under noise
PAIRS, PAIRS_DECODED = 16, 4  # of samples that tell a residual's curvature; a decoder is dear
EVEN = 1 / 2  # the share of a trajectory's particles that must matter, or they are resampled
ROUNDS = 8  # of the power method
FEWEST = 25  # trajectories of a population: of fewer, k-hat says little
DOUBLINGS = 3  # of the particles, at most
ALONE = 6  # how many times as many particles a sample with a target of its own has


class Levels(NamedTuple):
    r"""The noise levels :math:`\sigma / \alpha` of particles.

    Attributes:
        begun: From here on there are several particles in a trajectory. Above, the constraint
            says nothing.
        weighted: From here on they are weighted and moved.
        drawn: Here samples are drawn from them.
        spread: The standard deviation of the data.
        every: How many steps there are to a gradient of each value.
    """

    begun: float = math.inf
    weighted: float = math.inf
    drawn: float = 0.05
    spread: float = 1.0
    every: int = 1


class Twist(NamedTuple):
    r"""What the constraint says of states.

    Attributes:
        x_0: The denoiser's estimates, with shape (B, *).
        move: How far the constraint moves them, with shape (B, *).
        log_h: The log-likelihood :math:`\log h` of the constraint, but for a constant, with
            shape (B).
        values: The values as normal steps take them; empty without such steps.
        slopes: The derivatives of the values; None where the constraint says nothing.
    """

    x_0: Tensor
    move: Tensor
    log_h: Tensor
    values: tuple[Tensor, ...] = ()
    slopes: Slopes | None = None

    def only_estimates(self) -> Self:
        """Returns it without moves and derivatives, which may be large."""
        return self._replace(move=self.move[:, :0], values=(), slopes=None)


class Seen(NamedTuple):
    r"""What the denoiser and the constraint tell of states.

    Attributes:
        x_0: The denoiser's estimates, with shape (B, *).
        good: Which states are finite, with shape (B).
        values: The values' means over the noise of curvature, their bounds, and the variances of
            their errors; None, as is all below, where the constraint says nothing.
        curved: Their covariance by curvature alone, with shape (B, m, m).
        J: Their derivatives, with shape (B, m, D).
        VJ: The products of these with the covariance of a sample, likewise; None if they follow
            from the step before.
        kept: Which values they are, with shape (B, m); None for all.
    """

    x_0: Tensor
    good: Tensor
    values: Intervals | None = None
    curved: Tensor | None = None
    J: Tensor | None = None
    VJ: Tensor | None = None
    kept: Tensor | None = None

    @property
    def size(self) -> int:
        """The number of elements of the derivatives, or of the estimates without them."""
        return self.x_0.numel() if self.J is None else self.J.numel()


OF_UNIT_DATA = Levels()


class Walk(NamedTuple):
    """What all particles of a population have in common.

    Attributes:
        times: The times of all steps, from 1 to 0.
        renews: Which of the steps that begin at these times take gradients.
        randn: The noise.
        around: The noises that tell the curvature, each with shape (1, *).
        of: Whose target and conditions each trajectory has, with shape (B).
        count: The number of samples.
    """

    times: Tensor
    renews: Sequence[bool]
    randn: Randn
    around: Sequence[Tensor]
    of: Tensor
    count: int


class Cloud(NamedTuple):
    """The particles of a population before a step: K in each of B trajectories.

    Attributes:
        x: The states, with shape (K B, *): the first particles of all trajectories, and so on.
        log_w: The logarithms of their weights, with shape (K, B).
        log_h: Those of the likelihoods that the weights contain, likewise.
        last: The step before.
        slopes: The derivatives of the values there, where this step takes no gradients.
    """

    x: Tensor
    log_w: Tensor
    log_h: Tensor
    last: Last | None = None
    slopes: Slopes | None = None


class Weighted(NamedTuple):
    """Particles, and what the constraint says of them.

    Attributes:
        x: The states, with shape (K B, *).
        log_w: The logarithms of their weights, with shape (K, B).
        twist: What the constraint says.
        last: The step before.
    """

    x: Tensor
    log_w: Tensor
    twist: Twist
    last: Last | None


@dataclass(frozen=True, repr=False, eq=False)
class Particles(Sampler):
    r"""Draws samples from a population of weighted particles, and projects them.

    A population of :math:`B` samples has :math:`B` trajectories of :math:`K` particles
    :math:`x_t^k`. At each noise level they are weighted by

    .. math::
        h(x_t) = \mathcal{N}\big(0 \mid \bar r, S\big) \approx p(r = 0 \mid x_t), \qquad
        S = J V J^\top + C, \qquad
        V = \frac{\sigma_t^2}{\alpha_t} \frac{\partial d_\theta}{\partial x_t},

    where :math:`J` is the residual's derivative at the estimate :math:`d_\theta(x_t)`. The
    curvature of the residual shifts its mean to :math:`\bar r` and adds :math:`C`. Both are taken
    from a few pairs :math:`d_\theta(x_t) \pm v^{1/2} \xi`, with :math:`v` the posterior variance
    of Gaussian data of the standard deviation `levels.spread`. For equalities :math:`h` is
    Student's density instead, with :math:`1.5 / \kappa^2` degrees of freedom, where
    :math:`\kappa` is the share of :math:`C` in :math:`S`. A particle goes to :math:`x_s` by an
    unconditional step of second order (see :class:`Ancestral <feasibly.samplers.Ancestral>`),
    whose mean is moved by what :math:`-V J^\top S^{-1} \bar r` does to the estimate. Its weight is
    multiplied by

    .. math::
        \frac{h(x_s)}{h(x_t)} \, \frac{p(x_s \mid x_t)}{q(x_s \mid x_t)},

    with :math:`p` the unconditional step and :math:`q` the moved one. The particles of a
    trajectory are resampled if their effective sample size falls below a half.

    With `spacing="noise"` half of the steps are uniform in :math:`\log \sigma / \alpha`. The other
    half have a Cauchy distribution of scale one around the logarithm of `levels.spread`. Modes
    separate near that level, so that longer steps bias their weights.

    Once, at the noise level `levels.drawn`, the samples are drawn from all particles of the
    population, by Pareto-smoothed weights. So a mode has its weight, although few trajectories
    lead to it. The diagnostic k-hat of the mean weights of trajectories tells whether this can be
    trusted. If it is above 0.7, or if their effective sample size is too small for `error`, each
    trajectory gets as many particles again, up to three times. If k-hat is still too large,
    weights are not shared: each trajectory draws one of its own particles, and the run warns.

    A gradient through the denoiser is taken for each value. With `levels.every` = 2 only every
    second step takes them. Between, :math:`J V` follows from the step before, as for normal data:
    a value's variance :math:`v` becomes :math:`v / (1 + \gamma v)`, where :math:`\gamma` is the
    growth of :math:`\alpha^2 / \sigma^2`.

    For an inequality :math:`l \leq g(x) \leq u`, :math:`h` is the probability, given the
    equalities, and values are moved to their mean in the interval. At most 12 values are
    weighted: all equalities, and the inequalities nearest to their bounds. At the end, a sample
    inside stays as it is. For that, `levels.drawn` should be 0, so that samples are drawn before
    the last step.

    An observation with noise is a value whose errors add their variance to :math:`S`. Then the
    last step takes a posterior sample, as in
    :class:`CalibratedPPR <feasibly.samplers.CalibratedPPR>`. The projection is onto what holds
    exactly.

    Samples with targets or conditions of their own share nothing. Each has six times as many
    particles, and draws one.

    A step that only moves its mean leaves weights that vary, the more so the more values there
    are. With `normal` its variance is that given the constraint too, for normal values; see
    :mod:`feasibly.samplers.principal`. This suits linear values, and many.

    The target is the prior restricted to :math:`\|r\| \leq \epsilon`, with
    :math:`\epsilon \to 0`, as for :class:`CalibratedPPR <feasibly.samplers.CalibratedPPR>`.

    References:
        | Practical and Asymptotically Exact Conditional Sampling in Diffusion Models (Wu et al.,
        | 2023), Algorithm 1, https://arxiv.org/abs/2306.17775, for the weights
        | DPM-Solver++ (Lu et al., 2022), https://arxiv.org/abs/2211.01095, for the step
        | Pareto Smoothed Importance Sampling (Vehtari et al., 2024)
        | https://arxiv.org/abs/1507.02646

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint. A weight takes a gradient for each residual and for each
            value of an inequality.
        steps: The number of diffusion steps.
        spacing: Where the steps are: `noise` as above, or `time`; see :class:`Sampler`.
        particles: The number :math:`K` of particles that a trajectory begins with.
        error: The standard error that weights may add to the weight of a mode, in one
            population. It is never asked to be less than that of as many independent samples.
        levels: The noise levels, which depend on the data.
        normal: Whether the values are taken as normal in a step, so that the constraint changes
            its variance and not only its mean. It applies where all are equalities or have
            errors.
        minimize: The minimizer of the last projection.
        eta: The share of fresh noise in a prediction; not 0.
        output: What to return; see :class:`Sampler`.
        batch: How many states may go through the denoiser at a time; None for all. A run sets it.
    """

    space = "x_t"
    renoises = True
    takes_noise = True
    differentiates = True
    shares = True

    constraint: Constraint
    _: KW_ONLY
    steps: int = 48
    spacing: str = "noise"
    particles: int = 2
    error: float = 0.025
    levels: Levels = OF_UNIT_DATA
    normal: bool = False
    minimize: Minimizer = GaussNewton(steps=50, max_distance=None)
    output: str = "projected"
    batch: int | None = field(default=None, repr=False)

    def begin(self, noise: MemberNoise) -> Start:
        """Goes down to the last step with a population, and draws its samples."""
        n, times = len(noise.members), self.times(noise.dtype, noise.device)
        shared = not self.constraint.differs and self._is_alike(noise)
        B = max(n, FEWEST) if shared else n
        walk = self._walk(times, noise, torch.arange(B, device=noise.device) % n)
        begun, drawn = self._steps()
        nothing = torch.zeros((1, B), dtype=torch.float64, device=noise.device)
        x = self.denoiser.begin(walk.randn(times.new_empty((B, *noise.shape))), times[0])
        free = self.weigh(Cloud(x, nothing, nothing), walk, 0, begun)
        pool = self._several(free, walk, self.particles * (1 if shared else ALONE))
        found, smooth, before = None, None, math.nan
        for left in reversed(range(DOUBLINGS + 1) if shared else ()):
            log_z = log_mean(pool.log_w)
            smooth, k_hat = smoothed(log_z)
            ess = effective_size(smooth).item()
            enough = k_hat <= RELIABLE and ess >= min(n / 2, 1 / (2 * self.error) ** 2)
            if enough or not left or 1 <= before <= k_hat:
                smooth = smooth - log_z if k_hat <= RELIABLE else None
                error = math.sqrt(max(0.0, 1 / ess - 1 / B))
                about = len(pool.log_w), k_hat, min(ess, n), log_mean(log_z).item(), error
                found = Weights(list(noise.members), *about)
                break
            before = k_hat
            pool = mapped(_joined, pool, self._several(free, walk, len(pool.log_w)))
        walk = walk._replace(of=walk.of[:n])
        cloud = self._draw(pool, smooth, walk)
        return Start(
            self.weigh(cloud, walk, drawn, len(times) - 2).x, times[-2:], population=found
        )

    def spaced(self, highest: Tensor, lowest: Tensor) -> Tensor:
        centre = math.log(self.levels.spread)
        first, last = ((end - centre).atan() for end in (highest, lowest))

        def behind(level: Tensor) -> Tensor:
            """The share of the steps at higher noise, which is negative so that it increases."""
            even = (level - highest) / (lowest - highest)
            near = ((level - centre).atan() - first) / (last - first)
            return -(even + near) / 2

        share = torch.linspace(0, 1, self.steps + 1, dtype=highest.dtype).to(highest)
        return bisected(behind, -share, lowest.expand_as(share), highest.expand_as(share))

    def weigh(self, cloud: Cloud, walk: Walk, first: int, last: int) -> Cloud:
        """Takes particles from one time to another, by their numbers."""
        for k in range(first, last):
            seen = self.weighted(cloud, walk, k)
            if len(seen.log_w) > 1:
                seen = _resampled(seen, _uniform(walk.randn, seen.log_w[0]))
            cloud = self.moved(seen, walk, k)
        return cloud

    def weighted(self, cloud: Cloud, walk: Walk, k: int) -> Weighted:
        """Weighs particles by the constraint, at a time given by its number."""
        x, log_w, log_h, last, slopes = cloud
        twist = self.twist(x, walk.times[k], walk.around, slopes, of=walk.of.repeat(len(log_w)))
        return Weighted(x, log_w + twist.log_h.view_as(log_w) - log_h, twist, last)

    def moved(self, seen: Weighted, walk: Walk, k: int) -> Cloud:
        """Takes weighted particles to the next time, given the number of theirs."""
        (x, log_w, twist, last), (t, s) = seen, walk.times[k : k + 2]
        prior = Ancestral(self.denoiser, spacing=self.spacing, eta=self.eta)
        mean, std = prior.second(x, twist.x_0, t, s, last)
        last = Last(twist.x_0, self.transition(x, twist.x_0, t, s)[0], t)
        shift = self.reach(t, s) * twist.move
        x, ratio = self._proposed(mean, std, shift, t, s, walk.randn, twist.values)
        passed(x[: walk.count], twist.x_0[: walk.count], s)
        slopes = None if walk.renews[k + 1] else twist.slopes
        log_h = twist.log_h.view_as(log_w)
        return Cloud(x, log_w + ratio.view_as(log_w), log_h, last, slopes)

    def _several(self, free: Cloud, walk: Walk, K: int) -> Weighted:
        """Takes K particles of each trajectory down to where samples are drawn."""
        begun, drawn = self._steps()
        copies = torch.arange(len(free.x), device=free.x.device).repeat(K)
        x, last = mapped(partial(_taken, of=copies), (free.x, free.last))
        cloud = Cloud(x, free.log_w.expand(K, -1), free.log_h.expand(K, -1), last)
        seen = self.weighted(self.weigh(cloud, walk, begun, drawn), walk, drawn)
        return seen._replace(twist=seen.twist.only_estimates())

    def _draw(self, pool: Weighted, smooth: Tensor | None, walk: Walk) -> Cloud:
        """Draws a sample for each of `walk.of`: of all particles, given what smoothing adds to the
        logarithms of the mean weights of trajectories; else each of its own trajectory."""
        n, B = len(walk.of), pool.log_w.shape[1]
        if smooth is None:
            own = pool.log_w[:, :n]
            chosen = systematic(shares(own), _uniform(walk.randn, own[0]), 1)[0] * B
            chosen = chosen + torch.arange(n, device=chosen.device)
        else:
            w = shares((pool.log_w + smooth).flatten())
            order = _along(pool.twist.x_0.flatten(start_dim=1), w, walk.randn).argsort()
            chosen = order[systematic(w[order, None], _uniform(walk.randn, w[:1]), n)[:, 0]]
            chosen = chosen[walk.randn(w[:n]).argsort()]  # so that their order means nothing
        x, _, twist, last = _at(pool, chosen)
        log_h = twist.log_h[None]
        return Cloud(x, torch.zeros_like(log_h), log_h, last)

    def _walk(self, times: Tensor, noise: MemberNoise, of: Tensor) -> Walk:
        """Returns what the particles of a population have in common."""
        randn, count = noise.shared(), 0
        if not self.constraint.linear:
            count = PAIRS_DECODED if is_decoded(self.constraint) else PAIRS
        around = [randn(times.new_empty((1, *noise.shape))) for _ in range(count)]
        return Walk(times, self._renews(), randn, around, of, len(noise.members))

    def _renews(self) -> list[bool]:
        """Returns which of the steps that begin at the times of :meth:`times` take gradients."""
        levels = list(map(self.noise_level, self.times()))
        first = sum(level > self.levels.weighted for level in levels)
        some = self._steps()  # there are no slopes of the step before
        return [
            k >= first and ((k - first) % self.levels.every == 0 or k in some)
            for k in range(len(levels))
        ]

    def _steps(self) -> tuple[int, int]:
        """The numbers of the time at which there begin to be several particles, and of that at
        which samples are drawn."""
        *levels, _ = map(self.noise_level, self.times())
        begun = sum(level > self.levels.begun for level in levels[:-1])
        drawn = sum(level > self.levels.drawn for level in levels[1:])
        return begun, max(begun, drawn)

    def _is_alike(self, noise: MemberNoise) -> bool:
        """Whether samples have the same conditions and targets."""
        x_0, r = answers(self, noise, batch=self.batch)
        return all(bool(one.all()) for one in same(x_0, r, x_0[:1], r[:1]))

    def twist(
        self,
        x_t: Tensor,
        t: Tensor,
        around: Sequence[Tensor] = (),
        before: Slopes | None = None,
        *,
        of: Tensor | None = None,
    ) -> Twist:
        """Returns what the constraint says of states; above `levels.weighted` nothing.

        Arguments:
            x_t: The states, with shape (B, *).
            t: Their time.
            around: Noises that tell the curvature, each with shape (1, *); none for a linear
                constraint.
            before: The slopes of the step before, of which those at `t` follow; None to take
                gradients through the denoiser.
            of: Which rows of the batch have the states' targets and conditions, with shape (B);
                None for each its own.
        """
        of = torch.arange(len(x_t), device=x_t.device) if of is None else of
        parts = []
        for some in blocks(len(x_t), self.batch or len(x_t)):
            last = before and before.at(some)
            with among(of[some]):
                parts.append((self._seen(x_t[some], t, around, last), last))
        # arithmetic on all at once is faster, unless it is large: then in the denoiser's batches
        if sum(seen.size for seen, _ in parts) <= LARGE:
            parts = [together(parts)]
        return together([self._told(seen, t, last) for seen, last in parts])

    @torch.enable_grad()
    def _seen(
        self,
        x_t: Tensor,
        t: Tensor,
        around: Sequence[Tensor],
        before: Slopes | None,
    ) -> Seen:
        """Returns what the denoiser and the constraint tell of states; see :meth:`twist`."""
        good = finite(x_t)
        x_t = torch.where(per_sample(good, x_t), x_t.detach(), 0.0).requires_grad_()
        weighted = self.noise_level(t) <= self.levels.weighted
        # without a need for it, no graph is kept from this step to the next
        with torch.set_grad_enabled(weighted and before is None):
            mean = self.denoiser(x_t, t)
        x_0 = mean.detach()
        if not weighted:
            return Seen(x_0, good)
        alpha_t, sigma_t = self.denoiser.schedule(t)
        z = mean.detach().requires_grad_()
        g = self.constraint.intervals(z)
        above, below = self._around(x_0, (sigma_t / alpha_t).item(), around)
        kept = None if before is None else before.kept
        if before is None and len(above) and g.values.shape[1] > MOST:
            kept = urgent(g, (above - below).square().mean(dim=0).sqrt() / 2)
        if kept is not None:
            g = Intervals(*(part.gather(1, kept) for part in g if part is not None))
            above, below = (v.gather(2, kept.expand(len(v), *kept.shape)) for v in (above, below))
        J = self._derivatives(g.values, z)
        VJ = None if before is not None else products(J, mean, x_t, sigma_t**2 / alpha_t)
        assert g.variance is not None
        values = Intervals(*(part.detach().double() for part in g if part is not None))
        centre = values.values
        curved = torch.zeros_like(centre).diag_embed()
        if len(above):
            bend = (above + below).double() / 2 - centre  # the slope cancels
            shift = bend.mean(dim=0)
            centre, bend = centre + shift, bend - shift
            curved = torch.einsum("pbi,pbj->bij", bend, bend) / (len(bend) - 1)
        return Seen(x_0, good, values._replace(values=centre), curved, J, VJ, kept)

    def _derivatives(self, values: Tensor, z: Tensor) -> Tensor:
        """Returns the derivatives of values at samples, with shape (B, m, D); of linear ones once
        for all."""
        if not self.constraint.linear or self.constraint.differs:
            return rows(values, z)
        one = z[:1].detach().requires_grad_()
        return rows(self.constraint.intervals(one).values, one).expand(len(z), -1, -1)

    @torch.no_grad()
    def _told(self, seen: Seen, t: Tensor, before: Slopes | None) -> Twist:
        """Returns what the constraint says of states, given what is seen of them; see
        :meth:`twist`."""
        x_0, good, values, curved, J, VJ, kept = seen
        if values is None or curved is None or J is None:
            log_h = torch.where(good, 0.0, -math.inf).double()
            return Twist(x_0, torch.zeros_like(x_0), log_h)
        sigma = self.noise_level(t)
        if VJ is None:
            assert before is not None
            same = self.constraint.linear and not self.constraint.differs
            VJ = followed(before, None if same else J, sigma)
        now = Slopes(J, VJ, sigma, kept=kept)
        centre, lower, upper, variance = values
        assert variance is not None
        noise = torch.diag_embed(variance)
        if self.normal and bool((lower == upper).all()):
            frame = diagonal(J, VJ)
            normal = principal(frame, VJ, centre - lower, noise + curved, FLOOR * sigma**2)
            log_h = torch.where(good, normal.log_h, -math.inf)
            return Twist(x_0, torch.zeros_like(x_0), log_h, normal, now._replace(frame=frame))
        S = J @ VJ.mT + noise
        S = (S + S.mT) / 2
        # in units in which a value's slope is one
        # or what a value's own noise makes of it, if it is nearly flat
        unit = (J.square().sum(dim=2) + variance / sigma**2).sqrt()
        unit = torch.where(unit > 0, unit, 1.0)
        centre, lower, upper = (v / unit for v in (centre, lower, upper))
        S, curved = (v / unit[:, None] / unit[..., None] for v in (S + curved, curved))
        firm = positive(S, FLOOR * sigma**2)
        freedom = None if self.constraint.linear else tails(firm, curved)
        found = inside(centre, firm, lower, upper, freedom)
        log_h = found.log_h - torch.where(lower == upper, unit, 1.0).log().sum(dim=1)
        if not (lower == upper).all():
            firm = positive(S, RIDGE * sigma**2)
        gap = torch.linalg.solve(firm, (found.mean - centre)[..., None]) / unit[..., None]
        move = (VJ.mT @ (found.pull[:, None, None] * gap)).reshape(x_0.shape).to(x_0)
        # what is not finite has no weight, and is not moved
        log_h = torch.where(good, log_h.nan_to_num(-math.inf), -math.inf)
        return Twist(x_0, move.nan_to_num(0, 0, 0), log_h, slopes=now)

    @torch.no_grad()
    def _around(self, mean: Tensor, sigma: float, around: Sequence[Tensor]) -> Tensor:
        """Returns the constrained values of pairs of samples around the estimates, on opposite
        sides, with shape (2, P, B, m); no pairs without noises."""
        if not len(around):
            return mean.new_empty((2, 0))
        std = 1 / math.sqrt(1 / sigma**2 + 1 / self.levels.spread**2)
        values = [
            torch.stack([self.constraint.intervals(mean + sign * std * n).values for n in around])
            for sign in (1, -1)
        ]
        return torch.stack(values)

    def _proposed(
        self,
        mean: Tensor,
        std: Tensor,
        shift: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn,
        values: Sequence[Tensor] = (),
    ) -> tuple[Tensor, Tensor]:
        r"""Samples :math:`x_s \sim q(x_s \mid x_t)`, and returns it with
        :math:`\log p(x_s \mid x_t) / q(x_s \mid x_t)`, given the mean and the standard deviation
        of :math:`p`."""
        if values:
            (alpha_t, sigma_t), (alpha_s, sigma_s) = map(self.denoiser.schedule, (t, s))
            gain = (alpha_s / sigma_s) ** 2 - (alpha_t / sigma_t) ** 2
            return given(Principal(*values), mean, std, gain, alpha_s / sigma_s**2, randn)
        step = shift / std
        size = step.flatten(start_dim=1).norm(dim=1)
        step = step * per_sample((FARTHEST / size).clamp_max(1), step)
        noise = randn(mean)
        gain = (noise.double().square() - (noise + step).double().square()).flatten(start_dim=1)
        return mean + std * (step + noise), gain.sum(dim=1) / 2

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        found, drawn = [], []
        for some in torch.arange(len(x_t), device=x_t.device).split(self.batch or len(x_t)):
            with among(some):
                found.append(self._last(x_t[some], t, s, _part(randn, x_t, some, drawn)))
        return Step(*together(found))

    def _last(self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn) -> tuple[Tensor, Tensor]:
        """Takes the last step: `begin` takes the others. Returns states and samples."""
        exact = self.constraint.exact
        if self.constraint.noisy is None:
            x_0 = self.denoiser(x_t, t)
        else:  # a projection would meet what has errors
            x_0 = self._calibrated().posterior(x_t, t, randn)
        x_s = self.predict(x_t, x_0, t, s, randn)
        if exact is None:
            return x_s, x_0
        return self._ppr(exact).kernel(x_s, s, self.noise_level(t), randn)[:2]

    def _calibrated(self) -> CalibratedPPR:
        """Returns the sampler of the last step's posterior samples."""
        return CalibratedPPR(self.denoiser, self.constraint, iterations=ITERATIONS)

    def _ppr(self, exact: Constraint) -> PPR:
        """Returns the sampler whose kernel projects the last state."""
        kind = TruncatedPPR if exact.equalities is None else PPR
        return kind(self.denoiser, exact, minimize=self.minimize)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "particles")
        if not isinstance(self.error, int | float) or not self.error > 0:
            raise ValueError(
                f"{type(self).__name__}(error=...) must be a positive number, got {self.error!r}."
            )
        if not self.levels.spread > 0:
            raise ValueError(
                f"{type(self).__name__}(levels={self.levels!r}): `spread`, the standard deviation "
                "of the data, must be positive."
            )
        if not self.levels.weighted > self.levels.drawn >= 0 or self.levels.every < 1:
            raise ValueError(
                f"{type(self).__name__}(levels={self.levels!r}) never weighs its particles; "
                "`weighted` must be above `drawn`, and `every` at least 1."
            )
        if self.eta == 0:
            raise ValueError(
                f"{type(self).__name__} needs fresh noise, which tells particles apart; set "
                "`eta` above 0."
            )

    def _gradients(self, residuals: int) -> int:
        """The most gradients of a weight."""
        inside = self.constraint.equalities is None and self.constraint.noisy is None
        return min(residuals, MOST) if inside else residuals

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        """As :meth:`Sampler.budget`, if particles are doubled as often as they may be."""
        return self._cost(residuals, 2**DOUBLINGS)

    def expected(self, residuals: int = 1) -> tuple[float, float]:
        return self._cost(residuals, 1)

    def _cost(self, residuals: int, times: int) -> tuple[int, int]:
        """The forward and backward evaluations, with so many times the particles."""
        K = self.particles * (ALONE if self.constraint.differs else times)
        (begun, drawn), gradients = self._steps(), self._gradients(residuals)
        forward, backward = 2 + (self.output == "denoised"), 0
        renews = self._renews()[:-1]
        ends = drawn == len(renews) - 1  # where samples are drawn before the last step
        for k, anew in enumerate(renews if ends else renews[:-1]):
            several = K if begun <= k < drawn else K + (not ends) if k == drawn else 1
            forward, backward = forward + several, backward + several * gradients * anew
        if self.constraint.noisy is not None:
            backward += self._calibrated().cost(residuals)[1]
        if self.constraint.exact is not None:
            last = self.minimize.cost(residuals) if times > 1 else (1, 1)
            forward, backward = forward + last[0], backward + last[1]
        return forward, backward


def _resampled(seen: Weighted, u: Tensor) -> Weighted:
    """Resamples the particles of those trajectories in which few matter.

    Arguments:
        seen: The particles.
        u: A number in [0, 1) for each trajectory, with shape (B).
    """
    K, B = seen.log_w.shape
    again = effective_size(seen.log_w) < EVEN * K
    if not again.any():
        return seen
    own = torch.arange(K, device=u.device)[:, None].expand(K, B)
    chosen = torch.where(again, systematic(shares(seen.log_w), u, K), own)
    log_w = torch.where(again, log_mean(seen.log_w), seen.log_w)
    flat = (chosen * B + torch.arange(B, device=u.device)).flatten()
    return _at(seen, flat)._replace(log_w=log_w)


def _along(x: Tensor, w: Tensor, randn: Randn) -> Tensor:
    """Returns where weighted points are along their first principal component, with shape (N).
    Systematic resampling in this order has a smaller variance than in any other that is as cheap
    (Gerber, Chopin & Whiteley, 2019, https://arxiv.org/abs/1707.01845)."""
    x = torch.where(x.isfinite(), x, 0.0)
    w = w.to(x)
    x = x - w @ x
    axis = randn(x[0])
    for _ in range(ROUNDS):
        axis = torch.nn.functional.normalize((w * (x @ axis)) @ x, dim=0)
    return x @ axis


def _at(seen: Weighted, index: Tensor) -> Weighted:
    """Returns some particles, given their rows, with the weights as they are."""
    taken = mapped(partial(_taken, of=index), (seen.x, seen.twist, seen.last))
    return Weighted(taken[0], seen.log_w, taken[1], taken[2])


def _taken(part: Tensor, of: Tensor) -> Tensor:
    return part[of] if part.dim() else part


def _joined(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([one, other]) if one.dim() else one


def _uniform(randn: Randn, like: Tensor) -> Tensor:
    """Returns random numbers in [0, 1), in the shape of `like`."""
    return torch.special.ndtr(randn(like).double())


def _part(randn: Randn, whole: Tensor, some: Tensor, drawn: list[Tensor]) -> Randn:
    """Returns the noise of some rows of a batch. What is drawn is drawn for the whole batch, and
    kept in a list that the batch's parts share."""
    count = itertools.count()

    def part(like: Tensor) -> Tensor:
        k = next(count)
        if k == len(drawn):
            drawn.append(randn(whole))
        return drawn[k][some]

    return part


def together(parts: Sequence[Any]) -> Any:
    """Returns nested tuples of several batches as one batch."""
    return parts[0] if len(parts) == 1 else mapped(lambda *part: torch.cat(part), *parts)


def urgent(g: Intervals, scale: Tensor) -> Tensor:
    """Returns which values are nearest to a bound, or farthest beyond it, in units of a scale,
    with shape (B, n): all equalities, and of the rest as many as may be weighted."""
    margin = torch.minimum(g.values - g.lower, g.upper - g.values).detach() / scale
    margin = margin.nan_to_num(0.0, neginf=torch.finfo(margin.dtype).min)  # of a flat value
    fixed = g.lower == g.upper
    margin = margin.masked_fill(fixed, -math.inf)
    return margin.topk(max(MOST, int(fixed[0].sum())), dim=1, largest=False).indices


def tails(S: Tensor, curved: Tensor) -> Tensor:
    """Returns the degrees of freedom of values, with shape (B), given their variance and the part
    of it that is curvature, with shape (B, m, m)."""
    share = torch.linalg.solve(S, curved).diagonal(dim1=1, dim2=2).mean(dim=1)
    return HEAVY / share.square()
