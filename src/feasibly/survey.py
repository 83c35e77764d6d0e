r"""What unconditional samples show of a problem: the facts that the default chooses by.

They take some 30 forward evaluations of the network for each of 64 samples.
"""

__all__ = ["Survey", "UnseenError", "times_of"]

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from .arguments import whole
from .checks.coverage import UNLIKE, Gaps, Misfit, channels, misfits, unmoved
from .checks.readings import WORSE, compared, restores
from .constraints.base import Constraint
from .errors import DenoiserError, SamplingError
from .members import calling
from .messages import failure
from .minimizers.base import finite, per_sample
from .network import own_mode
from .problem import Problem
from .progress import current
from .randomness import MemberNoise, generator
from .samplers.ancestral import Ancestral
from .samplers.levels import rounded, scale_of

SIZE = 64
"""The number of unconditional samples."""

FEWEST = 16
"""The least number of finite samples that tell anything."""

STRIDE = 0.7
"""By how much a diffusion step may lower the logarithm of the noise level."""

WIDE, NARROW, FINE, SOME = (1.0, 3.0), 0.1, 0.01, 16
"""The noise levels at which a denoiser is compared with an affine map, in units of the data's
scale, that at which it shows whether data fill their space, one for their finer structure, and
the number of samples."""

NEARLY = 0.01
"""How far the denoiser is from an affine map, at most, if data count as nearly normal."""

AFFINE, AFFINE_LEVELS, AFFINE_SHARE = 0.005, (0.03, 0.1, 0.3, 1.0), 0.75
"""How far a denoiser may be from an affine map over what noise varies, the noise levels at which
this is tested, in units of the data's scale, and the share of samples that must pass. Others may
be near an edge of the data."""

UNTOLD = 0.9
"""The share of a component's variance that estimates may leave open where they know it."""

ELEMENTS = 4096
"""The most elements of a sample that tell the effective dimension."""

STRAIGHT, DRIFT = 1e6, 1e-4
"""How far the denoiser is from an affine map at most, in units of the square of rounding, if data
count as exactly normal, and the share of their variance by which estimates may drift. Learned
denoisers are farther from it, and few steps leave their data."""

ROUGH = 10.0
"""A residual has derivatives, as that of a differential equation has, if noise as large as the
data changes it by so many times what it varies by between samples."""

TURNED, TURNED_SAMPLES, TURNED_COMPONENTS = 0.1, 8, 16
"""The share of pairs of samples between which the gradient of a component turns by more than a
right angle, above which the solution set has several branches, and of how many samples and
components the gradients are compared."""

SAMPLES_SEED, LINE_SEED, AFFINE_SEED, ELEMENTS_SEED, DRIFT_SEED, NOISY_SEED = (
    2**32 - k for k in (2, 4, 7, 8, 10, 11)
)
"""The seeds of the samples and of the noises, which no ensemble has."""


class UnseenError(SamplingError):
    """Too few unconditional samples are finite."""


@dataclass(frozen=True, eq=False, repr=False)
class Survey:
    r"""What unconditional samples show of a problem.

    Attributes:
        problem: The problem.
        samples: The unconditional samples that are finite, with shape :math:`(N, *)`.
        scale: The data's scale: the root mean square distance per element of the median sample
            from the elements' medians. It is about the standard deviation. Where channels are
            unlike, it is that of the smallest.
        informed: The highest noise level at which the denoiser's estimates explain a tenth of the
            variance of a residual component; infinite if all do. Above it the constraint says
            nothing of a state.
        nonlinearity: How far the denoiser is from an affine map at noise as large as the data or
            larger, relative to what its estimates vary by, over all elements; zero for normal
            data.
        nonlinearity_low: The same at a tenth of that noise; near zero unless data are on a curved
            surface, or are single points.
        nonlinearity_element: The same of any one element, at these noise levels and a hundredth of
            the data's scale; zero but for rounding for normal data.
        affine: The highest noise level up to which the denoiser is nearly affine over what noise
            varies, on average over elements, so that the posterior of a state is nearly Gaussian;
            0 for none. Structure finer than 0.03 of the data's scale is not seen.
        drift: How far estimates at the highest noise level are from those, at noise as large as
            the data, of the mean states that follow from them, relative to what they vary by;
            zero but for rounding if the denoiser is affine, and that of its schedule.
        dimensions: The noise levels of the unconditional samples, from the highest, each with the
            effective dimension of the data there: the mean squared error of the denoiser's
            estimates in units of the noise's variance. For data on a surface it comes to the
            surface's dimension. For normal data of variances :math:`\lambda_i` it is
            :math:`\sum_i \lambda_i / (\lambda_i + \sigma^2)`.
        unmoved: What of states the denoiser leaves as noisy as it is, in a sentence; "" if it
            denoises all of them.
        unrestored: That the denoiser does not restore unconditional samples, in a sentence; "" if
            it does, or if some of a state stays as noisy as it is.
    """

    problem: Problem
    samples: Tensor
    scale: float
    informed: float
    nonlinearity: float
    nonlinearity_low: float
    nonlinearity_element: float
    affine: float
    drift: float
    dimensions: tuple[tuple[float, float], ...]
    unmoved: str = ""
    unrestored: str = ""

    @classmethod
    @own_mode()
    def of(
        cls,
        problem: Problem,
        *,
        size: int = SIZE,
        steps: int | None = None,
        seed: int = SAMPLES_SEED,
    ) -> "Survey":
        """Samples a problem without its constraint, and measures.

        Arguments:
            problem: The problem.
            size: The number of unconditional samples, at least 16.
            steps: The number of their diffusion steps; None for as many as the schedule needs,
                which are some 16.
            seed: The seed of the samples.

        Raises:
            ValueError: If `size` is less.
            UnseenError: If fewer than 16 samples are finite.
            DenoiserError: If all are equal.
            SamplingError: If a step fails.
        """
        whole("size", size, FEWEST, of="Survey.of")
        constraint, batch = problem.constraint, problem.batch_size
        sampler = Ancestral(spacing="noise", problem=problem)
        sampler = replace(sampler, steps=_steps(sampler) if steps is None else steps)
        between = 2 * (2 + len(WIDE)) + 3 * len(AFFINE_LEVELS) + 2
        current().expect(size * (sampler.steps + 2 + len(WIDE)) + SOME * between)
        found, told, errors, moves = [], [], [], []
        for ids in torch.arange(size).split(batch or size):
            noise = problem.noise(seed, ids.tolist())
            with calling([0] * len(ids), problem.device):
                x, r, e, gaps = _unconditional(sampler, noise, constraint)
            found.append(x)
            told.append(r)
            errors.append(e)
            moves.append(gaps)
        x, r, e = torch.cat(found), torch.cat(told, dim=1), torch.cat(errors, dim=1)
        x, r, e = x[finite(x)], r[:, finite(x)], e[:, finite(x)]
        if len(x) < FEWEST:
            raise UnseenError(
                f"{size - len(x)} of {size} unconditional samples are not finite, which leaves "
                "too few to compare samples with; test the denoiser with `python -m feasibly "
                "check`."
            )
        if not (x != x[0]).any():
            raise DenoiserError(
                f"All {len(x)} unconditional samples are equal. The denoiser's estimate does not "
                "depend on the state: is the network trained, and does it receive x_t?"
            )
        idle = unmoved(torch.cat(moves, dim=1))
        unit = _least_unit(x, problem.ends[0])
        levels = [unit * level for level in (FINE, NARROW, *WIDE)]
        if (typical := scale_of(x)) > unit:
            levels += [typical * level for level in WIDE]
        some = x[:SOME]
        ids = torch.zeros(len(some), dtype=torch.long, device=problem.device)
        missed, varied = _bends(sampler, some, ids, levels, batch)
        _, low, *high = _shares(missed.mean(dim=1), varied.mean(dim=1)).tolist()
        return cls(
            problem=problem,
            samples=x,
            scale=unit,
            informed=math.inf if constraint is None else _informed(sampler, r),
            nonlinearity=max(high),
            nonlinearity_low=low,
            nonlinearity_element=_shares(missed, varied).max().item(),
            affine=_affine(sampler, some, ids, unit, batch),
            drift=_drift(sampler, some, ids, [unit, problem.ends[1]], batch),
            dimensions=_dimensions(sampler, e),
            unmoved=idle,
            unrestored="" if idle else _unrestored(sampler, x, levels[1:], batch),
        )

    def __str__(self) -> str:
        normal = "nearly normal" if self.nearly_normal else "not normal"
        return (
            f"{len(self.samples)} unconditional samples: scale {self.scale:.2g}, spread "
            f"{self.spread:.2g}; data {normal} (nonlinearity {self.nonlinearity:.2g}, and "
            f"{self.nonlinearity_low:.2g} at a tenth of the noise); denoiser affine up to noise "
            f"level {self.affine:.2g}; constraint informative below noise level "
            f"{self.informed:.2g}"
        )

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest noise level of the schedule."""
        return self.problem.ends

    @property
    def spread(self) -> float:
        """The standard deviation of samples, of which modes far apart are a part."""
        return self.samples.double().var(dim=0).mean().sqrt().item()

    @property
    def whole(self) -> float:
        """The data's scale over all elements, even where channels are unlike."""
        return scale_of(self.samples)

    @property
    def widest(self) -> float:
        """The standard deviation of samples along the direction in which it is largest."""
        x = self.samples
        apart = (x - x.mean(dim=0)).flatten(start_dim=1)
        largest = torch.linalg.eigvalsh((apart @ apart.mT).double())[-1]
        return (largest / (len(x) - 1)).sqrt().item()

    @property
    def units(self) -> tuple[float, ...]:
        """The standard deviations of channels that are unlike; empty if they are alike."""
        stds = channels(self.samples).values.var(dim=0).mean(dim=1).sqrt()
        stds = stds.clamp_min(1e-6 * stds.max())  # constant ones
        return tuple(map(rounded, stds.tolist())) if stds.max() > UNLIKE * stds.min() else ()

    @property
    def growing_dimensions(self) -> tuple[tuple[float, int], ...]:
        """The noise levels, from the highest, at which the dimension of the data grows, with the
        dimension as a whole number."""
        found: list[tuple[float, int]] = []
        for level, number in self.dimensions:
            if round(number) > (found[-1][1] if found else 0):
                found.append((rounded(level), round(number)))
        return tuple(found)

    @property
    def nearly_normal(self) -> bool:
        """Whether the denoiser is nearly affine over all elements. Modes that lie apart along thin
        directions show at low noise only."""
        return max(self.nonlinearity, self.nonlinearity_low) <= NEARLY

    def on_surface(self, level: float, most: float) -> bool:
        """Whether data have fewer than so many dimensions up to a noise level."""
        below = [number for at, number in self.dimensions if at <= level]
        return len(below) > 0 and max(below) < most

    def is_normal(self, constraint: Constraint) -> bool:
        """Whether data are exactly normal, and the constraint is linear: few steps of posterior
        samples are then exact."""
        rounding = torch.finfo(self.samples.dtype).eps
        straight = self.nonlinearity_element <= STRAIGHT * rounding**2 and self.drift <= DRIFT
        return constraint.linear and straight and not any(self.misfits())

    def misfits(self) -> Iterator[Misfit]:
        """Yields how noise levels do not fit unconditional samples."""
        network = self.problem.denoiser
        moments = getattr(network.denoiser, "data_moments", None)
        for found in misfits(self.ends, self.samples, moments, what="unconditional samples"):
            if not (found.of_mean and network.settles):
                yield found

    @torch.no_grad()
    def amplified_by(self, constraint: Constraint) -> bool:
        """Whether residual components amplify what is not in the data, by their median."""
        part = constraint.equalities or constraint.noisy
        if part is None:
            return False
        x, rng = self.samples, torch.Generator().manual_seed(0)
        noise = self.scale * torch.randn(x.shape, generator=rng).to(x)
        with calling([0], x.device):
            r, moved = part.residual(x), part.residual(x + noise)
        change = (moved - r).square().nanmedian(dim=0).values.sqrt()
        return (change > ROUGH * r.std(dim=0)).double().mean().item() > 0.5

    @torch.no_grad()
    def distance(self, constraint: Constraint) -> float:
        """Returns how far samples are from a constraint, on average and in standard deviations of
        its values, for the one that is farthest."""
        if constraint.differs:  # the targets of the others are not known
            return 0.0
        g = constraint.intervals(self.samples)
        mean, std = g.values.double().mean(dim=0), g.values.double().std(dim=0)
        low, high = (bound.double().mean(dim=0) for bound in (g.lower, g.upper))
        near = torch.maximum(low - mean, mean - high)
        return (near / std).nan_to_num(0.0, 0.0, 0.0).max().item()

    def turns(self, constraint: Constraint) -> bool:
        """Whether gradients of residual components turn by more than a right angle between
        samples, so that the solution set has several branches."""
        if constraint.linear:
            return False
        with calling([0], self.samples.device):
            g = _gradients(constraint, self.samples[:TURNED_SAMPLES])
        turned = g @ g.mT < 0  # never with itself, nor where a gradient is zero
        n = g.shape[1]
        return turned.double().sum().item() > TURNED * len(g) * n * (n - 1)


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
            where = f"Unconditional sampling, at sigma = {sampler.noise_level(t):.3g},"
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
    :class:`Survey`."""
    *estimates, final = r.double()
    variance = final.var(dim=0)
    for t, told in zip(sampler.times(), estimates, strict=False):
        missed = (told - final).square().mean(dim=0)
        if (missed < UNTOLD * variance).any():
            return sampler.noise_level(t)
    return math.inf


def _dimensions(sampler: Ancestral, errors: Tensor) -> tuple[tuple[float, float], ...]:
    """Returns the effective dimension of the data at each noise level, given the squared errors
    of estimates, with shape (T, N); see :class:`Survey`."""
    levels = [sampler.noise_level(t) for t in sampler.times()[:-1]]
    return tuple((s, e / s**2) for s, e in zip(levels, errors.mean(dim=1).tolist(), strict=True))


def _bends(
    sampler: Ancestral, x: Tensor, ids: Tensor, levels: Sequence[float], batch: int | None
) -> tuple[Tensor, Tensor]:
    """Returns the mean squares of how far the estimates of states between two others are from the
    mean of theirs, and of what they vary by, for each level and element, both with shape (L, D);
    see :class:`Survey`."""
    noise = MemberNoise(LINE_SEED, range(len(x)), x.shape[1:], dtype=x.dtype, device=x.device)
    missed, varied = [], []
    for level in levels:
        (t,), (s,) = times_of(sampler, [level], x)
        alpha_t, _ = sampler.denoiser.schedule(t)
        x_t = alpha_t * (x + s * noise())
        states = torch.cat([x_t, (x_t + x_t.roll(1, 0)) / 2])
        ends, between = _estimates(sampler, states, t, ids.repeat(2), batch).chunk(2)
        missed.append(((ends + ends.roll(1, 0)) / 2 - between).square().mean(dim=0))
        varied.append(((ends - ends.roll(1, 0)) / 2).square().mean(dim=0))
    return torch.stack(missed), torch.stack(varied)


def _affine(sampler: Ancestral, x: Tensor, ids: Tensor, unit: float, batch: int | None) -> float:
    """Returns the highest noise level up to which the estimate of a state between two is the mean
    of theirs, where these are of one sample; see :class:`Survey`."""
    noise = MemberNoise(AFFINE_SEED, range(len(x)), x.shape[1:], dtype=x.dtype, device=x.device)
    found = 0.0
    for level in AFFINE_LEVELS:
        (t,), (s,) = times_of(sampler, [unit * level], x)
        alpha_t, _ = sampler.denoiser.schedule(t)
        one, other = (alpha_t * (x + s * noise()) for _ in range(2))
        states = torch.cat([one, other, (one + other) / 2])
        one, other, between = _estimates(sampler, states, t, ids.repeat(3), batch).chunk(3)
        missed = ((one + other) / 2 - between).square().mean(dim=1)
        varied = ((one - other) / 2).square().mean(dim=1)
        if (_shares(missed, varied) <= AFFINE).double().mean() < AFFINE_SHARE:
            break
        found = unit * level
    return found


def _drift(
    sampler: Ancestral, x: Tensor, ids: Tensor, levels: Sequence[float], batch: int | None
) -> float:
    r"""Returns how far the estimates at the highest of some noise levels are from those at the
    lowest, relative to what they vary by; see :class:`Survey`.

    States that follow on :math:`x_t` have the mean :math:`E[x_s \mid x_t]`, and estimates do not
    change on average, :math:`E[d(x_s) \mid x_t] = d(x_t)`. So an affine denoiser has the same
    estimate there. One that is told a wrong noise level has not, nor one whose rounding errors
    grow with the noise.
    """
    noise = MemberNoise(DRIFT_SEED, range(len(x)), x.shape[1:], dtype=x.dtype, device=x.device)
    times, reached = times_of(sampler, levels, x)
    (alpha_s, _), (alpha_t, _) = (sampler.denoiser.schedule(t) for t in (times[0], times[-1]))
    x_t = x + reached[-1].to(x) * noise()
    first = _estimates(sampler, alpha_t * x_t, times[-1], ids, batch)
    mean = torch.lerp(first, x_t.flatten(1).double(), float(reached[0] / reached[-1]) ** 2)
    last = _estimates(sampler, alpha_s * mean.reshape(x.shape).to(x), times[0], ids, batch)
    varied = first.var(dim=0).sum()
    return float(_shares((last - first).square().mean(dim=0).sum(), varied))


def _unrestored(sampler: Ancestral, x: Tensor, levels: Sequence[float], batch: int | None) -> str:
    """Says at which noise level the denoiser's estimates of unconditional samples are worse than a
    guess, or of another scale; nothing if they are not. What was stated for the network is then
    wrong, such as its schedule. Estimates that are not finite are left out."""
    noise = MemberNoise(NOISY_SEED, range(len(x)), x.shape[1:], dtype=x.dtype, device=x.device)
    ids = torch.zeros(len(x), dtype=torch.long, device=x.device)
    shape = len(x), channels(x).values.shape[1], -1
    for t, s in zip(*times_of(sampler, levels, x), strict=True):
        alpha_t, _ = sampler.denoiser.schedule(t)
        state = x + s.to(x) * noise()
        x_hat = _estimates(sampler, alpha_t * state, t, ids, batch)
        good = finite(x_hat)
        if int(good.sum()) < FEWEST:
            continue
        x_hat, clean, state = (v.double().reshape(shape)[good] for v in (x_hat, x, state))
        _, ratio, sure, slope = compared(x_hat, clean, state)
        if not restores(sure, slope):
            how = f"off in scale by a factor of {slope:.2g}"
            if sure > WORSE:
                how = f"{ratio:.2g} times as far off as a guess"
            fix = "pass clean samples as feasibly.wrap(..., data=...), which tests it"
            if getattr(sampler.denoiser.denoiser, "data_moments", None) is not None:
                fix = "test it on clean samples by feasibly.self_test"
            return (
                "The denoiser does not restore unconditional samples of its own: at noise level "
                f"sigma = {s:.2g} its estimates are {how}. What was stated for the network may be "
                f"wrong, such as its kind, schedule, time or conditions: {fix}."
            )
    return ""


def _estimates(
    sampler: Ancestral, states: Tensor, t: Tensor, ids: Tensor, batch: int | None
) -> Tensor:
    """Returns the denoiser's estimates of states, in float64 with shape (B, D)."""
    found, size = [], batch or SIZE
    for one, part in zip(states.split(size), ids.split(size), strict=True):
        with calling(part, states.device):
            found.append(sampler.denoiser(one, t))
    return torch.cat(found).double().flatten(start_dim=1)


def _shares(missed: Tensor, varied: Tensor) -> Tensor:
    """Returns the first in units of the second; 0 where both are, and infinity for NaN."""
    share = torch.where(missed > 0, missed / varied, missed)
    return share.nan_to_num(math.inf)


def _least_unit(x: Tensor, lowest: float) -> float:
    """Returns the data's scale, or that of the smallest channel above the lowest noise level, if
    channels are unlike."""
    values = channels(x).values
    each = [scale_of(values[:, k]) for k in range(values.shape[1])]
    least = min((unit for unit in each if unit > lowest), default=math.inf)
    return least if max(each) > UNLIKE * least else scale_of(x)


def times_of(sampler: Ancestral, wanted: Sequence[float], like: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the times of noise levels and those levels, as far as the schedule has them."""
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=like.device)
    lowest, highest = sampler.log_level(ends).exp().tolist()
    distinct = sorted({min(max(level, lowest), highest) for level in wanted})
    levels = torch.tensor(distinct, dtype=torch.float64, device=like.device)
    times = sampler.times_at(levels.log()).to(like.dtype)
    return times, sampler.log_level(times).exp()


def _gradients(constraint: Constraint, samples: Tensor) -> Tensor:
    """Returns the gradients of some components at samples, with shape (components, samples, D)."""
    found = []
    for x in samples.split(1):  # a decoder takes one at a time
        z = x.detach().requires_grad_()
        with torch.enable_grad():
            r = constraint.residual(z)[0]
            some = torch.randperm(len(r), generator=torch.Generator().manual_seed(0))
            values = [r[i] for i in some[:TURNED_COMPONENTS].tolist()]
            found.append([torch.autograd.grad(v, z, retain_graph=True)[0] for v in values])
    return torch.stack([torch.cat(one) for one in found], dim=1).double().flatten(start_dim=2)
