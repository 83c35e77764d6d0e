r"""Particles: each member weighs a few states by the constraint, and keeps one."""

__all__ = ["Particles", "Twist"]

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ..constraints.base import Constraint, Intervals
from ..members import among
from ..minimizers import GaussNewton, Minimizer
from ..minimizers.base import per_sample
from ..randomness import MemberNoise
from ..sampling import Problem, finite, passed
from .ancestral import Ancestral, Last
from .base import Randn, Sampler, Start, Step
from .calibrated import CalibratedPPR
from .normals import inside, positive
from .ppr import PPR
from .principal import Principal, given, principal
from .slopes import LARGE, Slopes, blocks, diagonal, followed, mapped, products, rows
from .tries import Pilot, checked, expected, like_pilot, sample_pilot, sample_until_kept, trying
from .truncated import TruncatedPPR

MOST = 12  # values that are weighed, unless there are more equalities: those nearest to a bound
HEAVY = 1.5  # degrees of freedom of a value that varies by curvature alone
FLOOR = 1e-3  # the least variance of a value, relative to that of white noise
RIDGE = 0.05  # the same for a move into intervals, several of which may have one direction
FARTHEST = 10.0  # how many standard deviations of a step a particle is moved at most
ITERATIONS = 32  # of the solver of posterior samples, under noise
LIKELIHOODS = (
    "members weighed",
    "their likelihood",
    "its square",
    "members lost",
    "its logarithm at a lower level",
    "the square of that",
)
LARGEST = 300.0  # the largest logarithm of a likelihood whose square is finite
ALIKE = 1 / 3  # the share of members that must matter in an average, or a user is warned
FEWEST = 16  # members that tell this share
MISSED = 10.0  # by how much the logarithm of a member's mean weight falls at a step, if it is lost
ALONE = 1.5  # how many of its particles matter then
LOST = 0.1  # the share of members lost, or a user is warned
LOWER = 0.5  # of the data's scale: the level down to which members' likelihoods must agree
DIFFER = 0.6  # the standard deviation of their logarithms there, or a user is warned
EVEN = 1 / 2  # the share of particles that must matter, or they are resampled
PILOT = 8  # members whose likelihoods set the bar
BLIND = 4  # the most tries of a member without a bar


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


class Population(NamedTuple):
    r"""The particles of members. All tensors have members along the second axis.

    Attributes:
        x: The states, with shape (K, B, *).
        log_w: The logarithms of their weights, with shape (K, B).
        log_h: Those of the likelihoods that the weights contain, likewise.
        average: The logarithms of mean weights after the last step, with shape (1, B).
        log_z: Those of members' likelihoods down to the data's scale, with shape (1, B); down to
            half of it if members have several tries.
        lower: Those down to half of the data's scale, likewise; down to `compared` if members have
            several tries.
        lost: Which members are lost, with shape (1, B).
        around: The noises that tell the curvature, with shape (P, B, *); the same for all
            particles, and all steps.
        last: The step before.
        slopes: The derivatives of the values there, where the next step takes no gradients.
    """

    x: Tensor
    log_w: Tensor
    log_h: Tensor
    average: Tensor
    log_z: Tensor
    lower: Tensor
    lost: Tensor
    around: Tensor
    last: Last | None = None
    slopes: Slopes | None = None


class Times(NamedTuple):
    """The times that particles go through.

    Attributes:
        every: Those of all steps, from 1 to 0.
        free: Those of the steps above `branch`, from 1.
        steps: Each step between `branch` and the last one: its time, the time to go to, and
            whether the next one takes gradients.
        compared: How many of these are above `compared`; 0 if members have one try.
    """

    every: Tensor
    free: Tensor
    steps: list[tuple[Tensor, Tensor, bool]]
    compared: int


@dataclass(frozen=True, repr=False, eq=False)
class Particles(Sampler):
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
    of Gaussian data of the scale `spread`. They are the same for all particles of a member. Of
    equalities :math:`h` is Student's density instead, with :math:`1.5 / \kappa^2` degrees of
    freedom, where :math:`\kappa` is the share of :math:`C` in :math:`S`. So curvature makes its
    tails heavier, and moves shorter as its slope is less. A particle goes to :math:`x_s` by an
    unconditional step of second order (see :class:`Ancestral <feasibly.samplers.Ancestral>`),
    whose mean is moved by what :math:`-V J^\top S^{-1} \bar r` does to the estimate. Its weight is
    multiplied by

    .. math::
        \frac{h(x_s)}{h(x_t)} \, \frac{p(x_s \mid x_t)}{q(x_s \mid x_t)},

    with :math:`p` the unconditional step and :math:`q` the moved one. If few particles matter,
    they are resampled in proportion to their weights. The step to a low noise level keeps one. The
    constraint moves it on to the last step, which projects as in PPR.

    A move takes a gradient through the denoiser for each value. With `every` = 2 only every second
    step does. Between, :math:`J V` follows from the step before, as for normal data: a value's
    variance :math:`v` becomes :math:`v / (1 + \gamma v)`, where :math:`\gamma` is the growth of
    :math:`\alpha^2 / \sigma^2`. Above `level` weights correct that, as they correct any move.

    Of an inequality :math:`l \leq g(x) \leq u`, :math:`h` is the probability, given the
    equalities, and values are moved to their mean in the interval. Several are taken one
    after another. At most 12 values are weighed: all equalities, and the inequalities nearest to
    their bounds. At the end, a member inside stays as it is. For that, `level` should be 0, so
    that particles are weighed down to the last step.

    With many particles samples follow the constrained distribution whatever :math:`h` is, but
    for the size of a step, and for what lies above `branch` and below `level`. So modes get their
    weights. A few particles are enough where :math:`h` is good. Above `branch` a member has one
    particle, which goes as an unconditional sample does.

    An observation with noise is a value whose errors add their variance to :math:`S`. Then the
    last step takes a posterior sample, as in
    :class:`CalibratedPPR <feasibly.samplers.CalibratedPPR>`. The projection is onto what holds
    exactly.

    The mean weight :math:`Z` of a member's particles estimates how likely the constraint is. It is
    low if all of them are in modes that the constraint hardly allows. With `tries` above 1 such a
    member is sampled again, with other noise. A try is kept with probability
    :math:`\min(1, Z / b)`, with :math:`Z` at the noise level `compared`. The bar :math:`b` comes
    from a pilot: 8 members with the conditions of member 0 and a seed of their own, sampled before
    a run. Its evaluations are counted. Of a member that is kept at no try, one try is chosen, with
    :math:`Z` as weights, which is an approximation. So a few particles do what many would. If a
    member's conditions or targets are not the pilot's, one of 4 tries is chosen so.

    A step that only moves its mean leaves weights that vary, the more so the more values there
    are. With `normal` its variance is that given the constraint too, for normal values; see
    :mod:`feasibly.samplers.principal`. This suits linear values, and many.

    The target is the prior restricted to :math:`\|r\| \leq \epsilon`, with
    :math:`\epsilon \to 0`, as for :class:`CalibratedPPR <feasibly.samplers.CalibratedPPR>`.

    References:
        | Practical and Asymptotically Exact Conditional Sampling in Diffusion Models (Wu et al.,
        | 2023), Algorithm 1, https://arxiv.org/abs/2306.17775, for the weights
        | DPM-Solver++ (Lu et al., 2022), https://arxiv.org/abs/2211.01095, for the step

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint. A weight takes a gradient for each residual and for each
            value of an inequality.
        steps: The number of diffusion steps.
        spacing: Where the steps are; see :class:`Sampler`.
        particles: The number :math:`K` of particles of a member.
        branch: The noise level :math:`\sigma / \alpha` from which on there are particles.
        weighed: The noise level below which they are weighed and moved. Above it they go as
            unconditional samples do, at a forward evaluation each.
        halved: The noise level below which a member keeps half of its particles, in units of the
            data. It keeps a quarter below half that level.
        level: The noise level down to which several are kept, in units of the data; 0 for the
            last step's.
        every: How many steps there are to a gradient of each value.
        spread: The standard deviation of the data.
        pairs: The number of pairs of clean samples that tell the curvature of a residual.
        normal: Whether the values are taken as normal in a step, so that the constraint changes
            its variance and not only its mean. Under many values weights then vary less. It
            applies where all are equalities or have errors.
        tries: How often the particles of a member may be sampled down to `compared`.
        quantile: The bar is this quantile of the pilot's likelihoods, from 0.5 to 1. A higher one
            takes more tries, and is nearer to the constrained distribution.
        compared: The noise level down to which likelihoods of members are compared, in units of
            the data.
        minimize: The minimizer of the last projection.
        eta: The share of fresh noise in a prediction; not 0.
        output: What to return; see :class:`Sampler`.
        pilot: What the pilot has shown; None to sample it before the run.
    """

    space = "x_t"
    renoises = True
    takes_noise = True
    differentiates = True

    constraint: Constraint
    _: KW_ONLY
    steps: int = 32
    spacing: str = "noise"
    particles: int = 8
    branch: float = math.inf
    weighed: float = math.inf
    halved: float = 0.0
    level: float = 0.05
    every: int = 1
    spread: float = 1.0
    pairs: int = 16
    normal: bool = False
    tries: int = 1
    quantile: float = 0.9
    compared: float = 0.1
    minimize: Minimizer = GaussNewton(steps=50, max_distance=None)
    output: str = "projected"
    pilot: Pilot | None = field(default=None, repr=False)

    def begin(self, noise: MemberNoise) -> Start:
        """Goes down to the last step, and keeps one particle of each member."""
        times, everyone = self._times(noise.dtype, noise.device), noise.rows
        if not times.steps:
            return Start(self.unconditional(noise, times.free)[0], times.every[-2:])
        tries, first = 0, {}
        if times.compared:
            tries = self.tries
            population, first = self._tried(noise, times)
        else:
            population = self.population(noise, times.free)
        number, most = self._stream(tries), len(everyone)
        streams = [noise.again(everyone, number + k) for k in range(len(population.x))]
        steps = times.steps[times.compared :]
        population = self.weigh(population, steps, noise, streams, most)
        last = likelihoods(population)
        statistics = last | first | {"members lost": last["members lost"]}
        x, log_w, log_h = population[:3]
        if len(x) > 1:
            states, of = x.flatten(0, 1), everyone.repeat(len(x))
            twist = self.twist(states, times.every[-2], population.around, of=of, most=most)
            log_w = log_w + twist.log_h.view_as(log_w)
        x = x[choose(log_w - log_h, uniform(noise)), everyone]
        return Start(x, times.every[-2:], None, statistics if noise.attempt == 0 else {})

    def unconditional(self, noise: MemberNoise, times: Tensor) -> tuple[Tensor, Last | None]:
        """Samples states without the constraint, step by step, and returns them and the step
        before the last of these times."""
        x_t, last, prior = self.denoiser.begin(noise(), times[0]), None, self._prior()
        for t, s in pairwise(times):
            x_t, x_0, last = prior.step(x_t, t, s, noise, last)
            passed(x_t, x_0, s)
        return x_t, last

    def population(self, noise: MemberNoise, times: Tensor) -> Population:
        """Samples the particles of members without the constraint, down to the last of these
        times. Those of one member are the same so far."""
        x_t, last = self.unconditional(noise, times)
        pairs = 0 if self.constraint.linear else self.pairs
        around = torch.stack([noise() for _ in range(pairs)]) if pairs else x_t.new_empty(0)
        copies = noise.rows.expand(self._kept(times[-1]), -1)
        x, last = x_t[copies], last and last.at(copies)
        log_w = x.new_zeros(x.shape[:2], dtype=torch.float64)
        zero = log_w[:1]
        lost = torch.zeros_like(zero, dtype=torch.bool)
        return Population(x, log_w, log_w, zero, zero, zero, lost, around, last)

    def weigh(
        self,
        population: Population,
        steps: Sequence[tuple[Tensor, Tensor, bool]],
        noise: MemberNoise,
        streams: Sequence[MemberNoise],
        most: int,
    ) -> Population:
        """Takes particles through steps, and weighs them.

        Arguments:
            population: The particles.
            steps: The time of each step, the time to go to, and whether the next step takes
                gradients.
            noise: The noise of the members.
            streams: That of their particles.
            most: How many states may go through the denoiser at a time.
        """
        x, log_w, log_h, average, log_z, lower, lost, around, last, slopes = population
        # all particles of all members go together: the first particles of all, and so on
        x, last, slopes = mapped(flat, (x, last, slopes))
        everyone, J = noise.rows, None
        prior = self._prior()
        coarse = min(self.spread, self.weighed)
        lowest = LOWER * coarse
        if self.tries > 1:  # `lower` is what members are compared by
            coarse, lowest = lowest, self.compared
        for t, s, renews in steps:
            of = everyone.repeat(len(log_w))
            twist = self.twist(x, t, around, slopes, J, of=of, most=most)
            if J is None and self.constraint.linear and twist.slopes is not None:
                # the same for all particles, at all steps; a copy, so that the rest is freed
                J = twist.slopes.J[: len(everyone)].clone()
            slopes = None if renews else twist.slopes
            now = twist.log_h.view_as(log_w)
            log_w = log_w + now - log_h
            rise = log_mean(log_w) - average
            if self.noise_level(t) >= coarse:
                log_z = log_z + rise
            if self.noise_level(t) >= lowest:
                lower = lower + rise
            if len(log_w) > 1:
                alone = shares(log_w).square().sum(dim=0, keepdim=True) > 1 / ALONE
                lost = lost | alone & (rise < -MISSED)
            chosen, log_w = resampled(log_w, uniform(noise), self._kept(s))
            average, log_h = log_mean(log_w), now.gather(0, chosen)
            picked = (chosen * len(everyone) + everyone).flatten()
            x, x_0, move, *values = (v[picked] for v in (x, *twist[:2], *twist.values))
            last, slopes = last and last.at(picked), slopes and slopes.at(picked)
            step = prior.second(x, x_0, t, s, last)
            last = Last(x_0, self.transition(x, x_0, t, s)[0], t)
            randn = side_by_side(streams[: len(chosen)])
            x, ratio = self.moved(*step, self.reach(t, s) * move, t, s, randn, values)
            log_w = log_w + ratio.view_as(log_w)
            passed(x[: len(everyone)], x_0[: len(everyone)], s)  # a particle of each member
        size = log_w.shape
        x, last, slopes = mapped(lambda part: unflat(part, size), (x, last, slopes))
        return Population(x, log_w, log_h, average, log_z, lower, lost, around, last, slopes)

    def prepare(self, problem: Problem) -> Self:
        """Returns the sampler with its pilot, if members have several tries."""
        times = self._times(problem.x_0.dtype, problem.x_0.device)
        if not times.compared or (self.pilot is not None and self.pilot.is_of(self)):
            return self
        problem = replace(problem, member=0)  # whichever members a run has

        def log_likelihoods(noise: MemberNoise) -> Tensor:
            return self._try(noise, noise, noise.rows, 0, times, problem.chunk)[1]

        pilot = sample_pilot(self, problem, PILOT, log_likelihoods, self._bar)
        return replace(self, pilot=pilot)

    def _tried(self, noise: MemberNoise, times: Times) -> tuple[Population, dict[str, float]]:
        """Samples particles down to the level `compared`: those of each member until they are
        kept, and `tries` times at most. Returns them, and statistics."""
        pilot = checked(self, self.pilot)
        alike = torch.stack(like_pilot(self, pilot, noise)).all(dim=0)
        if self.constraint.differs:
            alike = torch.zeros_like(alike)
        log_bar = torch.full_like(alike, pilot.log_bar, dtype=torch.float64)
        log_bar = log_bar.masked_fill(~alike, math.inf)
        barred = log_bar.isfinite()
        tries, most = torch.where(barred, self.tries, min(self.tries, BLIND)), len(noise.members)
        statistics = {"members whose pilot failed": int(alike.sum()) - int(barred.sum())}

        def sample(again: MemberNoise, of: Tensor, number: int) -> tuple[Population, Tensor]:
            population, log_likelihood = self._try(again, noise, of, number, times, most)
            if number == 0:
                statistics.update(likelihoods(population))
            return population, log_likelihood

        stride = self.particles + 1
        with trying(self, pilot, most):
            tried = sample_until_kept(noise, tries, log_bar, sample, axis=1, streams=stride)
        return tried.found, statistics

    def _try(
        self,
        again: MemberNoise,
        noise: MemberNoise,
        of: Tensor,
        number: int,
        times: Times,
        most: int,
    ) -> tuple[Population, Tensor]:
        """Samples the particles of some members down to the level `compared`, and returns them
        and the log-likelihoods, with shape (B).

        Arguments:
            again: The noise of the try, of these members.
            noise: The noise of all members.
            of: The rows of these members.
            number: The number of the try, from 0.
            times: The times to go through.
            most: How many states may go through the denoiser at a time.
        """
        found = self.population(again, times.free)
        first = self._stream(number)
        streams = [noise.again(of, first + k) for k in range(len(found.x))]
        found = self.weigh(found, times.steps[: times.compared], again, streams, most)
        return found, found.lower[0].nan_to_num(-math.inf, -math.inf, -math.inf)

    def _bar(self, log_likelihoods: Tensor) -> float:
        """Returns the log-likelihood from which on a member is kept for certain.

        It is the `quantile` of a normal with the median and the upper quartile of these, at most
        the largest. So one outlier changes little. It is infinite if none is finite.
        """
        finite = log_likelihoods[log_likelihoods.isfinite()]
        if not len(finite):
            return math.inf
        middle, upper = finite.quantile(finite.new_tensor([0.5, 0.75])).tolist()
        normal = NormalDist()
        above = (upper - middle) / normal.inv_cdf(0.75) * normal.inv_cdf(self.quantile)
        return min(middle + above, finite.max().item())

    def _prior(self) -> Ancestral:
        """Returns the sampler of unconditional steps."""
        return Ancestral(self.denoiser, spacing=self.spacing, eta=self.eta)

    def _stream(self, number: int) -> int:
        """The number of the first particle's stream of noise, in a try."""
        return number * (self.particles + 1) + 1

    def _times(self, dtype: torch.dtype, device: torch.device | str) -> Times:
        """Returns the times to go through."""
        exact = self.times()
        branch, times = self._branch(exact), exact.to(device, dtype)
        anew = [*self._anew(exact[branch:-2])[1:], True]
        steps = list(zip(times[branch:-2], times[branch + 1 : -1], anew, strict=False))
        above = sum(self.noise_level(t) >= self.compared for t, *_ in steps)
        return Times(times, times[: branch + 1], steps, above if self.tries > 1 else 0)

    def twist(
        self,
        x_t: Tensor,
        t: Tensor,
        around: Sequence[Tensor] | Tensor = (),
        before: Slopes | None = None,
        J: Tensor | None = None,
        *,
        of: Tensor | None = None,
        most: int | None = None,
    ) -> Twist:
        """Returns what the constraint says of states; above the level `weighed` nothing.

        Arguments:
            x_t: The states, with shape (B, *).
            t: Their time.
            around: Noises that tell the curvature, each with the shape of all members; none for a
                linear constraint.
            before: The slopes of the step before, of which those at `t` follow; None to take
                gradients through the denoiser.
            J: The derivatives of members' values, if they are known; None to take them.
            of: The row of each state's member, with shape (B); None for a member a state.
            most: How many states may go through the denoiser at a time, with `of`; None for all.
        """
        if of is None:
            parts = [(self._seen(x_t, t, around, before, J), before)]
        else:
            parts = []
            for some in blocks(len(x_t), most or len(x_t)):
                last, rows_of = before and before.at(some), of[some]
                with among(rows_of):
                    own = None if J is None else J[rows_of]
                    noises = [noise[rows_of] for noise in around]
                    parts.append((self._seen(x_t[some], t, noises, last, own), last))
        # arithmetic on all at once is faster, unless it is large: then in the denoiser's batches
        if sum(seen.size for seen, _ in parts) <= LARGE:
            parts = [together(parts)]
        return together([self._told(seen, t, last) for seen, last in parts])

    @torch.enable_grad()
    def _seen(
        self,
        x_t: Tensor,
        t: Tensor,
        around: Sequence[Tensor] | Tensor,
        before: Slopes | None,
        J: Tensor | None,
    ) -> Seen:
        """Returns what the denoiser and the constraint tell of states; see :meth:`twist`."""
        good = finite(x_t)
        x_t = torch.where(per_sample(good, x_t), x_t.detach(), 0.0).requires_grad_()
        weighed = self.noise_level(t) <= self.weighed
        # without a need for it, no graph is kept from this step to the next
        with torch.set_grad_enabled(weighed and before is None):
            mean = self.denoiser(x_t, t)
        x_0 = mean.detach()
        if not weighed:
            return Seen(x_0, good)
        alpha_t, sigma_t = self.denoiser.schedule(t)
        z = mean.detach().requires_grad_(J is None)
        g = self.constraint.intervals(z)
        above, below = self._around(x_0, (sigma_t / alpha_t).item(), around)
        kept = None if before is None else before.kept
        if before is None and len(above) and g.values.shape[1] > MOST:
            kept = urgent(g, (above - below).square().mean(dim=0).sqrt() / 2)
        if kept is not None:
            g = Intervals(*(part.gather(1, kept) for part in g if part is not None))
            above, below = (v.gather(2, kept.expand(len(v), *kept.shape)) for v in (above, below))
        J = rows(g.values, z) if J is None else J
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
            VJ = followed(before, J, sigma)
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
        unit = J.norm(dim=2)
        unit = torch.where(unit > 0, unit, 1.0)  # a flat value says nothing of the state
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
    def _around(self, mean: Tensor, sigma: float, around: Sequence[Tensor] | Tensor) -> Tensor:
        """Returns the constrained values of pairs of samples around the estimates, on opposite
        sides, with shape (2, P, B, m); no pairs without noises."""
        if not len(around):
            return mean.new_empty((2, 0))
        std = 1 / math.sqrt(1 / sigma**2 + 1 / self.spread**2)
        values = [
            torch.stack([self.constraint.intervals(mean + sign * std * n).values for n in around])
            for sign in (1, -1)
        ]
        return torch.stack(values)

    def moved(
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

    def warnings(self, statistics: Mapping[str, float]) -> Iterator[str]:
        members, total, squares, lost, lower, its_square = (
            statistics.get(name, 0.0) for name in LIKELIHOODS
        )
        failed = int(statistics.get("members whose pilot failed", 0))
        if failed:
            yield (
                f"None of the {PILOT} members of the pilot had a finite likelihood of the "
                f"constraint. So {failed} members were sampled {min(self.tries, BLIND)} times "
                "each, and one try of each was chosen by its likelihood. Test the denoiser and "
                "the constraint by `python -m feasibly check`."
            )
        if members < FEWEST:
            return
        more = f"such as options={{'particles': {8 * self.particles}}}"
        doubt = (
            f"{self.particles} particles are then too few, and weights of modes may be wrong, "
            "also of members that are feasible and plausible. "
            f"Take more, {more}, or test it by feasibly.audit with a large `near`."
        )
        if not self.constraint.differs:
            first = ", at their first try," if self.tries > 1 else ""
            share = total**2 / (members * squares) if squares else 1.0
            variance = its_square / members - (lower / members) ** 2
            if share < ALIKE:
                yield (
                    f"The particles of members say{first} how likely the constraint is, and only "
                    f"{share:.0%} of the members matter in the average. {doubt}"
                )
            elif self.tries == 1 and variance > DIFFER**2:
                yield (
                    "Each member's particles say how likely the constraint is, and these "
                    f"likelihoods differ by a factor of {math.exp(math.sqrt(variance)):.1f}. "
                    f"{doubt}"
                )
        if lost > LOST * members:
            yield (
                f"In {lost / members:.0%} of the members, all {self.particles} particles became "
                "far less likely at one step. Modes may then have wrong weights and means, even "
                f"in members that are feasible and plausible. Take more particles, {more}."
            )

    def _kept(self, t: Tensor) -> int:
        """The number of particles of a member at a time."""
        level, bound, kept = self.noise_level(t), self.halved, self.particles
        while level < bound and kept > 1:
            bound, kept = bound / 2, kept // 2
        return kept if level > self.level else 1

    def _branch(self, times: Tensor) -> int:
        """The number of steps above `branch`; the last one is below."""
        bound = max(self.branch, self.level)
        return sum(self.noise_level(t) > bound for t in times[:-2])

    def _anew(self, times: Tensor) -> list[bool]:
        """Returns which of the steps that begin at these times take gradients."""
        weighed = [self.noise_level(t) <= self.weighed for t in times]
        first = len(weighed) - sum(weighed)  # levels fall
        return [k >= first and (k - first) % self.every == 0 for k in range(len(weighed))]

    def step(
        self,
        x_t: Tensor,
        t: Tensor,
        s: Tensor,
        randn: Randn = torch.randn_like,
        memory: Any = None,
    ) -> Step:
        exact = self.constraint.exact  # this is the last step: `begin` takes the others
        if self.constraint.noisy is None:
            x_0 = self.denoiser(x_t, t)
        else:  # a projection would meet what has errors
            x_0 = self._calibrated().posterior(x_t, t, randn)
        x_s = self.predict(x_t, x_0, t, s, randn)
        if exact is None:
            return Step(x_s, x_0)
        return self._ppr(exact).kernel(x_s, s, self.noise_level(t), randn)

    def _calibrated(self) -> CalibratedPPR:
        """Returns the sampler of the last step's posterior samples."""
        return CalibratedPPR(self.denoiser, self.constraint, iterations=ITERATIONS)

    def _ppr(self, exact: Constraint) -> PPR:
        """Returns the sampler whose kernel projects the last state."""
        kind = TruncatedPPR if exact.equalities is None else PPR
        return kind(self.denoiser, exact, minimize=self.minimize)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "particles", "every", "tries")
        self._at_least(2, "pairs")
        for name in ("branch", "weighed", "halved", "level", "spread", "compared"):
            value = getattr(self, name)
            least = 0 if name in ("halved", "level", "compared") else math.ulp(0.0)
            if not isinstance(value, int | float) or not value >= least:
                raise ValueError(
                    f"{type(self).__name__}({name}=...) must be a positive number, got {value!r}."
                )
        if not isinstance(self.quantile, int | float) or not 0.5 <= self.quantile < 1:
            raise ValueError(
                f"{type(self).__name__}(quantile=...) must be a number from 0.5 to below 1, got "
                f"{self.quantile!r}."
            )
        if self.tries > 1 and self.compared >= self.weighed:
            raise ValueError(
                f"{type(self).__name__}(weighed={self.weighed!r}, compared={self.compared!r}) "
                "compares members before their particles are weighed; set `compared` below "
                "`weighed`."
            )
        if self.weighed <= self.level:
            raise ValueError(
                f"{type(self).__name__}(weighed={self.weighed!r}, level={self.level!r}) never "
                "weighs its particles; set `weighed` to several times `level`."
            )
        if self.eta == 0:
            raise ValueError(
                f"{type(self).__name__} needs fresh noise, which tells particles apart; set "
                "`eta` above 0."
            )

    def _rows(self, residuals: int) -> int:
        """The most gradients of a weight."""
        inside = self.constraint.equalities is None and self.constraint.noisy is None
        return min(residuals, MOST) if inside else residuals

    def for_targets(self) -> Self:
        """Returns the sampler with more particles and one try: a pilot has one target."""
        if self.tries == 1:
            return self
        return replace(self, particles=BLIND * self.particles, tries=1, pilot=None)

    def budget(self, residuals: int = 1) -> tuple[int, int]:
        """As :meth:`Sampler.budget`, without the pilot, which is sampled once a run."""
        times, gradients = self.times(), self._rows(residuals)
        branch = self._branch(times)
        several = any(self.noise_level(t) >= self.compared for t in times[branch:-2])
        tries = self.tries if several else 1
        forward = tries * branch + 1 + (self.output == "denoised") + (tries > 1)
        backward = 0
        for t, anew in zip(times[branch:-2], self._anew(times[branch:-2]), strict=True):
            kept = self._kept(t) * (tries if self.noise_level(t) >= self.compared else 1)
            forward, backward = forward + kept, backward + kept * gradients * anew
        if len(times) > branch + 2 and (K := self._kept(times[-2])) > 1:
            forward, backward = forward + K, backward + K * gradients
        if self.constraint.noisy is not None:
            backward += self._calibrated().cost(residuals)[1]
        if self.constraint.exact is not None:
            last = self.minimize.cost(residuals)
            forward, backward = forward + last[0], backward + last[1]
        return forward, backward

    def expected(self, residuals: int = 1) -> tuple[float, float]:
        return expected(self, residuals)


def flat(part: Tensor) -> Tensor:
    """Returns a tensor with its first two axes as one; a number as it is."""
    return part.flatten(0, 1) if part.dim() else part


def unflat(part: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns a tensor with its first axis as two of this shape; a number as it is."""
    return part.unflatten(0, shape) if part.dim() else part


def together(parts: Sequence[Any]) -> Any:
    """Returns nested tuples of several batches as one batch."""
    return parts[0] if len(parts) == 1 else mapped(lambda *part: torch.cat(part), *parts)


def side_by_side(streams: Sequence[MemberNoise]) -> Randn:
    """Returns a stream whose noise is that of several, one after another along the batch."""
    return lambda _: torch.cat([stream() for stream in streams])


def urgent(g: Intervals, scale: Tensor) -> Tensor:
    """Returns which values are nearest to a bound, or farthest beyond it, in units of a scale,
    with shape (B, n): all equalities, and of the rest as many as may be weighed."""
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


def log_mean(log_w: Tensor) -> Tensor:
    """Returns the logarithms of mean weights, with shape (1, B), given those of weights, with
    shape (K, B)."""
    log_w = log_w.nan_to_num(-math.inf, neginf=-math.inf)
    return log_w.logsumexp(dim=0, keepdim=True) - math.log(len(log_w))


def likelihoods(population: Population) -> dict[str, float]:
    """Returns how many members there are, the sum of their likelihoods and that of the squares,
    how many are lost, and the sum of the logarithms at a lower level and that of their squares."""
    log_z, lower, lost = population.log_z, population.lower, population.lost
    known = log_z.isfinite() & lower.isfinite()
    z = log_z[known].clamp(-LARGEST, LARGEST).exp()
    found = (z, z.square(), lost[known], lower[known], lower[known].square())
    return dict(zip(LIKELIHOODS, (len(z), *(v.sum().item() for v in found)), strict=True))


def uniform(noise: MemberNoise) -> Tensor:
    """Returns a random number in [0, 1] for each member, with shape (B)."""
    return torch.special.ndtr(noise().flatten(start_dim=1)[:, 0].double())


def shares(log_w: Tensor) -> Tensor:
    """Returns weights that add up to one for each member, with shape (K, B); equal ones for a
    member all of whose weights are zero."""
    log_w = log_w.masked_fill(log_w.isnan(), -math.inf)  # of a particle that is not finite
    none = ~log_w.isfinite().any(dim=0)
    return torch.where(none, 0.0, log_w).softmax(dim=0)


def resampled(log_w: Tensor, u: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Resamples the particles of members of which few matter, or are to be kept, by systematic
    resampling.

    Arguments:
        log_w: The logarithms of the weights, with shape (K, B).
        u: A random number in [0, 1] for each member, with shape (B).
        kept: How many particles to keep, at most K.

    Returns:
        The chosen particles, with shape (kept, B), and the logarithms of their weights, likewise.
    """
    K, w = len(log_w), shares(log_w)
    own = torch.arange(kept, device=w.device)[:, None].expand(-1, w.shape[1])
    points = (own + u) / kept
    chosen = torch.searchsorted(w.T.cumsum(dim=1).contiguous(), points.T.contiguous()).T
    again = (1 / w.square().sum(dim=0) < EVEN * K) | (kept < K)
    chosen = torch.where(again, chosen.clamp_max(K - 1), own)
    return chosen, torch.where(again | ~log_w.isfinite().any(dim=0), 0.0, log_w[:kept])


def choose(log_w: Tensor, u: Tensor) -> Tensor:
    """Returns one particle of each member, in proportion to the weights, with shape (B)."""
    below = shares(log_w).cumsum(dim=0) < u
    return below.sum(dim=0).clamp_max(len(log_w) - 1)
