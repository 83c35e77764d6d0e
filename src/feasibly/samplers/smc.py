r"""Sequential Monte Carlo (SMC): samples share weighted particles."""

__all__ = ["SMC"]

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from ..constraints.base import Constraint
from ..constraints.decoded import is_decoded
from ..members import among
from ..minimizers import GaussNewton, Minimizer
from ..problem import Problem
from ..randomness import MemberNoise
from ..result import RELIABLE, Weights
from .ancestral import Ancestral, Last
from .answers import answers, same
from .base import Method, Randn, Start, Step, passed
from .calibrated import CalibratedPPR
from .levels import DRAWN_GIVEN, Levels, ladder, scale_of, spaced
from .population import Cloud, Walk, Weighted, drawn, joined, resampled, taken, uniform
from .ppr import PPR
from .slopes import LARGE, blocks, mapped
from .truncated import TruncatedPPR
from .twist import MOST, STATES, Guide, together
from .weights import effective_size, log_mean, smoothed

EVERY = 2  # steps to a gradient of each value
ITERATIONS = 32  # of the solver of posterior samples, under noise
PAIRS, PAIRS_DECODED = 16, 4  # of samples that tell a residual's curvature; a decoder is costly
FEWEST = 25  # trajectories of a population: of fewer, k-hat says little
DOUBLINGS = 3  # of the particles, at most
ALONE = 6  # how many times as many particles a sample with a target of its own has


@dataclass(frozen=True, kw_only=True)
class SMC(Method):
    r"""Draws samples from a population of weighted particles by sequential Monte Carlo (SMC), and
    projects them.

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

    If some residual components depend on others, as those of many sensors of few unknowns,
    :math:`S` gets the covariance :math:`\sigma_t^2 / \alpha_t^2 \, P D^2 P` across the range of
    :math:`J`, which is left out of the normalisation of :math:`h`; :math:`P` is the projection
    across the range, and :math:`D` has the lengths of the rows of :math:`J`.

    With `spacing="noise"` half of the steps are uniform in :math:`\log \sigma / \alpha`. The other
    half have a Cauchy distribution of scale one around the logarithm of `levels.spread`. Modes
    separate near that level, so that longer steps bias their weights.

    Once, at the noise level `levels.drawn` or below, where the noise is low compared with the
    scale of the estimates too, the samples are drawn from all particles of the population, by
    Pareto-smoothed weights. So a mode has its weight, although few trajectories lead to it. The
    diagnostic k-hat of the mean weights of trajectories tells whether this can be trusted. If it
    is above 0.7, or if their effective sample size is too small for `error`, each trajectory gets
    as many particles again, up to three times. If k-hat is still too large, weights are not
    shared: each trajectory draws one of its own particles, and the run warns.

    A gradient through the denoiser is taken for each value, at every second step. In between,
    :math:`J V` follows from the step before, as for normal data: a value's variance :math:`v`
    becomes :math:`v / (1 + \gamma v)`, where :math:`\gamma` is the growth of
    :math:`\alpha^2 / \sigma^2`.

    Under more than 12 values with targets, gradients are taken at 16 states only, at every step.
    There they give :math:`Q V`, where the rows of :math:`Q` are a basis of all derivatives
    :math:`J` at these states. Any other state takes :math:`V` from the one whose estimate is
    nearest. This is exact for normal data. At the level where samples are drawn, each particle
    takes its own gradients, so that the last weights are exact elsewhere too.

    For an inequality :math:`l \leq g(x) \leq u`, :math:`h` is the probability, given the
    equalities, and values are moved to their mean in the interval. At most 12 inequalities are
    weighted, those nearest to their bounds. At the end, a sample inside stays as it is. For that,
    `levels.drawn` should be 0, so that samples are drawn before the last step.

    An observation with noise is a value whose errors add their variance to :math:`S`. Then steps
    below the level at which samples are drawn take posterior samples, as in
    :class:`CalibratedPPR <feasibly.samplers.CalibratedPPR>`. The projection is onto what holds
    exactly.

    Samples with targets or conditions of their own share nothing. Each has six times as many
    particles, and draws one.

    A step that only moves its mean leaves weights that vary, the more so the more values there
    are. So where values are linear, or more than 12, the step of those with targets has the
    variance given the constraint too, as for normal values; see
    :mod:`feasibly.samplers.principal`. A move into inequalities is added to it.

    The target is the prior restricted to :math:`\|r\| \leq \epsilon`, in the limit of the least
    :math:`\epsilon`, as for :class:`CalibratedPPR <feasibly.samplers.CalibratedPPR>`.

    References:
        | Practical and Asymptotically Exact Conditional Sampling in Diffusion Models (Wu et al.,
        | 2023), Algorithm 1, https://arxiv.org/abs/2306.17775, for the weights
        | DPM-Solver++ (Lu et al., 2022), https://arxiv.org/abs/2211.01095, for the step
        | Pareto Smoothed Importance Sampling (Vehtari et al., 2024)
        | https://arxiv.org/abs/1507.02646

    Arguments:
        steps: The number of diffusion steps.
        spacing: Where the steps are: `noise` as above, or `time`; see :class:`Method`.
        particles: The number :math:`K` of particles that a trajectory begins with.
        error: The standard error that weights may add to the weight of a mode, in one
            population. It is never asked to be less than that of as many independent samples.
        levels: The noise levels; None for those that follow from the survey when the method is
            bound.
        minimize: The minimizer of the last projection.
        eta: The share of fresh noise in a prediction; not 0.
        output: What to return; see :class:`Method`.

    Example:
        >>> method = feasibly.SMC(steps=12, particles=2)
        >>> result = feasibly.sample(denoiser, circle, 25, (2,), method=method, monitor=False)
        >>> bool(result.feasible.all()), result.pareto_k < 0.7  # so the weights can be trusted
        (True, True)
    """

    space = "x_t"
    renoises = True
    takes_noise = True
    differentiates = True
    shares = True
    attempts = 4
    chooses = True

    steps: int = 48
    spacing: str = "noise"
    particles: int = 2
    error: float = 0.025
    levels: Levels | None = None
    minimize: Minimizer = GaussNewton(steps=50, max_distance=None, dense=128)
    output: str = "projected"

    def bind(self, problem: Problem, survey: Any = None) -> Self:
        self.check(problem)
        levels = self.levels or ladder(problem, survey)
        return replace(self, problem=problem, levels=levels)

    def begin(self, noise: MemberNoise) -> Start:
        """Goes down to the last step with a population, and draws its samples."""
        n, times = len(noise.members), self.times(noise.dtype, noise.device)
        alike, shared, values = self._alike(noise)
        B = max(n, FEWEST) if shared else n
        of = torch.arange(B, device=noise.device) % n
        common = values if alike and self._common(values) else 0
        walk = self._walk(times, noise, of, common)
        begun, last = self._steps()
        nothing = torch.zeros((1, B), dtype=torch.float64, device=noise.device)
        x = self.denoiser.begin(walk.randn(times.new_empty((B, *noise.shape))), times[0])
        free = self.weigh(Cloud(x, nothing, nothing), walk, 0, begun)
        ends = self._ends(walk.renews) if shared else [last]
        pool, last = self._several(free, walk, self.particles * (1 if shared else ALONE), ends)
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
            again, _ = self._several(free, walk, len(pool.log_w), [last])
            pool = mapped(joined, pool, again)
        walk = walk._replace(of=walk.of[:n])
        cloud = drawn(pool, smooth, n, walk.randn)
        if self.constraint.noisy is None:
            x = self.weigh(cloud, walk, last, len(times) - 2).x
        else:
            x = self._sampled(cloud.x, walk, last, len(times) - 2)
        return Start(x, times[-2:], population=found)

    def spaced(self, highest: Tensor, lowest: Tensor) -> Tensor:
        return spaced(self.steps, highest, lowest, self.ladder.spread)

    def weigh(self, cloud: Cloud, walk: Walk, first: int, last: int) -> Cloud:
        """Takes particles from one time to another, by their numbers."""
        for k in range(first, last):
            seen = self.weighted(cloud, walk, k)
            if len(seen.log_w) > 1:
                seen = resampled(seen, uniform(walk.randn, seen.log_w[0]))
            cloud = self.moved(seen, walk, k)
        return cloud

    def weighted(self, cloud: Cloud, walk: Walk, k: int) -> Weighted:
        """Weights particles by the constraint, at a time given by its number."""
        x, log_w, log_h, last, slopes = cloud
        of = walk.of.repeat(len(log_w))
        common = walk.common > 0
        twist = self.guide.twist(x, walk.times[k], walk.around, slopes, of=of, common=common)
        return Weighted(x, log_w + twist.log_h.view_as(log_w) - log_h, twist, last)

    def moved(self, seen: Weighted, walk: Walk, k: int) -> Cloud:
        """Takes weighted particles to the next time, given the number of theirs."""
        (x, log_w, twist, last), (t, s) = seen, walk.times[k : k + 2]
        prior = Ancestral(spacing=self.spacing, eta=self.eta, problem=self.problem)
        mean, std = prior.second(x, twist.x_0, t, s, last)
        last = Last(twist.x_0, self.transition(x, twist.x_0, t, s)[0], t)
        shift = self.reach(t, s) * twist.move
        x, ratio = self.guide.proposed(mean, std, shift, t, s, walk.randn, twist.values)
        passed(x[: walk.count], twist.x_0[: walk.count], s)
        slopes = None if walk.renews[k + 1] else twist.slopes
        log_h = twist.log_h.view_as(log_w)
        return Cloud(x, log_w + ratio.view_as(log_w), log_h, last, slopes)

    def _sampled(self, x: Tensor, walk: Walk, first: int, last: int) -> Tensor:
        """Takes samples that are drawn from one time to another, by posterior samples: weights
        correct a step no longer, and a measurement would not have its error."""
        for t, s in pairwise(walk.times[first : last + 1]):
            x, x_0 = self._in_batches(self._posterior, x, t, s, walk.randn)
            passed(x, x_0, s)
        return x

    def _posterior(self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn) -> tuple[Tensor, Tensor]:
        x_0 = self._calibrated().posterior(x_t, t, randn)
        return self.predict(x_t, x_0, t, s, randn), x_0

    @property
    def particles_of_one(self) -> int:
        """The number of particles that a sample begins with: more if it shares none."""
        return self.particles * (ALONE if self.constraint.differs else 1)

    @property
    def guide(self) -> Guide:
        """What the constraint says of states."""
        return Guide(self.bound_to, self.ladder, normal=self.eta == 1)

    @property
    def ladder(self) -> Levels:
        """The noise levels, which are chosen when the method is bound."""
        return self.levels or ladder(self.bound_to)

    def _several(
        self, free: Cloud, walk: Walk, K: int, ends: Sequence[int]
    ) -> tuple[Weighted, int]:
        """Takes K particles of each trajectory down to where samples are drawn: at the first of
        some steps whose noise level is low compared with the scale of the particles' estimates, or
        else at the last of them. Returns its number too."""
        last, _ = self._steps()  # where there begin to be several
        copies = torch.arange(len(free.x), device=free.x.device).repeat(K)
        x, before = mapped(partial(taken, of=copies), (free.x, free.last))
        cloud = Cloud(x, free.log_w.expand(K, -1), free.log_h.expand(K, -1), before)
        for end in ends:
            cloud, last = self.weigh(cloud, walk, last, end), end
            if end == ends[-1]:
                break
            estimates = cloud.x if cloud.last is None else cloud.last.x_0
            if self.noise_level(walk.times[end + 1]) <= DRAWN_GIVEN * scale_of(estimates):
                break
        if not walk.common:
            seen = self.weighted(cloud, walk, last)
            return seen._replace(twist=seen.twist.only_estimates()), last
        # the last weights are those of each particle's own derivatives, of as many at a time as
        # are not too large
        x, log_w, log_h, before, _ = cloud
        of, t = walk.of.repeat(K), walk.times[last]
        size = max(1, LARGE // (walk.common * x[0].numel()))
        parts = [
            self.guide.twist(x[some], t, walk.around, of=of[some]).only_estimates()
            for some in blocks(len(x), size)
        ]
        twist = together(parts)
        return Weighted(x, log_w + twist.log_h.view_as(log_w) - log_h, twist, before), last

    def _walk(self, times: Tensor, noise: MemberNoise, of: Tensor, common: int) -> Walk:
        """Returns what the particles of a population have in common."""
        randn, count = noise.shared(), 0
        if not self.constraint.linear:
            count = PAIRS_DECODED if is_decoded(self.constraint) else PAIRS
        around = [randn(times.new_empty((1, *noise.shape))) for _ in range(count)]
        return Walk(times, self._renews(common > 0), randn, around, of, len(noise.members), common)

    def _common(self, values: int) -> bool:
        """Whether gradients are taken at some of the states only: under many values."""
        part = self.constraint
        targets = part.equalities is not None or part.noisy is not None
        return values > MOST and targets

    def _renews(self, common: bool) -> list[bool]:
        """Returns which of the steps that begin at the times of :meth:`times` take gradients."""
        levels = self._noise_levels
        first = sum(level > self.ladder.weighted for level in levels)
        some = self._steps()  # there are no slopes of the step before
        every = 1 if common else EVERY
        return [k >= first and ((k - first) % every == 0 or k in some) for k in range(len(levels))]

    @cached_property
    def _noise_levels(self) -> list[float]:
        """Those of :meth:`times`."""
        return list(map(self.noise_level, self.times()))

    def _steps(self) -> tuple[int, int]:
        """The numbers of the time at which there begin to be several particles, and of that at
        which samples are drawn."""
        *levels, _ = self._noise_levels
        begun = sum(level > self.ladder.begun for level in levels[:-1])
        last = sum(level > self.ladder.drawn for level in levels[1:])
        return begun, max(begun, last)

    def _ends(self, renews: Sequence[bool]) -> list[int]:
        """The numbers of the times at which samples may be drawn: the first by `levels.drawn`, and
        those behind it that take gradients."""
        _, first = self._steps()
        return [first, *(k for k in range(first + 1, len(renews) - 1) if renews[k])]

    def _alike(self, noise: MemberNoise) -> tuple[bool, bool, int]:
        """Whether samples have the same conditions, whether they have the same targets too, and
        how many values there are."""
        x_0, r = answers(self, noise, batch=self.bound_to.batch_size)
        conditions, targets = (bool(one.all()) for one in same(x_0, r, x_0[:1], r[:1]))
        return conditions, conditions and targets and not self.constraint.differs, r.shape[1]

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        return Step(*self._in_batches(self._last, x_t, t, s, randn))

    def _in_batches(
        self,
        take: Callable[[Tensor, Tensor, Tensor, Randn], tuple[Tensor, Tensor]],
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn,
    ) -> tuple[Tensor, Tensor]:
        """Takes a step with as many states at a time as may go through the denoiser."""
        found, kept, size = [], [], self.bound_to.batch_size or len(x_t)
        for some in torch.arange(len(x_t), device=x_t.device).split(size):
            with among(some):
                found.append(take(x_t[some], t, s, _part(randn, x_t, some, kept)))
        return together(found)

    def _last(self, x_t: Tensor, t: Tensor, s: Tensor, randn: Randn) -> tuple[Tensor, Tensor]:
        """Takes the last step: `begin` takes the others. Returns states and samples."""
        exact = self.constraint.exact
        if self.constraint.noisy is None:
            x_0 = self.denoiser(x_t, t)
            x_s = self.predict(x_t, x_0, t, s, randn)
        else:  # a projection would meet what has errors
            x_s, x_0 = self._posterior(x_t, t, s, randn)
        if exact is None:
            return x_s, x_0
        return self._ppr(exact).kernel(x_s, s, self.noise_level(t), randn)[:2]

    def _calibrated(self) -> CalibratedPPR:
        """Returns the kernel of the last step's posterior samples."""
        return CalibratedPPR(iterations=ITERATIONS).bind(self.bound_to)

    def _ppr(self, exact: Constraint) -> PPR:
        """Returns the kernel that projects the last state."""
        kind = TruncatedPPR if exact.equalities is None else PPR
        return kind(minimize=self.minimize, problem=self.bound_to.but(constraint=exact))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "particles")
        if not self.error > 0:
            raise ValueError(f"SMC(error=...) must be a positive number, got {self.error!r}.")
        if self.levels is not None and not (
            self.levels.weighted > self.levels.drawn >= 0 and self.levels.spread > 0
        ):
            raise ValueError(
                f"SMC(levels={self.levels!r}) never weights its particles: `weighted` must be "
                "above `drawn`, and `spread`, the standard deviation of the data, positive."
            )
        if self.eta == 0:
            raise ValueError(
                "SMC needs fresh noise, without which particles stay alike; set `eta` > 0."
            )

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        """As :meth:`Method.budget`, if particles are doubled as often as they may be, wherever
        samples are drawn."""
        trajectories = 1 if self.constraint.differs else FEWEST
        costs = [
            self._cost(residuals, 2**DOUBLINGS, trajectories, last)
            for last in self._ends(self._renews(self._common(residuals)))
        ]
        forward, backward = (math.ceil(max(each)) for each in zip(*costs, strict=True))
        return forward, backward

    def expected(self, residuals: int = 1) -> tuple[float, float]:
        """As :meth:`Method.expected`, for each of 100 samples that are drawn by `levels.drawn`."""
        return self._cost(residuals, 1, 100, self._steps()[1])

    def _cost(self, residuals: int, times: int, B: int, last: int) -> tuple[float, float]:
        """The forward and backward evaluations of each of B trajectories, with so many times the
        particles, if samples are drawn at the time with a number."""
        K = self.particles * (ALONE if self.constraint.differs else times)
        inside = self.constraint.equalities is None and self.constraint.noisy is None
        common = self._common(residuals)
        begun, _ = self._steps()
        forward, backward = 2.0 + (self.output == "denoised"), 0.0
        renews = self._renews(common)[:-1]
        ends = last == len(renews) - 1  # where samples are drawn before the last step
        noisy = self.constraint.noisy is not None
        posterior = self._calibrated().cost(residuals)[1] if noisy else 0

        def gradients(particles: int) -> float:
            if not common:
                return particles * (min(residuals, MOST) if inside else residuals)
            # those of some states, along a basis of the derivatives there
            rows = residuals if self.constraint.linear else STATES * residuals
            rows = min(rows, math.prod(self.bound_to.shape), residuals * particles * B / STATES)
            return min(STATES / B, particles) * rows

        for k, anew in enumerate(renews if ends else renews[:-1]):
            many = 0 if k > last else K if k >= begun else 1
            one = k >= last and not ends  # what is drawn goes on alone
            forward += many + one
            backward += gradients(many) * anew + one * (posterior or gradients(1) * anew)
            forward += common * anew * min(STATES, many * B) / B
        if common:  # at the level where samples are drawn
            forward, backward = forward + K, backward + K * residuals
        backward += posterior  # of the last step
        if self.constraint.exact is not None:
            search = self.minimize.cost(residuals) if times > 1 else (1, 1)
            forward, backward = forward + search[0], backward + search[1]
        return forward, backward


def _part(randn: Randn, whole: Tensor, some: Tensor, kept: list[Tensor]) -> Randn:
    """Returns the noise of some rows of a batch. What is drawn is drawn for the whole batch, and
    kept in a list that the batch's parts share."""
    count = itertools.count()

    def part(like: Tensor) -> Tensor:
        k = next(count)
        if k == len(kept):
            kept.append(randn(whole))
        return kept[k][some]

    return part
