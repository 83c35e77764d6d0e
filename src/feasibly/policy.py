"""Which samplers a problem gets, and why: every threshold is here."""

__all__ = [
    "CHOICES",
    "Plan",
    "check_method",
    "choose",
    "differentiates",
    "level_remarks",
    "remarks",
]

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from .checks.coverage import UNLIKE, Misfit, channels, misfits
from .checks.derivatives import roughness
from .constraints.base import Constraint, Intervals
from .constraints.composite import without_inequalities
from .constraints.decoded import is_decoded
from .metrics import is_outlying
from .minimizers import GaussNewton, Minimizer, WarmLBFGS
from .network import Evaluations, Network
from .progress import duration, work
from .samplers import METHODS, PPR, Ancestral, CalibratedPPR, Particles, Sampler, TruncatedPPR
from .samplers.particles import ALONE, Levels
from .sampling import Problem

WEIGHED, WEIGHED_MANY = 12, 32
"""Up to so many residuals particles are weighted, which takes a gradient for each: up to the
second number where data are not normal. More are met by posterior samples."""

BENT, THIN = 0.01, 0.1
"""How far the denoiser is from an affine map, above which data are not normal, and how far at a
tenth of the noise, above which they do not fill their space. Posterior samples
are exact for normal data, and better than a few particles on thin ones. They take less."""

LOCAL = 0.02
"""How far any one element of the denoiser is from an affine map, above which a run warns that data
are not normal. A local mode hardly shows in the average over elements."""

PARTICLES = 2
"""The number of particles that a trajectory begins with. There are more where weights vary."""

ERROR_FAST = 0.2
"""The standard error of weights with `fast`."""

BEGUN, WEIGHED_FROM = 2.0, 2.0
"""Particles are weighted from so many times the highest noise level at which the denoiser's
estimates tell a residual, and from the data's scale at least. They part from each other at so
many times that level."""

EVERY = 2
"""How many steps of particles there are to a gradient of each value."""

DRAWN = 0.05
"""The noise level at which samples are drawn from them, in units of the data's scale. Below it,
weights vary little."""

STUCK = 50
"""The iterations of a last projection, which is not bounded. A member takes them only if it does
not get there: it is then at a point that iterations do not leave."""

TURNED = 0.1
"""The share of pairs of unconditional samples between which the gradient of a value turns by more
than a right angle. Above it, values such as sines have several branches. Posterior samples follow
one gradient, and so take wrong branches; PPR is nearer."""

TURNED_SAMPLES, TURNED_VALUES = 8, 16
"""Of how many samples and values the gradients are compared."""

SHARE, SIGMA_SHARE = 0.03, 0.5
"""Where gradients turn, projections of PPR may stop at this share of their first squared residual,
up to this noise level, for data of unit variance. Branches are decided above it."""

STEPS_BRANCHES_FAST = 48
"""The number of PPR's steps there with `fast`. On the exact problems members are as near as in all
steps, and nearer than with fewer iterations of each projection at as much work."""

LONGER_CLEAR = 3
"""Where estimates at noise as large as the data tell the branches, projections stop early from
that noise level down. Steps below it are so many times as long."""

TURNED_CLEAR = 0.03
"""If at most this share of gradients turns between two estimates of a sample, they tell its
branch."""

CALIBRATED = 1
"""How many attempts take posterior samples, under many residuals. The others are PPR's: where one
posterior sample leaves the data, so do most."""

FEW = 8
"""Up to so many residuals cut out a surface, which is found late and at once. More say something
of the sample at higher noise already, and take more work to satisfy."""

SIGMA_MAX_FEW, SIGMA_MAX_MANY = 0.75, 10.0
"""The noise level at which PPR begins to project, for data of unit variance."""

ORDINARY = 5.0
"""Data whose standard deviation is less than so many times larger or smaller than one count as of
unit variance."""

STEPS_FEW, STEPS_MANY = 32, 64
"""The number of PPR's diffusion steps."""

ITERATIONS_FEW, ITERATIONS_MANY = 2, 16
"""The iterations of a projection, by Gauss-Newton for few residuals, by L-BFGS for many."""

FAST_FEW, FAST_MANY = 1, 11
"""The same with `fast`."""

LAST = 10
"""How many times as many iterations the last projection may take, for many residuals. Only members
that are not feasible yet take them."""

STEPS_CALIBRATED, STEPS_FAST, TOP = 36, 24, 5.0
"""The number of steps of posterior samples over all noise levels; that with `fast`; and the level
to which the first step goes, in units of the data's standard deviation along their widest
direction. Above it states say little of the data, and the other steps are left out."""

SPARSE = 0.1
"""The noise level below which steps are twice as long, in units of the data's scale. Under linear
values it is the level up to which the denoiser is nearly affine, if that is higher. Steps that a
user asks for are all taken."""

SURFACE, LONGER_SURFACE, PRODUCTS_SURFACE = 3.0, 8, 1
"""Data lie on a surface if they have fewer than so many dimensions up to that level. Under exact
values steps are then so many times as long there, and the square root takes so many products. Such
a posterior is as wide as the noise along the surface, and has no width across it. So the solver
takes no more products than there are dimensions. Of other data narrow directions count too: where
a part of a smooth field is known, they tell the rest."""

FLOOR_LINEAR = 1e-4
"""The least eigenvalue that the solver takes of the covariance of exact linear values, relative to
the largest, where data lie on no such surface."""

STRAIGHT = 1e6
"""How far the denoiser is from an affine map at most, in units of the square of rounding, if data
count as exactly normal. Few steps of posterior samples are then enough. Learned denoisers are
farther from it, and few steps leave their data."""

DRIFT = 1e-4
"""The share of their variance by which estimates may drift from the highest noise level to the
data's scale, for few steps to be enough: they take each estimate for right."""

STRIDE_NORMAL, TOP_NORMAL = 16.0, 0.3
"""How many times lower the next noise level of such samples is at most, and the level to which the
first step goes, in units of the data's scale."""

ITERATIONS_NORMAL, FLOOR_NORMAL = 64, 1e-5
"""The most iterations of their solver, and the least eigenvalue that it takes of the covariance of
exact values."""

ROUGH, STRIDE_ROUGH, FLOOR_ROUGH = 10.0, 3.0, 1e-6
"""A residual has derivatives, as that of a differential equation has, if noise as large as the
data changes it by so many times what it varies by between samples. Samples come from the reverse
diffusion then, as for normal data, with levels at most so many times apart, and the solver takes
eigenvalues down to the third number."""

ITERATIONS_NOISE = 32
"""The most iterations of the solver under noise, of other data."""

ATTEMPTS = 4
"""How often a member is sampled, at most, under equalities."""

ATTEMPTS_INSIDE = 6
"""The same under inequalities alone. All but the last two attempts sample the prior."""

SEEN = 2
"""How many of the unconditional samples must be inside for the prior to be sampled."""

ENOUGH, TRIES = 3.0, 64
"""How many samples a member has inside on average, if it samples the prior so often: all members
but one in 20 then have one. There are no more tries than the second number."""

PROJECTED = 2
"""How many of the last attempts meet the inequalities too. They are two, so that one that fails
does not leave a member infeasible."""

SHARED = ("steps", "spacing", "eta", "output")
"""The options that attempts of the prior take over."""

MET = 0.5
"""The share of unconditional samples above which an equality asks for nothing if they meet it."""


UNITS = 1e-4
"""A typical residual smaller than this is in other units than one."""

CHOICES = (
    (
        "linear values of exactly normal data",
        "`CalibratedPPR` in few steps; `PPR` for members that fail",
    ),
    (
        f"up to {WEIGHED} equalities or values with errors, with or without inequalities",
        "`Particles`: samples are drawn by importance weights, from more particles if k-hat "
        "says so",
    ),
    (
        "inequalities that the model often satisfies",
        "unconditional samples; `Particles` for members outside",
    ),
    ("inequalities farther away", "`Particles`"),
    (
        f"{WEIGHED + 1} to {WEIGHED_MANY} equalities or values with errors, data not normal, and "
        "not thin",
        "`Particles`",
    ),
    (
        f"other cases of more than {WEIGHED} equalities whose gradients turn, such as sines",
        "`PPR`",
    ),
    (
        f"other cases of more than {WEIGHED} equalities",
        "`CalibratedPPR`; `PPR` for members that are infeasible or implausible",
    ),
    (
        f"more than {WEIGHED} equalities, and inequalities",
        "`CalibratedPPR` on the equalities; `PPR` for members outside",
    ),
    (f"more than {WEIGHED} values, some with errors", "`CalibratedPPR`"),
)
"""What `auto` runs for a constraint, in words."""


class Survey(Protocol):
    """What unconditional samples show of a problem; see :class:`feasibly.plausible.Reference`."""

    @property
    def samples(self) -> Tensor:
        """The samples, with shape (N, *)."""

    @property
    def estimates(self) -> Tensor | None:
        """Two estimates of each of some samples at noise as large as the data, with shape
        (2, B, *); None if the constraint is linear."""

    @property
    def unit(self) -> float:
        """The data's scale."""

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest noise level of the schedule."""

    @property
    def moments(self) -> tuple[Tensor, Tensor] | None:
        """The mean and the standard deviation that samples begin with; None for zero and one."""

    @property
    def settles(self) -> bool:
        """Whether samples begin at a mean of their own."""

    @property
    def unmoved(self) -> str:
        """What of states the denoiser leaves as noisy as it is, in a sentence."""

    @property
    def informed(self) -> float:
        """The highest noise level at which estimates tell a residual."""

    @property
    def bent(self) -> float:
        """How far the denoiser is from an affine map, at noise as large as the data."""

    @property
    def thin(self) -> float:
        """The same at a tenth of the noise."""

    @property
    def affine(self) -> float:
        """The highest noise level up to which it is nearly affine over what noise varies."""

    @property
    def curved(self) -> float:
        """The same of any one element, at all noise levels down to a hundredth."""

    @property
    def drift(self) -> float:
        """How far estimates drift from the highest noise level to the data's scale."""

    @property
    def dimensions(self) -> tuple[tuple[float, float], ...]:
        """Noise levels, from the highest, with the effective dimension of the data there."""


@dataclass(frozen=True)
class Plan:
    """The samplers for a problem.

    Attributes:
        attempts: The samplers, one for each attempt.
        reason: Why these, in a sentence; empty if the policy did not choose.
        survey: What unconditional samples show of the problem, which tells whether members are
            plausible; None if they were not sampled.
        evaluations: The network evaluations that it took to choose.
        remarks: What a user should know before sampling, in sentences.
        expected: The forward and backward evaluations that the first attempt is expected to take
            for a sample, tests of plausibility included.
        pace: The seconds that a forward evaluation took for a sample; 0 if none was measured.
    """

    attempts: tuple[Sampler, ...]
    reason: str = ""
    survey: Any = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    remarks: tuple[str, ...] = ()
    expected: tuple[float, float] = (0, 0)
    pace: float = 0.0

    def seconds(self, members: int) -> float:
        """Returns the seconds that so many samples are expected to take; 0 if it is not known."""
        return members * work(*self.expected) * self.pace

    def estimate(self, members: int) -> str:
        """Says what so many samples are expected to take, in a sentence."""
        forward, backward = self.expected
        words = (
            f"{members:,} samples are expected to take {forward:.0f} forward and {backward:.0f} "
            "backward evaluations of the network each, and more if they are sampled again"
        )
        if not self.pace:
            return f"{words}."
        return f"{words}: about {duration(self.seconds(members))} at the rate of the survey."


def check_method(method: Any) -> None:
    """Refuses what is neither the name of a method nor a sampler.

    Raises:
        ValueError: If it is none.
    """
    if isinstance(method, type):
        raise ValueError(
            f"{method.__name__} is a class; give its name in quotes, or a sampler, such as "
            f"{method.__name__}(denoiser, constraint)."
        )
    if not isinstance(method, Sampler) and method not in ("auto", *METHODS):
        raise ValueError(
            f"There is no method {method!r}; choose 'auto' or one of {', '.join(METHODS)}."
        )


def choose(
    denoiser: Any,
    constraint: Constraint | None,
    problem: Problem,
    /,
    method: str | Sampler = "auto",
    *,
    survey: Survey | None = None,
    attempts: int | None = None,
    fast: bool = False,
    **options: Any,
) -> Plan:
    """Returns the samplers for a problem.

    Arguments:
        denoiser: The denoiser.
        constraint: The constraint; None for none.
        problem: What a dry run shows of it.
        method: `auto`; a method's name, one of :data:`feasibly.samplers.METHODS`; or a sampler,
            which is taken as it is.
        survey: What unconditional samples show of it; None for data of unit variance.
        attempts: How often a member is sampled, at most; None for the policy's choice.
        fast: Whether to take fewer evaluations, for samples that are a little farther from the
            constrained distribution. With `auto` it means that importance weights of particles
            may have a standard error of 0.2 in place of 0.025, so that fewer particles are added.
            Posterior samples take two thirds of their steps; exactly normal data take few in any
            case. Equalities with several branches take three quarters of PPR's steps. Other
            projections of PPR take fewer iterations: half for few residuals, two thirds for many.
        options: Options of the method, which take the place of the policy's.

    Raises:
        ValueError: If there is no such method, or it has no such option.
    """
    if isinstance(method, Sampler):
        if options or fast:
            raise ValueError(
                "A sampler has its options already; set them by dataclasses.replace(sampler, ...)."
            )
        if method.constraint is not constraint:
            raise ValueError(
                f"The sampler has the constraint {method.constraint!r}, and sample() was given "
                f"another, {constraint!r}; give both the same one."
            )
        if method.denoiser.denoiser is not Network(denoiser).denoiser:
            raise ValueError(
                "The sampler has another denoiser than sample() was given; give both the same one."
            )
        return Plan((method,) * (attempts or 1))
    if fast and constraint is None:
        raise ValueError("fast=True changes nothing without a constraint. Leave fast out.")
    if method == "auto" and constraint is None:
        _known(Ancestral, options)
        sampler = Ancestral(denoiser, **options)
        return Plan((sampler,) * (attempts or 1), "There is no constraint to satisfy.")
    if method == "auto" and constraint is not None:
        values = constraint.intervals(problem.x_0)
        fills = survey is not None and survey.thin < THIN
        posed = values, problem, survey
        equal = bool((values.lower == values.upper).all())
        if equal and _takes(CalibratedPPR, options) and _normal(constraint, survey):
            return _posterior(denoiser, constraint, *posed, fast, attempts, options)
        if _weighs(values) or (_bent(survey) and fills and _many(constraint, values)):
            return _particles(denoiser, constraint, values, survey, fast, attempts, options)
        return _posterior(denoiser, constraint, *posed, fast, attempts, options)
    if method == "ppr" and constraint is not None:
        return _ppr(denoiser, constraint, problem, survey, fast, attempts, options)
    if fast:
        raise ValueError(f"fast=True is an option of 'auto' and 'ppr', not of {method!r}.")
    kind = METHODS[method]
    chosen: dict[str, Any] = {}
    if issubclass(kind, CalibratedPPR):
        chosen["minimize"] = _only(problem.residuals)
        attempts = attempts or ATTEMPTS
    _known(kind, options)
    return Plan((kind(denoiser, constraint, **(chosen | options)),) * (attempts or 1))


def differentiates(method: str | Sampler, constraint: Constraint | None) -> bool:
    """Whether a method takes gradients through the denoiser. Of what is no method it says no."""
    if isinstance(method, str) and method != "auto":
        return method in METHODS and METHODS[method].differentiates
    if method == "auto":
        return constraint is not None
    return getattr(method, "differentiates", False)


def _many(constraint: Constraint, values: Intervals) -> bool:
    """Whether particles are weighted by these values if data are not normal. Each of their many
    gradients would go through a decoder too."""
    equal, few = bool((values.lower == values.upper).all()), values.values.shape[1] <= WEIGHED_MANY
    return equal and few and not is_decoded(constraint)


def _bent(survey: Survey | None) -> bool:
    """Whether unconditional samples show that data are not normal. Modes that lie apart along thin
    directions show at low noise only."""
    return survey is not None and max(survey.bent, survey.thin) > BENT


def _normal(constraint: Constraint | None, survey: Survey | None) -> bool:
    """Whether few steps of posterior samples are enough: data are exactly normal, and the
    constraint is linear."""
    if survey is None or constraint is None or not constraint.linear:
        return False
    rounding = torch.finfo(survey.samples.dtype).eps
    straight = survey.curved <= STRAIGHT * rounding**2 and survey.drift <= DRIFT
    return straight and not any(_misfits(survey))


def _surface(survey: Survey, level: float) -> bool:
    """Whether data are on a surface of few dimensions up to a noise level."""
    below = [number for at, number in survey.dimensions if at <= level]
    return len(below) > 0 and max(below) < SURFACE


def _dimensions(survey: Survey) -> tuple[tuple[float, int], ...]:
    """Returns the noise levels, from the highest, at which the dimension of the data grows, with
    the dimension as a whole number."""
    found: list[tuple[float, int]] = []
    for level, number in survey.dimensions:
        if round(number) > (found[-1][1] if found else 0):
            found.append((_short(level), round(number)))
    return tuple(found)


def _few_steps(survey: Survey, top: float, stride: float) -> dict[str, Any]:
    """Returns the options of posterior samples that take few steps from `top` data scales on. The
    reverse diffusion takes less than the square root, and is exact for normal data."""
    top = _short(top * survey.unit)
    steps = 1 + math.ceil(math.log(top / survey.ends[0], stride))
    return {"steps": steps, "top": top, "products": None, "iterations": ITERATIONS_NORMAL}


@torch.no_grad()
def _rough(constraint: Constraint, survey: Survey) -> bool:
    """Whether residuals amplify what is not in the data, by their median."""
    part = constraint.equalities or constraint.noisy
    if part is None:
        return False
    x, rng = survey.samples, torch.Generator().manual_seed(0)
    r = part.residual(x)
    noise = survey.unit * torch.randn(x.shape, generator=rng).to(x)
    change = (part.residual(x + noise) - r).square().nanmedian(dim=0).values.sqrt()
    return (change > ROUGH * r.std(dim=0)).double().mean().item() > 0.5


def _misfits(survey: Survey) -> Iterator[Misfit]:
    """Yields how noise levels do not fit unconditional samples."""
    what = "unconditional samples"
    for found in misfits(survey.ends, survey.samples, survey.moments, what=what):
        if not (found.of_mean and survey.settles):
            yield found


def _weighs(values: Intervals) -> bool:
    """Whether particles are weighted by these values: few of them are equalities."""
    return int((values.lower == values.upper)[0].sum()) <= WEIGHED


def remarks(constraint: Constraint, survey: Survey) -> Iterator[str]:
    """Yields what a user should know before sampling: that the schedule's noise does not fit the
    data, that some of it is not denoised, that an equality asks for nothing, is in units far from
    one, or is not resolved, that a residual is flat or jumps where samples are, or that the
    constraint is far from the data."""
    yield from level_remarks(survey)
    for part in constraint.parts:
        if part.equalities is not None:
            yield from _remarks(part.equalities, survey.samples)
    yield from roughness(constraint, survey.samples)
    equalities = constraint.equalities
    outlying = equalities is not None and is_outlying(equalities.residual(survey.samples))
    if outlying and _bent(survey):  # normal data have no modes
        yield (
            "Hardly any unconditional sample is near the constraint. Weights of modes may then be "
            "wrong, also of members that are feasible and plausible. Compare with another method, "
            "or test it by feasibly.audit with a large `near`."
        )


def level_remarks(survey: Survey) -> Iterator[str]:
    """Yields what is wrong with the noise levels of the schedule, or of the network."""
    if survey.unmoved:
        yield survey.unmoved
    else:
        yield from (found.sentence for found in _misfits(survey))


def _remarks(equalities: Constraint, x: Tensor) -> Iterator[str]:
    c, feasible = equalities.assess(x)
    size, met = c.double().median().sqrt().item(), feasible.double().mean().item()
    if met >= MET:
        yield (
            f"{met:.0%} of unconditional samples satisfy {equalities!r} already, so that it asks "
            f"for little. Their residual is typically {size:.3g}: divide it by that, or lower the "
            "tolerance."
        )
    elif x.dtype == torch.float32 and equalities.tolerance < (error := _rounding(equalities, x)):
        yield (
            f"The tolerance of {equalities!r} is {equalities.tolerance:.3g}, and rounding alone "
            f"gives a violation of {error:.2g} in float32. Take a larger tolerance, or "
            "dtype=torch.float64."
        )
    elif size < UNITS:
        yield (
            f"The residual of {equalities!r} is typically {size:.3g} for unconditional samples. "
            "Divide it by that, and the tolerance by its square: far below one, rounding counts."
        )


def _rounding(equalities: Constraint, x: Tensor) -> float:
    """Returns the typical violation that rounding of the residual makes; 0 if it is unknown."""
    try:
        apart = equalities.residual(x.double()) - equalities.residual(x)
    except Exception:  # the residual takes no double precision
        return 0.0
    return apart.square().sum(dim=1).median().item()


def _particles(
    denoiser: Any,
    constraint: Constraint,
    values: Intervals,
    survey: Survey | None,
    fast: bool,
    attempts: int | None,
    options: dict[str, Any],
) -> Plan:
    m, equal = values.values.shape[1], bool((values.lower == values.upper).all())
    # what a normal step takes for the values is that of a step of DDPM
    normal = equal and (m > WEIGHED or constraint.linear) and options.get("eta", 1) == 1
    chosen: dict[str, Any] = {
        "particles": PARTICLES,
        "levels": _ladder(survey, constraint, equal),
        "normal": normal,
        "minimize": GaussNewton(STUCK, max_distance=None),
    }
    if fast:
        chosen["error"] = ERROR_FAST
    _known(Particles, options, fast, "error")
    sampler = Particles(denoiser, constraint, **(chosen | options))
    if constraint.equalities is None and constraint.noisy is None and "particles" not in options:
        with torch.no_grad():
            seen = None if survey is None else constraint.intervals(survey.samples)
        taken: dict[str, Any] = {k: v for k, v in options.items() if k in SHARED}
        prior = Ancestral(denoiser, constraint, **taken)
        tries = _tries(seen, prior.steps, sampler.expected(m))
        if tries:
            count = attempts or tries + PROJECTED
            early = max(0, count - PROJECTED)
            reason = "Unconditional samples satisfy the inequality often; particles meet the rest."
            return Plan((prior,) * early + (sampler,) * (count - early), reason)
    what = "one scalar" if m == 1 else f"{m} values"
    number, more = sampler.particles, ", or more where k-hat asks for them"
    if constraint.differs:
        number, more = ALONE * number, ", as each has its own target"
    reason = (
        f"The constraint is on {what}: samples are drawn by importance weights from {number} "
        f"particles each{more}."
    )
    return Plan((sampler,) * (attempts or ATTEMPTS), reason)


def _ladder(survey: Survey | None, constraint: Constraint, equal: bool) -> Levels:
    """Returns the noise levels of particles, given whether all values are equalities or noisy."""
    if survey is None:
        return Levels(drawn=DRAWN if equal else 0.0)
    unit = survey.unit
    far = max(1.0, _distance(constraint, survey))
    weighted = _short(max(WEIGHED_FROM * survey.informed * far, unit))
    return Levels(
        begun=_short(BEGUN * weighted),
        weighted=weighted,
        drawn=_short(DRAWN * unit) if equal else 0.0,
        spread=_short(max(unit, _spread(survey.samples))),
        every=EVERY,
    )


@torch.no_grad()
def _distance(constraint: Constraint, survey: Survey) -> float:
    """Returns how far unconditional samples are from the constraint, on average and in standard
    deviations of its values, for the one that is farthest."""
    if constraint.differs:  # the targets of the others are not known
        return 0.0
    g = constraint.intervals(survey.samples)
    mean, std = g.values.double().mean(dim=0), g.values.double().std(dim=0)
    near = torch.maximum(g.lower.double().mean(dim=0) - mean, mean - g.upper.double().mean(dim=0))
    return (near / std).nan_to_num(0.0, 0.0, 0.0).max().item()


def _spread(x: Tensor) -> float:
    """Returns the standard deviation of samples, of which modes far apart are a part."""
    return x.double().var(dim=0).mean().sqrt().item()


def _widest(x: Tensor) -> float:
    """Returns the standard deviation of samples along the direction in which it is largest."""
    apart = (x - x.mean(dim=0)).flatten(start_dim=1)
    return (torch.linalg.eigvalsh((apart @ apart.mT).double())[-1] / (len(x) - 1)).sqrt().item()


def _tries(seen: Intervals | None, steps: int, expected: tuple[float, float]) -> int:
    """Returns how often to sample the prior inside of inequalities, of which unconditional samples
    are `seen`; 0 if particles take less work."""
    if seen is None:
        return ATTEMPTS_INSIDE - PROJECTED
    inside = seen.inside.all(dim=1)
    share = inside.double().mean().item()
    forward, backward = expected
    if int(inside.sum()) < SEEN or steps > share * (forward + 2 * backward):
        return 0
    return min(TRIES, math.ceil(ENOUGH / share))


def _posterior(
    denoiser: Any,
    constraint: Constraint,
    values: Intervals,
    problem: Problem,
    survey: Survey | None,
    fast: bool,
    attempts: int | None,
    options: dict[str, Any],
) -> Plan:
    fixed = values.lower == values.upper
    mixed, equal = not bool(fixed.all()), int(fixed[0].sum())
    count = attempts or (ATTEMPTS_INSIDE if mixed else ATTEMPTS)
    early = count - PROJECTED if mixed and count > PROJECTED else min(count, CALIBRATED)
    equalities, observed = constraint.equalities, constraint.noisy
    if observed is None and _takes(PPR, options) and _turns(equalities, survey):
        return _branches(denoiser, constraint, problem, survey, fast, count, options)
    _known(CalibratedPPR, options, fast, "steps")
    settings: dict[str, Any] = {
        "spacing": "noise",
        "steps": STEPS_FAST if fast else STEPS_CALIBRATED,
        "minimize": _only(problem.residuals),
    }
    if survey is not None and options.get("spacing", "noise") == "noise":
        top = options.get("top", _short(TOP * _widest(survey.samples)))
        settings |= _levels(settings["steps"], top, survey)
    if survey is not None and (units := _units(survey.samples)):
        settings["units"] = units
    met = without_inequalities(constraint) if mixed else constraint
    assert met is not None  # there are more than a few
    normal = "spacing" not in options and _normal(met, survey)
    if survey is not None and normal:
        settings |= _few_steps(survey, TOP_NORMAL, STRIDE_NORMAL) | {"floor": FLOOR_NORMAL}
    elif survey is not None and "spacing" not in options and _rough(met, survey):
        settings |= _few_steps(survey, TOP, STRIDE_ROUGH) | {"floor": FLOOR_ROUGH}
    elif survey is not None:
        settings |= _saved(survey, met.linear, met.linear and observed is None, options)
    known, said = "", ()
    if normal:
        known = " Data are normal: few steps are enough."
    elif survey is not None and (_bent(survey) or survey.curved > LOCAL):
        said = (
            f"Data are not normal, and the constraint has {equal} values. Weights of modes may be "
            "off, and means and spreads with them, also of members that are feasible and "
            "plausible. method='particles' is nearer, at many times the work; feasibly.audit "
            "tests both.",
        )
    if observed is not None:  # which PPR would meet exactly
        settings.setdefault("iterations", ITERATIONS_NOISE)
        whole = CalibratedPPR(denoiser, constraint, **(settings | options))
        first = replace(whole, constraint=met) if mixed else whole
        early = max(0, count - PROJECTED) if mixed else count
        inside = ", of which those inside of the inequalities are kept" if mixed else ""
        some = " with noise" if constraint.exact is None else ", some with noise"
        reason = f"The constraint has {equal} values{some}: posterior samples{inside}.{known}"
        return Plan((first,) * early + (whole,) * (count - early), reason, remarks=said)
    assert equalities is not None  # there are more than a few
    posterior = CalibratedPPR(denoiser, equalities, **(settings | options))
    project = _ppr(denoiser, constraint, problem, survey, fast, PROJECTED, {}).attempts[-1]
    inside = " Members that are inside of the inequalities are kept." if mixed else ""
    reason = (
        f"The constraint has {equal} equalities: posterior samples, then PPR for members that "
        f"fail.{inside}{known}"
    )
    return Plan((posterior,) * early + (project,) * (count - early), reason, remarks=said)


def _saved(
    survey: Survey, linear: bool, exact: bool, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the options by which posterior samples of data that are not normal save work, for
    linear values, or for those that are exact too."""
    found: dict[str, Any] = {}
    level = max(survey.affine if linear else 0.0, SPARSE * survey.unit)
    surface = exact and _surface(survey, level)
    if surface:
        found |= {"dimensions": _dimensions(survey), "products": PRODUCTS_SURFACE}
    elif exact:
        found["floor"] = FLOOR_LINEAR
    if "steps" not in options:
        found["sparse"] = _short(level)
        if surface and "sparse" not in options and options.get("products") != 0:
            found["longer"] = LONGER_SURFACE
    return found


def _units(x: Tensor) -> tuple[float, ...]:
    """Returns the standard deviations of channels that are unlike; empty if they are alike."""
    stds = channels(x).values.var(dim=0).mean(dim=1).sqrt()
    stds = stds.clamp_min(1e-6 * stds.max())  # constant ones
    return tuple(map(_short, stds.tolist())) if stds.max() > UNLIKE * stds.min() else ()


def _levels(steps: int, top: Any, survey: Survey) -> dict[str, Any]:
    """Returns the options of posterior samples that have as many steps a decade as so many over
    all levels, but for none above `top`."""
    lowest, highest = survey.ends
    if not (isinstance(top, int | float) and top > lowest):  # which may be NaN
        return {}
    share = math.log(min(top, highest) / lowest) / math.log(highest / lowest)
    needed = math.ceil(steps * share)
    return {"steps": needed} if top >= highest else {"steps": 1 + needed, "top": top}


def _branches(
    denoiser: Any,
    constraint: Constraint,
    problem: Problem,
    survey: Survey | None,
    fast: bool,
    attempts: int,
    options: dict[str, Any],
) -> Plan:
    """Returns PPR for equalities that have several branches."""
    clear = _tells_branches(constraint.equalities, survey)
    chosen: dict[str, Any] = {
        "share": SHARE,
        "sigma_share": _scaled(SIGMA_SHARE, survey),
        "sparse": 0.0 if "steps" in options else _scaled(SPARSE, survey),
    }
    _known(PPR, options, fast, "steps")
    if fast:
        chosen["steps"] = STEPS_BRANCHES_FAST
    if clear and survey is not None:
        chosen["sigma_share"] = _short(survey.unit)
        if not {"steps", "sparse"} & options.keys():
            chosen |= {"sparse": _short(survey.unit), "longer": LONGER_CLEAR}
    plan = _ppr(denoiser, constraint, problem, survey, False, attempts, chosen | options)
    reason = (
        "Gradients of the residual turn, so that it has several branches. "
        f"{plan.reason} Weights of branches may be off, and spreads a quarter too small."
    )
    return replace(plan, reason=reason)


def _turns(equalities: Constraint | None, survey: Survey | None) -> bool:
    """Whether gradients of values turn by more than a right angle between unconditional samples,
    for more than a share :data:`TURNED` of the pairs."""
    if equalities is None or survey is None or equalities.linear:
        return False
    g = _gradients(equalities, survey.samples[:TURNED_SAMPLES])
    turned = g @ g.mT < 0  # never with itself, nor where a gradient is zero
    n = g.shape[1]
    return turned.double().sum().item() > TURNED * len(g) * n * (n - 1)


def _tells_branches(equalities: Constraint | None, survey: Survey | None) -> bool:
    """Whether estimates at noise as large as the data tell the branches of values: few gradients
    turn between two estimates of one sample. One that is zero or not finite tells nothing."""
    if equalities is None or survey is None or survey.estimates is None:
        return False
    one, other = (_gradients(equalities, estimate) for estimate in survey.estimates)
    told = (one * other).sum(dim=2) > 0
    return (~told).double().mean().item() <= TURNED_CLEAR


def _gradients(equalities: Constraint, samples: Tensor) -> Tensor:
    """Returns the gradients of some values at samples, with shape (values, samples, D)."""
    found = []
    for x in samples.split(1):  # a decoder takes one at a time
        z = x.detach().requires_grad_()
        with torch.enable_grad():
            r = equalities.residual(z)[0]
            some = torch.randperm(len(r), generator=torch.Generator().manual_seed(0))
            values = [r[i] for i in some[:TURNED_VALUES].tolist()]
            found.append([torch.autograd.grad(v, z, retain_graph=True)[0] for v in values])
    return torch.stack([torch.cat(one) for one in found], dim=1).double().flatten(start_dim=2)


def _takes(kind: type[Sampler], options: Mapping[str, Any]) -> bool:
    """Whether a sampler has all of these options."""
    return options.keys() <= {one.name for one in fields(kind)}


def _scaled(level: float, survey: Survey | None) -> float:
    """Returns a noise level for data of unit variance in units of the data, if these differ."""
    if survey is None or 1 / ORDINARY < survey.unit < ORDINARY:
        return level
    return _short(level * survey.unit)


def _short(value: float) -> float:
    """A number with two digits, so that machines that round differently agree on it."""
    return float(f"{value:.2g}")


def _ppr(
    denoiser: Any,
    constraint: Constraint,
    problem: Problem,
    survey: Survey | None,
    fast: bool,
    attempts: int | None,
    options: dict[str, Any],
) -> Plan:
    residuals, equalities = problem.residuals, constraint.equalities
    # noise is left for PPR itself to refuse
    few, inside = residuals <= FEW, equalities is None and constraint.noisy is None
    late = few and not inside
    sigma_max = _scaled(SIGMA_MAX_FEW if late else SIGMA_MAX_MANY, survey)
    if sigma_max <= Ancestral(denoiser).noise_level(torch.tensor(0.0)):  # of other units
        sigma_max = math.inf
    chosen: dict[str, Any] = {
        "steps": STEPS_FEW if late else STEPS_MANY,
        "repeats": 1,
        "sigma_max": sigma_max,
        "minimize": _minimize(residuals, fast),
        # a minimizer that is given is taken as it is
        "last": None if "minimize" in options else _last(residuals, fast),
    }
    _known(PPR, options, fast, "minimize")
    kind = TruncatedPPR if inside else PPR
    sampler = kind(denoiser, constraint, **(chosen | options))
    count = attempts or (ATTEMPTS_INSIDE if inside else ATTEMPTS)
    early = max(0, count - PROJECTED)
    if equalities is None:
        shared: dict[str, Any] = {k: v for k, v in options.items() if k in SHARED}
        shared["steps"] = sampler.steps
        prior = Ancestral(denoiser, constraint, **shared)
        first = f"{early} attempts sample the prior, then " if early else ""
        reason = f"The constraint is an inequality: {first}PPR projects."
        return Plan((prior,) * early + (sampler,) * (count - early), reason)
    if equalities.residual(problem.x_0).shape[1] < residuals:
        equal = replace(sampler, constraint=equalities)
        first = f" {early} attempts project on the equalities alone, then" if early else ""
        reason = f"The constraint has inequalities too:{first} PPR projects on all of it."
        return Plan((equal,) * early + (sampler,) * (count - early), reason)
    when = "late, by Gauss-Newton" if few else "from high noise down, by L-BFGS"
    what = "one residual" if residuals == 1 else f"{residuals} residuals"
    return Plan((sampler,) * count, f"The constraint has {what}: PPR projects {when}.")


def _minimize(residuals: int, fast: bool = False) -> Minimizer:
    """The minimizer of a projection."""
    if residuals <= FEW:
        return GaussNewton(FAST_FEW if fast else ITERATIONS_FEW)
    return WarmLBFGS(FAST_MANY if fast else ITERATIONS_MANY)


def _last(residuals: int, fast: bool = False) -> Minimizer | None:
    """The minimizer of the last projection; None for the same as before."""
    search = _minimize(residuals, fast)
    return None if residuals <= FEW else replace(search, steps=LAST * search.steps)


def _only(residuals: int) -> Minimizer:
    """The minimizer of the one projection of posterior samples."""
    return _last(residuals) or _minimize(residuals)


def _known(
    kind: type[Sampler], options: Mapping[str, Any], fast: bool = False, chosen: str = ""
) -> None:
    """Refuses options that a sampler does not have, and the one that `fast` chooses."""
    if fast and chosen in options:
        raise ValueError(
            f"fast=True chooses {chosen!r} of {kind.__name__}, which is given as an option; leave "
            "one of the two out."
        )
    hidden = ("denoiser", "constraint", "pilot", "batch")
    known = [f.name for f in fields(kind) if f.init and f.name not in hidden]
    for name in options:
        if name not in known:
            raise ValueError(
                f"{kind.__name__} has no option {name!r}; its options are "
                f"{', '.join(sorted(known))}."
            )
