r"""Tests whether samples look like data to the denoiser: members against unconditional samples.

Where :math:`x` looks like data, the denoiser undoes a little noise about as well as it does for
the prior's own samples. Where it does not, the denoiser moves it elsewhere, and the error

.. math:: e_k(x) = \frac{1}{D s_k^2} \, \mathbb{E}_n \|d(x + s_k n) - x\|^2

at a low noise level :math:`s_k` is larger. This is the loss of the denoiser's training, of one
sample. A sample that is too smooth, or in a region that is merely rare, has no larger error. So
the test finds samples off the data. It does not find a wrong distribution on the data.
"""

__all__ = ["RATE", "Assessment", "Reference", "UnseenError", "reference"]

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .arguments import shape_of, whole
from .checks.coverage import UNLIKE, Gaps, channels, unmoved
from .constraints.base import Constraint
from .errors import DenoiserError, SamplingError
from .members import calling
from .minimizers.base import per_sample
from .network import Network, device_of, own_mode
from .progress import current
from .randomness import MemberNoise, generator
from .samplers.ancestral import Ancestral
from .sampling import RATE, failure, finite

SIZE = 64
"""The number of unconditional samples."""

STRIDE = 0.7
"""By how much a diffusion step of theirs may lower the logarithm of the noise level. Samples of
coarser steps have larger errors, so that the limit is too high."""

FEWEST = 16
"""The least number of unconditional samples that a limit can be taken from."""

LEVELS = (0.01, 0.03)
"""The noise levels, in units of the data's scale. At higher ones a sample far out in a smooth
distribution has a larger error too, though it is on the data."""

SMALL, PAIRS_SMALL, PAIRS_LARGE = 64, 2, 1
"""Samples of fewer than so many elements get two pairs of noises, others one. The errors of many
elements average out."""

SPREAD, LEAST = 0.15, 2.0
"""The least standard deviation of log-errors that counts, and the least limit in units of it.
A member whose error is less than exp(SPREAD * LEAST) = 1.35 times the typical one is plausible,
however little the errors of unconditional samples vary."""

SLIGHT = 0.01
"""The error, in units of the noise's variance, below which errors are alike."""

BENT_LEVELS, THIN_LEVEL, FINE_LEVEL, BENT_SIZE = (1.0, 3.0), 0.1, 0.01, 16
"""The noise levels at which a denoiser is compared with an affine map, in units of the data's
scale, that at which it tells whether data fill their space, one for their finer structure, and
the number of samples."""

AFFINE, AFFINE_LEVELS, AFFINE_SHARE = 0.005, (0.03, 0.1, 0.3, 1.0), 0.75
"""How far a denoiser may be from an affine map over what noise varies, the noise levels at which
this is tested, in units of the data's scale, and the share of samples that must pass. Others may
be near an edge of the data."""

UNTOLD = 0.9
"""The share of a residual's variance that estimates may leave open where they tell it."""

ELEMENTS = 4096
"""The most elements of a sample that tell the effective dimension."""

TAIL = 8
"""One unconditional sample in so many belongs to the tail."""

SAMPLES_SEED, NOISE_SEED, BENT_SEED, AFFINE_SEED, ELEMENTS_SEED, TWICE_SEED, DRIFT_SEED = (
    2**32 - k for k in (2, 3, 4, 7, 8, 9, 10)
)
"""The seeds of unconditional samples and of the noises, so that no member depends on others."""


class UnseenError(SamplingError):
    """Too few unconditional samples are finite."""


@dataclass(frozen=True, eq=False)
class Assessment:
    r"""What a reference says of members.

    Attributes:
        statistic: Each member's largest standardised log-error, in units of the limit, with shape
            :math:`(B)`; infinite for members that are not finite. At most 1 is plausible.
        plausible: Which members are plausible, with shape :math:`(B)`.
        errors: The denoising errors :math:`e_k`, with shape :math:`(B, K)`.
    """

    statistic: Tensor
    plausible: Tensor
    errors: Tensor


class Probe(NamedTuple):
    """A fixed state, its time, and the denoiser's estimate under a reference's conditions. It
    tells members with conditions of their own. Both states have shape (1, *)."""

    x_t: Tensor
    t: Tensor
    x_0: Tensor


@dataclass(frozen=True, eq=False)
class Reference:
    r"""Unconditional samples, and the denoising errors that they allow.

    The log-error of a member at each level is standardised by the mean and the standard deviation
    of the unconditional samples'. The largest over the levels is held against a limit, which one
    unconditional sample in a hundred exceeds if the tail of the largest is exponential. Lighter
    tails give fewer, and so do errors that hardly vary; see :data:`SPREAD`.

    Attributes:
        samples: The unconditional samples that are finite, with shape :math:`(N, *)`.
        unit: The data's scale: the root mean square distance per element of the median sample
            from the elements' medians. It is about the standard deviation. Where channels are
            unlike, it is that of the smallest.
        levels: The noise levels :math:`s_k = \sigma / \alpha`, with shape :math:`(K)`.
        times: Their times, with shape :math:`(K)`.
        noise: The noises, the same for all members, with shape :math:`(M, *)`.
        location: The mean log-error at each level, with shape :math:`(K)`.
        scale: The standard deviation of log-errors at each level, with shape :math:`(K)`.
        limit: What the largest standardised log-error may be.
        probe: What tells members with conditions of their own.
        ends: The lowest and the highest noise level of the schedule.
        informed: The highest noise level at which the denoiser's estimates explain a tenth of the
            variance of a residual; infinite if all do. Above it the constraint says nothing of a
            state.
        bent: How far the denoiser is from an affine map at noise as large as the data or larger,
            relative to what its estimates vary by, over all elements; zero for normal data.
        thin: The same at a tenth of that noise; near zero unless data are on a curved surface, or
            are single points.
        affine: The highest noise level up to which the denoiser is nearly affine over what noise
            varies, on average over elements, so that the posterior of a state is nearly Gaussian;
            0 for none. Structure finer than 0.03 of the data's scale is not seen.
        moments: The mean and the standard deviation that samples begin with; None for zero, one.
        settles: Whether they begin at a mean of their own.
        unmoved: What of states the denoiser leaves as noisy as it is, in a sentence; "" if it
            denoises all of them.
        estimates: Two estimates of each of some samples, under two noises as large as the data,
            with shape (2, B, *); None if the constraint is linear.
        curved: How far any one element of the denoiser's estimates is from an affine map, at these
            noise levels and a hundredth of the data's scale; zero but for rounding for normal
            data.
        drift: How far estimates at the highest noise level are from those, at noise as large as
            the data, of the mean states that follow from them, relative to what they vary by;
            zero but for rounding if the denoiser is affine, and that of its schedule.
        dimensions: The noise levels of the unconditional samples, from the highest, each with the
            effective dimension of the data there: the mean squared error of the denoiser's
            estimates in units of the noise's variance. For data on a surface it comes to the
            surface's dimension. For normal data of variances :math:`\lambda_i` it is
            :math:`\sum_i \lambda_i / (\lambda_i + \sigma^2)`.
    """

    samples: Tensor
    unit: float
    levels: Tensor
    times: Tensor
    noise: Tensor
    location: Tensor
    scale: Tensor
    limit: float
    probe: Probe
    ends: tuple[float, float]
    informed: float = math.inf
    bent: float = math.inf
    thin: float = math.inf
    affine: float = 0.0
    curved: float = math.inf
    drift: float = math.inf
    dimensions: tuple[tuple[float, float], ...] = ()
    moments: tuple[Tensor, Tensor] | None = None
    settles: bool = False
    unmoved: str = ""
    estimates: Tensor | None = None

    @property
    def cost(self) -> int:
        """The forward evaluations that an assessment takes for each member."""
        return len(self.levels) * len(self.noise) + 1

    @torch.no_grad()
    def assess(
        self, denoiser: Any, x: Tensor, members: Sequence[int], chunk: int | None = None
    ) -> Assessment:
        """Tests members, each by itself. Only a larger error than allowed is implausible.

        Arguments:
            denoiser: The denoiser; a :class:`Network` counts the evaluations.
            x: The members, with shape (B, *).
            members: Their indices.
            chunk: How many states may go through the denoiser at a time; None for B.

        Raises:
            DenoiserError: If members have conditions other than those of the reference.
        """
        network, good = _network(denoiser), finite(x)
        ids = torch.as_tensor(list(members), device=x.device)[good]
        errors = x.new_full((len(x), len(self.levels)), math.inf, dtype=torch.float64)
        if good.any():
            self.check_conditions(network, ids, chunk)
            times, levels = self.times, self.levels
            errors[good] = _errors(network, x[good], ids, times, levels, self.noise, chunk)
        statistic = _standardise(_log(errors), self.location, self.scale) / self.limit
        return Assessment(statistic, statistic <= 1, errors)

    def check_conditions(self, denoiser: Any, ids: Tensor, chunk: int | None) -> None:
        """Refuses members whose estimates of a fixed state are not the reference's.

        Arguments:
            denoiser: The denoiser; a :class:`Network` counts the evaluations.
            ids: The indices of the members, with shape (B).
            chunk: How many states may go through the denoiser at a time; None for B.

        Raises:
            DenoiserError: If they have conditions other than those of the reference.
        """
        network = _network(denoiser)
        x_t, t, x_0 = self.probe
        for part in ids.split(chunk or len(ids)):
            with calling(part, x_t.device):
                answer = network(x_t.expand(len(part), *x_t.shape[1:]), t)
            error = (answer - x_0).flatten(start_dim=1).norm(dim=1)
            if not (error <= 0.01 * x_0.norm()).all():
                raise DenoiserError(
                    "Plausibility is tested against samples under one condition, and the denoiser "
                    "has conditions that differ from member to member; test the members of each "
                    "condition apart, against a reference of their own."
                )


@own_mode()
def reference(
    denoiser: Any,
    shape: Sequence[int],
    constraint: Constraint | None = None,
    *,
    size: int = SIZE,
    steps: int | None = None,
    levels: Sequence[float] = LEVELS,
    pairs: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    member: int = 0,
    chunk: int | None = None,
    seed: int = SAMPLES_SEED,
) -> Reference:
    """Samples unconditionally, and measures the denoising errors of the samples.

    It takes `steps + 1` forward evaluations for each sample, as many as an assessment, and up to
    22 for each of 16 samples, or 24 if the constraint is not linear.

    Arguments:
        denoiser: The denoiser; a :class:`Network` counts the evaluations.
        shape: The shape of one sample.
        constraint: The constraint whose residuals are to be known; None for none.
        size: The number of unconditional samples, at least 16.
        steps: The number of their diffusion steps; None for as many as the schedule needs, which
            are some 16.
        levels: The noise levels, in units of the data's scale. Those that the schedule does not
            reach are replaced by its ends.
        pairs: The number of pairs of opposite noises; None for 2 if a sample has fewer than 64
            elements, else 1.
        dtype: The type of the members to be tested.
        device: Where they are; None for where the denoiser is.
        member: The index of the member under whose conditions to sample.
        chunk: How many states may go through the denoiser at a time; None for `size`.
        seed: The seed of the samples.

    Raises:
        UnseenError: If fewer than 16 samples are finite.
        SamplingError: If a step fails.
    """
    network, shape = _network(denoiser), shape_of(shape)
    size = whole("size", size, FEWEST)
    device = device or device_of(network.denoiser)
    sampler = Ancestral(network, spacing="noise")
    sampler = replace(sampler, steps=_steps(sampler) if steps is None else steps)
    directions = _directions(shape, pairs, dtype).to(device)
    between = 2 * (2 + len(BENT_LEVELS)) + 3 * len(AFFINE_LEVELS) + 2 + 2
    each = sampler.steps + 1 + len(levels) * len(directions)
    current().expect(size * each + BENT_SIZE * between)
    found, told, errors, moves = [], [], [], []
    for ids in torch.arange(size).split(chunk or size):
        noise = MemberNoise(seed, ids.tolist(), shape, dtype=dtype, device=device)
        with calling([member] * len(ids), device):
            x, r, e, gaps = _unconditional(sampler, noise, constraint)
        found.append(x)
        told.append(r)
        errors.append(e)
        moves.append(gaps)
    x, r, e = torch.cat(found), torch.cat(told, dim=1), torch.cat(errors, dim=1)
    x, r, e = x[finite(x)], r[:, finite(x)], e[:, finite(x)]
    if len(x) < FEWEST:
        raise UnseenError(
            f"{size - len(x)} of {size} unconditional samples are not finite, so that members "
            "cannot be compared with them; test the denoiser with `python -m feasibly check`."
        )
    ends = tuple(sampler.noise_level(torch.tensor(t)) for t in (0.0, 1.0))
    unit = _least_unit(x, ends[0])
    times, reached = _times(sampler, [unit * level for level in levels], x)
    ids = torch.full((len(x),), member, device=device)
    (t, *_), (s, *_) = _times(sampler, [unit], x)
    x_t = network.schedule(t)[0] * (x[:1] + s * directions[:1])
    with calling(ids[:1], device):
        probe = Probe(x_t, t, network(x_t, t))
    log_e = _log(_errors(network, x, ids, times, reached, directions, chunk))
    bent_levels = [unit * level for level in (FINE_LEVEL, THIN_LEVEL, *BENT_LEVELS)]
    bent_levels += [_unit(x) * level for level in BENT_LEVELS if _unit(x) > unit]
    missed, varied = _bends(sampler, x[:BENT_SIZE], ids[:BENT_SIZE], bent_levels, chunk)
    _, thin, *bends = _shares(missed.mean(dim=1), varied.mean(dim=1)).tolist()
    return Reference(
        samples=x,
        unit=unit,
        levels=reached,
        times=times,
        noise=directions,
        location=log_e.mean(dim=0),
        scale=log_e.std(dim=0).clamp_min(SPREAD),
        limit=max(LEAST, tail_limit(_left_out(log_e))),
        probe=probe,
        ends=(ends[0], ends[1]),
        informed=math.inf if constraint is None else _informed(sampler, r),
        bent=max(bends),
        thin=thin,
        affine=_affine(sampler, x[:BENT_SIZE], ids[:BENT_SIZE], unit, chunk),
        curved=_shares(missed, varied).max().item(),
        drift=_drift(sampler, x[:BENT_SIZE], ids[:BENT_SIZE], [unit, ends[1]], chunk),
        dimensions=_dimensions(sampler, e),
        moments=getattr(network.denoiser, "data_moments", None),
        settles=network.settles,
        unmoved=unmoved(torch.cat(moves, dim=1)),
        estimates=None
        if constraint is None or constraint.linear
        else _twice(sampler, x[:BENT_SIZE], ids[:BENT_SIZE], unit, chunk),
    )


def _network(denoiser: Any) -> Network:
    return denoiser if isinstance(denoiser, Network) else Network(denoiser)


def _steps(sampler: Ancestral) -> int:
    """Returns how many steps of at most :data:`STRIDE` a schedule has."""
    low, high = sampler.log_level(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    return math.ceil((high - low) / STRIDE)


def _unconditional(
    sampler: Ancestral, noise: MemberNoise, constraint: Constraint | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns samples of the prior, with shape (B, *), NaN for those that failed; the residuals
    of the estimates at each step and of the samples, with shape (T + 1, B, m); the squared errors
    of the estimates, with shape (T, B); and how far they are from the states; see
    :func:`feasibly.checks.coverage.unmoved`."""
    x_t, times, memory, *_ = sampler.begin(noise)
    x_0, good = x_t, finite(x_t)
    told, kept, gaps, some = [], [], Gaps(), _some(math.prod(noise.shape), x_t.device)
    for t, s in pairwise(times):
        try:
            x_s, x_0, memory = sampler.step(x_t, t, s, noise, memory)
        except Exception as error:
            where = f"An unconditional sample, at sigma = {sampler.noise_level(t):.3g},"
            raise failure(where, error, len(x_t)) from error
        alpha_t, sigma_t = sampler.denoiser.schedule(t)
        gaps.add((alpha_t * x_0 - x_t) / sigma_t)
        good &= finite(x_s) & finite(x_0)
        x_t = torch.where(per_sample(good, x_s), x_s, 0.0)  # raises no errors in the network
        told.append(_residual(constraint, x_0, good))
        kept.append(x_0.flatten(start_dim=1)[:, some].double())
    x_0 = sampler.read(x_t, x_0, times[-1])
    told.append(_residual(constraint, x_0, good))
    last = x_0.flatten(start_dim=1)[:, some].double()
    errors = math.prod(noise.shape) * (torch.stack(kept) - last).square().mean(dim=2)
    x_0 = torch.where(per_sample(good, x_0), x_0, torch.nan)
    return x_0, torch.stack(told), errors, gaps.all


def _some(size: int, device: torch.device) -> Tensor | slice:
    """Returns which elements of samples of a size tell the dimension: all, or some at random."""
    if size <= ELEMENTS:
        return slice(None)
    return torch.randint(size, (ELEMENTS,), generator=generator(ELEMENTS_SEED)).to(device)


def _residual(constraint: Constraint | None, x_0: Tensor, good: Tensor) -> Tensor:
    if constraint is None:
        return x_0.new_zeros((len(x_0), 0))
    return constraint.residual(torch.where(per_sample(good, x_0), x_0, 0.0))


def _informed(sampler: Ancestral, r: Tensor) -> float:
    """Returns the highest noise level at which estimates tell a residual; see
    :class:`Reference`."""
    *estimates, final = r.double()
    variance = final.var(dim=0)
    for t, told in zip(sampler.times(), estimates, strict=False):
        missed = (told - final).square().mean(dim=0)
        if (missed < UNTOLD * variance).any():
            return sampler.noise_level(t)
    return math.inf


def _dimensions(sampler: Ancestral, errors: Tensor) -> tuple[tuple[float, float], ...]:
    """Returns the effective dimension of the data at each noise level, given the squared errors
    of estimates, with shape (T, N); see :class:`Reference`."""
    levels = [sampler.noise_level(t) for t in sampler.times()[:-1]]
    return tuple((s, e / s**2) for s, e in zip(levels, errors.mean(dim=1).tolist(), strict=True))


def _bends(
    sampler: Ancestral, x: Tensor, ids: Tensor, levels: Sequence[float], chunk: int | None
) -> tuple[Tensor, Tensor]:
    """Returns the mean squares of how far the estimates of states between two others are from the
    mean of theirs, and of what they vary by, for each level and element, both with shape (L, D);
    see :class:`Reference`."""
    noise = MemberNoise(BENT_SEED, range(len(x)), x.shape[1:], dtype=x.dtype, device=x.device)
    missed, varied = [], []
    for level in levels:
        (t,), (s,) = _times(sampler, [level], x)
        alpha_t, _ = sampler.denoiser.schedule(t)
        x_t = alpha_t * (x + s * noise())
        states = torch.cat([x_t, (x_t + x_t.roll(1, 0)) / 2])
        ends, between = _estimates(sampler, states, t, ids.repeat(2), chunk).chunk(2)
        missed.append(((ends + ends.roll(1, 0)) / 2 - between).square().mean(dim=0))
        varied.append(((ends - ends.roll(1, 0)) / 2).square().mean(dim=0))
    return torch.stack(missed), torch.stack(varied)


def _affine(sampler: Ancestral, x: Tensor, ids: Tensor, unit: float, chunk: int | None) -> float:
    """Returns the highest noise level up to which the estimate of a state between two is the mean
    of theirs, where these are of one sample; see :class:`Reference`."""
    noise = MemberNoise(AFFINE_SEED, range(len(x)), x.shape[1:], dtype=x.dtype, device=x.device)
    found = 0.0
    for level in AFFINE_LEVELS:
        (t,), (s,) = _times(sampler, [unit * level], x)
        alpha_t, _ = sampler.denoiser.schedule(t)
        one, other = (alpha_t * (x + s * noise()) for _ in range(2))
        states = torch.cat([one, other, (one + other) / 2])
        one, other, between = _estimates(sampler, states, t, ids.repeat(3), chunk).chunk(3)
        missed = ((one + other) / 2 - between).square().mean(dim=1)
        varied = ((one - other) / 2).square().mean(dim=1)
        if (_shares(missed, varied) <= AFFINE).double().mean() < AFFINE_SHARE:
            break
        found = unit * level
    return found


def _drift(
    sampler: Ancestral, x: Tensor, ids: Tensor, levels: Sequence[float], chunk: int | None
) -> float:
    r"""Returns how far the estimates at the highest of some noise levels are from those at the
    lowest, relative to what they vary by; see :class:`Reference`.

    States that follow on :math:`x_t` have the mean :math:`E[x_s \mid x_t]`, and estimates do not
    change on average, :math:`E[d(x_s) \mid x_t] = d(x_t)`. So an affine denoiser has the same
    estimate there. One that is told a wrong noise level has not, nor one whose rounding errors
    grow with the noise.
    """
    noise = MemberNoise(DRIFT_SEED, range(len(x)), x.shape[1:], dtype=x.dtype, device=x.device)
    times, reached = _times(sampler, levels, x)
    (alpha_s, _), (alpha_t, _) = (sampler.denoiser.schedule(t) for t in (times[0], times[-1]))
    x_t = x + reached[-1].to(x) * noise()
    first = _estimates(sampler, alpha_t * x_t, times[-1], ids, chunk)
    mean = torch.lerp(first, x_t.flatten(1).double(), (reached[0] / reached[-1]) ** 2)
    last = _estimates(sampler, alpha_s * mean.reshape(x.shape).to(x), times[0], ids, chunk)
    varied = first.var(dim=0).sum()
    return float(_shares((last - first).square().mean(dim=0).sum(), varied))


def _twice(sampler: Ancestral, x: Tensor, ids: Tensor, level: float, chunk: int | None) -> Tensor:
    """Returns two estimates of each sample, from states at a noise level; see
    :class:`Reference`."""
    noise = MemberNoise(TWICE_SEED, range(len(x)), x.shape[1:], dtype=x.dtype, device=x.device)
    (t,), (s,) = _times(sampler, [level], x)
    alpha_t, _ = sampler.denoiser.schedule(t)
    states = torch.cat([alpha_t * (x + s * noise()) for _ in range(2)])
    found = _estimates(sampler, states, t, ids.repeat(2), chunk)
    return found.to(x.dtype).reshape(2, *x.shape)


def _estimates(
    sampler: Ancestral, states: Tensor, t: Tensor, ids: Tensor, chunk: int | None
) -> Tensor:
    """Returns the denoiser's estimates of states, in float64 with shape (B, D)."""
    found, size = [], chunk or SIZE
    for one, part in zip(states.split(size), ids.split(size), strict=True):
        with calling(part, states.device):
            found.append(sampler.denoiser(one, t))
    return torch.cat(found).double().flatten(start_dim=1)


def _shares(missed: Tensor, varied: Tensor) -> Tensor:
    """Returns the first in units of the second; 0 where both are, and infinity for NaN."""
    share = torch.where(missed > 0, missed / varied, missed)
    return share.nan_to_num(math.inf)


def _unit(x: Tensor) -> float:
    """Returns the data's scale. Medians keep it from far and few samples or modes."""
    centre = x.median(dim=0).values
    return (x - centre).double().flatten(start_dim=1).square().mean(dim=1).median().sqrt().item()


def _least_unit(x: Tensor, lowest: float) -> float:
    """Returns the data's scale, or that of the smallest channel above the lowest noise level, if
    channels are unlike."""
    values = channels(x).values
    each = [_unit(values[:, k]) for k in range(values.shape[1])]
    least = min((unit for unit in each if unit > lowest), default=math.inf)
    return least if max(each) > UNLIKE * least else _unit(x)


def _times(sampler: Ancestral, wanted: Sequence[float], like: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the times of noise levels and those levels, as far as the schedule has them."""
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=like.device)
    lowest, highest = sampler.log_level(ends).exp().tolist()
    distinct = sorted({min(max(level, lowest), highest) for level in wanted})
    levels = torch.tensor(distinct, dtype=torch.float64, device=like.device)
    times = sampler.times_at(levels.log()).to(like.dtype)
    return times, sampler.log_level(times).exp()


def _directions(shape: Sequence[int], pairs: int | None, dtype: torch.dtype) -> Tensor:
    r"""Returns pairs of opposite noises, with shape (M, *).

    They are of norm :math:`\sqrt{D}` and orthogonal, which leaves less to chance than
    independent ones.
    """
    size = math.prod(shape)
    pairs = min(size, pairs or (PAIRS_SMALL if size < SMALL else PAIRS_LARGE))
    n = torch.randn(size, pairs, generator=generator(NOISE_SEED), dtype=torch.float64)
    n = math.sqrt(size) * torch.linalg.qr(n).Q.T
    return torch.cat((n, -n)).reshape(-1, *shape).to(dtype)


def _errors(
    network: Network,
    x: Tensor,
    ids: Tensor,
    times: Tensor,
    levels: Tensor,
    noise: Tensor,
    chunk: int | None,
) -> Tensor:
    """Returns the denoising errors, with shape (B, K); infinite where one is not finite."""
    found = []
    rows = torch.arange(len(x) * len(noise), device=x.device)
    for t, s in zip(times, levels, strict=True):
        alpha_t, _ = network.schedule(t)
        squares = []
        for part in rows.split(chunk or len(x)):
            i, j = part // len(noise), part % len(noise)
            with calling(ids[i], x.device):
                d = network(alpha_t * (x[i] + s * noise[j]), t)
            squares.append(((d - x[i]) / s).double().flatten(start_dim=1).square().mean(dim=1))
        found.append(torch.cat(squares).reshape(len(x), -1).mean(dim=1))
    return torch.stack(found, dim=1).nan_to_num(math.inf)


def _log(errors: Tensor) -> Tensor:
    return (errors + SLIGHT).log()


def _standardise(log_e: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """Returns the largest standardised log-error of each sample, with shape (B)."""
    return ((log_e - location) / scale).amax(dim=1)


def _left_out(log_e: Tensor) -> Tensor:
    """Returns the same of each sample of a reference, standardised by all the others, as a new
    sample is."""
    others = len(log_e) - 1
    centred = log_e - log_e.mean(dim=0)
    location = -centred / others
    square = (centred.square().sum(dim=0) - centred.square()) / others - location.square()
    scale = (square * others / (others - 1)).clamp_min(0).sqrt().clamp_min(SPREAD)
    return _standardise(centred, location, scale)


def tail_limit(statistic: Tensor) -> float:
    r"""Returns what a new sample exceeds with probability :data:`RATE`, for exponential tails.

    Let :math:`u` be the value below the :math:`k` largest of :math:`N`, and :math:`S` the sum of
    their excesses over it. A new value exceeds :math:`u` with probability
    :math:`(k + 1) / (N + 1)`, and then :math:`u + c S` with :math:`(1 + c)^{-k}`, since the ratio
    of an exponential variable to a sum of :math:`k` such has that distribution.
    """
    size = len(statistic)
    k = size // TAIL
    largest = statistic.topk(k + 1).values
    u, excess = largest[-1], (largest - largest[-1]).sum()
    c = ((k + 1) / (size + 1) / RATE) ** (1 / k) - 1
    return (u + c * excess).item()
