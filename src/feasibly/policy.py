"""Which methods a problem gets, and why: the first rule that fits."""

__all__ = ["RULES", "Case", "Plan", "Rule", "choose", "method_of"]

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch

from .constraints.base import Constraint, Intervals
from .constraints.composite import without_inequalities
from .constraints.decoded import is_decoded
from .messages import describe
from .monitor import Monitor
from .network import Evaluations
from .problem import DryRun, Problem
from .progress import duration, work
from .result import in_words
from .samplers import METHODS, SMC, Ancestral, CalibratedPPR, Method, TunedPPR
from .samplers.smc import FEWEST
from .survey import Survey

FEW, MANY = 12, 128
"""Up to so many equalities and observed values particles are weighted: up to the second number
where posterior samples would be wrong."""

LARGEST = 2**14
"""How many values times elements there may be for that, unless all values are linear: each of
16,384 particles may hold as many numbers."""

LOW_DIMENSIONAL = 0.1
"""How far the denoiser is from an affine map at a tenth of the data's scale, above which data do
not fill their space. Posterior samples are then better than a few particles."""

LOCAL = 0.02
"""How far any one element of the denoiser is from an affine map, above which a run warns that data
are not normal. A local mode hardly shows in the average over elements."""

NOT_NORMAL = (
    "The data are not normal, and the constraint has {values} scalar components. Mode weights, "
    "means and spreads may be off, even where samples are feasible and plausible. method='smc' "
    "comes closer, at a higher cost; feasibly.audit tests both."
)

LINEARISED = (
    ". Posterior samples are drawn under the linearised constraint, so that means and spreads may "
    "be off; feasibly.audit tests both"
)

PROJECTED = 2
"""How many of the last attempts meet inequalities by projection, where others are resampled until
they fall inside. They are two, so that one that fails does not leave a sample infeasible."""

SEEN, ENOUGH, TRIES = 2, 3.0, 64
"""How many of the unconditional samples must be inside of inequalities for the model to be sampled
until one is; how many are inside on average in so many tries, so that all samples but one in 20
have one; and the most tries."""


@dataclass(frozen=True)
class Case:
    """What a rule looks at.

    Attributes:
        problem: The problem.
        seen: What a dry run shows of it.
        survey: What unconditional samples show of it; None if too few of them were finite.
        attempts: How often a sample is sampled, at most; None for the rule's choice.
        error: The standard error that importance weights may have; see :class:`SMC`.
    """

    problem: Problem
    seen: DryRun
    survey: Survey | None = None
    attempts: int | None = None
    error: float = 0.025

    @property
    def constraint(self) -> Constraint:
        """The constraint; rules but the first are asked only if there is one."""
        assert self.problem.constraint is not None
        return self.problem.constraint

    @cached_property
    def values(self) -> Intervals:
        """The constrained values of two estimates, with their bounds."""
        return self.constraint.intervals(self.seen.x_0)

    @property
    def targets(self) -> int:
        """The number of values that have a target: equalities and noisy measurements."""
        return int((self.values.lower == self.values.upper)[0].sum())

    @property
    def has_inequalities(self) -> bool:
        """Whether some of the values are inequalities."""
        return self.targets < self.values.values.shape[1]

    @property
    def has_noise(self) -> bool:
        """Whether values are observed with errors."""
        return self.constraint.noisy is not None

    @property
    def exactly_normal(self) -> bool:
        """Whether data are exactly normal, and all values have targets and are linear."""
        if self.survey is None or self.has_inequalities:
            return False
        return self.survey.is_normal(self.constraint)

    @property
    def modes(self) -> bool:
        """Whether data are not normal."""
        return self.survey is not None and not self.survey.nearly_normal

    @property
    def weighted(self) -> bool:
        """Whether many values may be weighted: data fill their space, and derivatives do not cost
        too much, as those of decoded values do. Each particle holds them, unless all values are
        linear."""
        size = self.targets * math.prod(self.problem.shape)
        light = self.constraint.linear and not (self.constraint.differs or self.has_inequalities)
        fits = self.targets <= MANY and (light or size <= LARGEST)
        thin = self.survey is not None and self.survey.nonlinearity_low >= LOW_DIMENSIONAL
        return fits and not thin and not is_decoded(self.constraint)

    @property
    def branches(self) -> bool:
        """Whether the solution set has several branches."""
        part = self.constraint.equalities or self.constraint.noisy
        return self.survey is not None and part is not None and self.survey.turns(part)

    @cached_property
    def tries(self) -> int:
        """How often to sample the model until a sample is inside of inequalities; 0 if particles
        cost less."""
        if self.constraint.equalities is not None or self.has_noise:
            return 0
        if self.survey is None:
            return 2 * PROJECTED
        with torch.no_grad():
            inside = self.constraint.intervals(self.survey.samples).inside.all(dim=1)
        share = inside.double().mean().item()
        cost = work(*self.bind(SMC()).expected(self.values.values.shape[1]))
        if int(inside.sum()) < SEEN or Ancestral().steps > share * cost:
            return 0
        return min(TRIES, math.ceil(ENOUGH / share))

    def bind(self, method: Method, constraint: Constraint | None = None) -> Method:
        """Returns the kernel of a method, on a part of the constraint if that is given."""
        problem = self.problem if constraint is None else self.problem.but(constraint=constraint)
        return method.bind(problem, self.survey)

    def projected_at_last(self, first: Method, last: Method) -> tuple[Method, ...]:
        """Returns attempts at the equalities, which keep what falls inside of the inequalities,
        and at last attempts at all of the constraint."""
        met = without_inequalities(self.constraint)
        count = self.attempts or 3 * PROJECTED
        early = max(0, count - PROJECTED)
        return (self.bind(first, met),) * early + (self.bind(last),) * (count - early)

    def repeated(self, *methods: Method) -> tuple[Method, ...]:
        """Returns methods in turn, the last of them for all attempts that are left."""
        kernels = [self.bind(method) for method in methods]
        count = self.attempts or max(method.attempts for method in methods)
        return tuple(kernels[min(k, len(kernels) - 1)] for k in range(count))


@dataclass(frozen=True)
class Rule:
    """A rule of the default.

    Attributes:
        case: The case in words, as tables show it.
        takes: What it takes, likewise.
        when: Whether it fits a case.
        kernels: The kernels, one for each attempt.
        reason: Why these, in a sentence; its fields are `values`, `particles`, `more` and
            `then`; see :func:`choose`.
        normal: Whether the method takes the posterior as normal, so that the run warns if data
            are not.
    """

    case: str
    takes: str
    when: Callable[[Case], bool]
    kernels: Callable[[Case], tuple[Method, ...]]
    reason: str
    normal: bool = False

    def __reduce__(self) -> tuple[Callable[[int], "Rule"], tuple[int]]:
        return _rule, (RULES.index(self),)  # as functions without a name cannot be pickled


def _rule(number: int) -> Rule:
    return RULES[number]


def _inside(case: Case) -> tuple[Method, ...]:
    count = case.attempts or case.tries + PROJECTED
    early = max(0, count - PROJECTED)
    prior, smc = case.bind(Ancestral()), case.bind(SMC(error=case.error))
    return (prior,) * early + (smc,) * (count - early)


def _smc(case: Case) -> tuple[Method, ...]:
    return case.repeated(SMC(error=case.error))


def _branches(case: Case) -> tuple[Method, ...]:
    if case.has_inequalities:
        return case.projected_at_last(TunedPPR(), TunedPPR())
    return case.repeated(TunedPPR())


def _posterior(case: Case) -> tuple[Method, ...]:
    last = CalibratedPPR() if case.has_noise else TunedPPR()
    if case.has_inequalities:
        return case.projected_at_last(CalibratedPPR(), last)
    return case.repeated(CalibratedPPR(), last)


RULES = (
    Rule(
        "no constraint",
        "`Ancestral`",
        lambda case: case.problem.constraint is None,
        lambda case: (case.bind(Ancestral()),) * (case.attempts or 1),
        "There is no constraint, so that samples are unconditional.",
    ),
    Rule(
        "linear equalities or noisy measurements on exactly normal data",
        "`CalibratedPPR` in a few steps; without noise `TunedPPR` for samples that fail",
        lambda case: case.exactly_normal,
        _posterior,
        "The data are normal and the constraint is linear, so that a few steps of posterior "
        "sampling are accurate to a few per cent.",
    ),
    Rule(
        "inequalities that the model often satisfies",
        "unconditional samples; `SMC` for those outside",
        lambda case: case.tries > 0,
        _inside,
        "Unconditional samples often satisfy the inequality: those that do are kept, and the rest "
        "are drawn from weighted particles.",
    ),
    Rule(
        f"other inequalities, and up to {FEW} equalities or noisy measurements, with or without "
        "inequalities",
        "`SMC`: samples are drawn by importance weights, from more particles if k-hat says so",
        lambda case: case.targets <= FEW,
        _smc,
        "{values}: each sample is chosen among {particles} particles by importance weights{more}.",
    ),
    Rule(
        f"{FEW + 1} to {MANY} equalities or noisy measurements on data that are not "
        "low-dimensional: with inequalities, with gradients that change direction, or if data are "
        "not normal",
        "`SMC`, which takes gradients at some of the states only",
        lambda case: case.weighted and (case.modes or case.branches or case.has_inequalities),
        _smc,
        "{values}: each sample is chosen among {particles} particles by importance weights{more}.",
    ),
    Rule(
        "other equalities whose gradients change direction, such as sines",
        "`TunedPPR`",
        lambda case: not case.has_noise and case.branches,
        _branches,
        "The residual's gradient changes direction between samples, so the solution set has "
        "several branches. PPR therefore projects at every step; branch weights may be off, and "
        "spreads a quarter too small.",
    ),
    Rule(
        "other equalities or noisy measurements, with or without inequalities",
        "`CalibratedPPR`; without noise `TunedPPR` for samples that are infeasible or implausible",
        lambda case: True,
        _posterior,
        "{values}: posterior samples are drawn{then}.",
        normal=True,
    ),
)
"""The rules of the default, of which the first that fits is taken."""


@dataclass(frozen=True)
class Plan:
    """The kernels for a problem.

    Attributes:
        kernels: The methods, bound to the problem, one for each attempt.
        reason: Why these, in a sentence; empty if no rule chose them.
        rule: The rule that chose them; None if none did.
        survey: What unconditional samples show of the problem; None if they were not taken.
        monitor: What tells whether samples are plausible; None for nothing.
        evaluations: The network evaluations that it took to choose.
        remarks: What a user should know before sampling, in sentences.
        expected: The forward and backward evaluations that the first attempt is expected to take
            for a sample, tests of plausibility included.
        pace: The seconds that a forward evaluation took for a sample; 0 if none was measured.
    """

    kernels: tuple[Method, ...]
    reason: str = ""
    rule: Rule | None = None
    survey: Survey | None = None
    monitor: Monitor | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    remarks: tuple[str, ...] = ()
    expected: tuple[float, float] = (0, 0)
    pace: float = 0.0

    def __str__(self) -> str:
        survey = "" if self.survey is None else str(self.survey)
        about = [
            in_words(describe(self.kernels)),
            self.reason,
            survey,
            self.estimate(100),
            *self.remarks,
        ]
        return "\n".join(line for line in about if line)

    def seconds(self, members: int) -> float:
        """Returns the seconds that so many samples are expected to take; 0 if it is not known."""
        return members * work(*self._each(members)) * self.pace

    def _each(self, members: int) -> tuple[float, float]:
        """The forward and backward evaluations of each of so many samples. Samples that share
        weights are drawn from at least so many trajectories."""
        forward, backward = self.expected
        often = max(1.0, FEWEST / max(1, members)) if self.kernels[0].shares else 1.0
        return often * forward, often * backward

    def estimate(self, members: int) -> str:
        """Says what so many samples are expected to cost, in a sentence."""
        forward, backward = self._each(members)
        noun = "sample is" if members == 1 else "samples are"
        words = (
            f"{members:,} {noun} expected to take {forward:.0f} forward and {backward:.0f} "
            "backward network evaluations each, and more if particles are added or samples are "
            "drawn again"
        )
        if not self.pace:
            return f"{words}."
        return f"{words}: about {duration(self.seconds(members))} at the speed of the survey."


def choose(case: Case) -> Plan:
    """Returns what the first rule that fits says of a case."""
    rule = next(rule for rule in RULES if rule.when(case))
    kernels, remarks = rule.kernels(case), ()
    if case.problem.constraint is None:
        return Plan(kernels, rule.reason, rule)
    if rule.normal and case.survey is not None:
        known = case.survey
        if not known.nearly_normal or known.nonlinearity_element > LOCAL:
            remarks = (NOT_NORMAL.format(values=case.targets),)
    m = case.values.values.shape[1]
    values = "There is one scalar constraint" if m == 1 else f"There are {m} scalar constraints"
    if case.has_inequalities and case.targets:
        some = "is 1 equality" if case.targets == 1 else f"are {case.targets} equalities"
        values = f"There {some}, in addition to inequalities"
    then = "" if case.has_noise else ", and PPR projects those that fail"
    if case.has_inequalities:
        then += ", and those that satisfy the inequalities are kept"
    if not kernels[0].constraint.linear:
        then += LINEARISED
    alone = ", which are its own, because each sample has its own target"
    words = {
        "values": values,
        "particles": kernels[0].particles_of_one if isinstance(kernels[0], SMC) else 0,
        "more": alone if case.constraint.differs else ", or among more where k-hat requires it",
        "then": then,
    }
    return Plan(kernels, rule.reason.format(**words), rule, remarks=remarks)


def method_of(method: object) -> Method | None:
    """Returns a method by its name or as it is; None for `auto`.

    Raises:
        ValueError: If it is none.
    """
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    if isinstance(method, Method):
        if method.problem is not None:
            raise ValueError(
                f"{type(method).__name__} is already bound to a problem; pass it unbound, as "
                f"{type(method).__name__}()."
            )
        return method
    if isinstance(method, type) and issubclass(method, Method):
        raise ValueError(
            f"{method.__name__} is a class; pass an instance, such as {method.__name__}()."
        )
    if method != "auto":
        raise ValueError(
            f"There is no method {method!r}; choose 'auto', one of {', '.join(METHODS)}, or an "
            "instance such as PPR(steps=128)."
        )
    return None
