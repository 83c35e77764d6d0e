"""An audit: truths, the constraint stated through them, and every candidate on all of them."""

__all__ = ["audit"]

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ensemble
from ..api import plan
from ..arguments import shape_of, typed, whole
from ..constraints import through
from ..constraints.base import Constraint
from ..constraints.composite import without_inequalities
from ..errors import ConstraintError, DenoiserError, SamplingError, StoreError
from ..machine import is_exhausted
from ..members import calling
from ..messages import describe
from ..minimizers.base import finite, per_sample
from ..monitor import Monitor
from ..network import own_mode
from ..policy import Plan
from ..problem import Problem, inspect
from ..progress import current, shown, work
from ..result import Result
from ..run import run
from ..samplers import Ancestral, Method
from ..samplers.rejection import PILOT
from .findings import Candidate, Examination, examine, summarised
from .result import Audit, recommend
from .truths import STEPS, from_data, from_prior, unlike

FEWEST = 16
"""The fewest truths of an audit."""

DESCENTS = 4
"""The steps of steepest descent that show how far members are from their statements."""

BATCH = 64
"""How many members are moved by these steps at a time."""

METHODS = ("auto", "calibrated", "ppr-tuned")


@typed
@own_mode()
def audit(
    denoiser: Any,
    constraint: Constraint,
    shape: Sequence[int],
    *,
    methods: Sequence[str | Method] = METHODS,
    truths: int = 64,
    members: int = 7,
    near: int = 4,
    data: Any = None,
    statistics: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    budget: int | None = None,
    level: float = 0.05,
    seed: int = 0,
    batch_size: int | None = None,
    monitor: bool = True,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    path: Path | str | None = None,
    progress: bool | None = None,
) -> Audit:
    r"""Tests samplers on your model and your constraint, where the right answer is known.

    A truth :math:`x^*` is sampled from the prior, and the constraint stated through it:
    :math:`r(x) = r(x^*)`. Then :math:`x^*` is itself a sample of the constrained distribution. A
    sampler that is right cannot be told from it: the truth and its members can change places. All
    tests are exact by that; see :mod:`feasibly.calibration`. They are of the members' spread,
    centre, coverage and mode weights, of their neighbours, of their likeness to data, and of
    summaries. If all candidates are right, a fault is found with probability `level` at most.

    The plan of a method is that for the constraint as it is given, and the same for all truths.
    But particles share no weights here, and are six times as many: each truth is a target of its
    own.
    Of a constraint with inequalities only the equalities are stated through truths. The truths
    satisfy the inequalities.

    An audit says how good a sampler is on statements like yours, on average. It does not say
    whether your own target is far from all that the prior contains. A candidate is compared with
    unconditional samples of 256 steps, whose own errors count as its.

    References:
        | Validating Bayesian Inference Algorithms with Simulation-Based Calibration (Talts et al.,
        | 2018), Algorithm 1, https://arxiv.org/abs/1804.06788
        | Sampling-Based Accuracy Testing of Posterior Estimators for General Inference (Lemos et
        | al., 2023), Algorithm 2, https://arxiv.org/abs/2302.03026, for coverage

    Arguments:
        denoiser: The denoiser, a callable `(x_t, t)` with an attribute `schedule`.
        constraint: The constraint.
        shape: The shape of one sample.
        methods: The candidates: `auto`, names of methods, or methods. Of several between which
            an audit cannot tell, the first is recommended.
        truths: The number of truths, at least 16.
        members: The number of members of each truth, at least 2.
        near: How many samples of the prior there are for each truth. Those whose residuals are
            nearest to zero are taken, so that statements are like the constraint as it is given.
            A choice by residuals alone leaves all tests exact.
        data: Data that the model has not seen, with shape (K, \*), from which to take truths;
            None for truths from the prior. They must be independent samples, not steps of one
            trajectory. With data, faults of the model count too. So the model's own samples are
            tested as well, without the constraint.
        statistics: Summaries to test, by name: functions of samples, with shape (B, \*), that
            return numbers with shape (B) or (B, q).
        budget: The most evaluations of the network, forward and backward and summed over
            members, that may be planned: one attempt at each member, by every candidate. If that
            is less than planned, there are fewer truths. Truths, and members that are resampled,
            take more.
        level: The probability of finding a fault in any candidate if all are right, at most.
        seed: The seed of truths and members.
        batch_size: How many states may go through the denoiser at a time; None for all.
        monitor: Whether implausible members are resampled, as :func:`feasibly.sample` does.
        dtype: The type of the samples, float32 or float64.
        device: Where to sample; None for where the denoiser is.
        path: A folder for the members, a store for each candidate. Any number of processes may
            run the same audit with it, and an audit that was stopped goes on. Truths are sampled
            again by each. None to keep members in memory.
        progress: Whether to say on standard error what the audit is expected to cost, how far it
            is, and each verdict; None for on a terminal or in a notebook.

    Returns:
        The verdicts and a recommendation. `feasibly.sample(..., method=audit.best)` takes it.

    Raises:
        ConstraintError: If the constraint cannot be used as it is.
        DenoiserError: If the denoiser cannot be used as it is, or has conditions that differ
            between members.
        SamplingError: If there are too few truths, or no candidate can run.
        ValueError: If an argument is not right, or the budget is too small for 16 truths.

    Example:
        >>> method, options = feasibly.PPR(steps=8), {"truths": 16, "monitor": False}
        >>> found = feasibly.audit(denoiser, circle, (2,), methods=[method], members=2, **options)
        >>> found.candidates[0].members.shape, found.candidates[0].feasible
        (torch.Size([16, 2, 2]), 1.0)
    """
    shape, count = shape_of(shape), partial(whole, of="audit")
    truths, members = count("truths", truths, FEWEST), count("members", members, 2)
    near, seed = count("near", near, 1), count("seed", seed, 0, 2**32 - 1)
    budget = None if budget is None else count("budget", budget, 1)
    if not 0 < level < 1:
        raise ValueError(f"audit(level=...) must be a number between 0 and 1, got {level!r}.")
    if not isinstance(statistics, Mapping | None) or not all(
        callable(function) for function in (statistics or {}).values()
    ):
        raise ValueError(
            "audit(statistics=...) takes a dict of functions by name, such as {'mean': lambda x: "
            f"x.mean(dim=1)}}; got {statistics!r}."
        )
    if not isinstance(constraint, Constraint):
        raise ValueError(f"audit(constraint=...) takes a constraint, got {constraint!r}.")
    problem = Problem(
        denoiser, constraint, shape, dtype=dtype, device=device, batch_size=batch_size
    )
    with shown(progress) as meter:
        planned, notes = _planned(problem, methods, monitor)
        residuals = inspect(problem).residuals
        cost = {name: _cost(chosen.kernels, residuals, members) for name, _, chosen in planned}
        each = sum(cost.values())
        if budget is not None and each * truths > budget:
            fewer = int(budget // each)
            if fewer < FEWEST:
                raise ValueError(
                    f"audit(budget={budget}) is enough for {fewer} truths, but an audit needs at "
                    f"least {FEWEST}, which take {FEWEST * each} network evaluations: audit fewer "
                    "methods, or fewer members per truth."
                )
            notes.append(f"The budget allows only {fewer} of {truths} truths.")
            truths = fewer
        pool = 0 if data is not None else near * truths * (STEPS + 1)
        parts = ", ".join(f"{name} {truths * one:,}" for name, one in cost.items())
        meter.tell(
            f"{truths} truths with {members} samples each take {truths * each:,} network "
            f"evaluations in all ({parts}), if one attempt at each sample is enough; the truths "
            f"themselves take {pool:,} more."
        )
        watch = planned[0].plan.monitor
        tests = 0 if watch is None else watch.cost
        works = [
            truths * members * (tests + work(*chosen.kernels[0].expected(residuals)))
            for _, _, chosen in planned
        ]
        alone = 0 if data is None else truths * members * (STEPS + 1)
        meter.expect(pool + sum(works) + alone)
        with meter.part("truths", pool):
            found = _truths(problem, truths, near, data, watch, seed)
        if len(found) < truths:
            notes.append(
                f"There are {len(found)} truths instead of {truths}: the data do not suffice for "
                "more."
            )
            if len(found) < FEWEST:
                raise SamplingError(
                    f"An audit needs at least {FEWEST} truths, but there are only {len(found)}."
                )
        if sentence := unlike(constraint, found):
            notes.append(sentence)
        # refuses a wrong summary before the work
        summarised(torch.stack([found, found], dim=1), None, statistics or {})
        stated = through(constraint, found, members, seed)
        share = level / (len(planned) + (data is not None))
        candidates = []
        for number, (name, method, chosen) in enumerate(planned):
            shared = Work(stated, found, members, seed, statistics, share, path, batch_size)
            with meter.part(f"{name}, {number + 1} of {len(planned)}", works[number]):
                made = shared.candidate(f"{number}-{name}", name, method, chosen)
            candidates.append(made)
            meter.tell(f"{name}: {made.verdict}.")
        best, regret, cheaper = recommend(candidates)
        if best is None:
            raise SamplingError(f"No candidate can be audited: {candidates[-1].failure}.")
        model = None
        if data is not None:
            with meter.part("the model alone", alone):
                model = _model(problem, data, found, members, seed, statistics, share, path)
            meter.tell(f"{model.name}: {model.verdict}.")
            faulty = model.examination is not None and model.examination.faulty
            notes.append(
                "Without the constraint, the model's own samples differ from the data, so that "
                "miscalibration of candidates may be the model's. Audit without data to test the "
                "methods alone."
                if faulty
                else "Without the constraint, no difference between the model and the data was "
                "found with this many truths, so that miscalibration of candidates is more "
                "likely due to the methods."
            )
    return Audit(
        candidates=tuple(candidates),
        truths=found,
        members=members,
        level=level,
        best=best.method,
        recommended=best.name,
        regret=regret,
        cheaper=cheaper.name if cheaper else "",
        model=model,
        notes=tuple(notes),
    )


class Planned(NamedTuple):
    """A candidate before it runs."""

    name: str
    method: Any
    plan: Plan


def _planned(
    problem: Problem, methods: Sequence[str | Method], watched: bool
) -> tuple[list[Planned], list[str]]:
    """Plans candidates for the constraint as it is given. Returns them, and notes."""
    if isinstance(methods, str | Method):
        methods = (methods,)
    if not isinstance(methods, Sequence):
        raise ValueError(
            f"audit(methods=...) takes a list of methods or their names, got {methods!r}."
        )
    found: list[Planned] = []
    ran: dict[str, str] = {}
    notes = []
    monitor: bool | Monitor = watched
    parts = problem.denoiser.denoiser, problem.constraint, problem.shape
    names = ("dtype", "device", "batch_size")
    place: dict[str, Any] = {name: getattr(problem, name) for name in names}
    for method in methods:
        try:
            chosen = plan(*parts, method=method, monitor=monitor, **place)
        except (ConstraintError, DenoiserError):  # of no method can it be sampled
            raise
        except ValueError as error:
            if tuple(methods) != METHODS:
                raise
            notes.append(f"{method} was left out: {error}")  # of those that nobody asked for
            continue
        monitor = chosen.monitor or monitor
        notes += [sentence for sentence in chosen.remarks if sentence not in notes]
        name = method if isinstance(method, str) else type(method).__name__
        names = {one.name for one in found}
        name = next(n for n in itertools.chain([name], _numbered(name)) if n not in names)
        words = describe(chosen.kernels)
        if words in ran:
            notes.append(f"{name} is the same as {ran[words]}, and was not audited again.")
            continue
        ran[words] = name
        found.append(Planned(name, method, chosen))
    if not found:
        raise ValueError("audit(methods=...) needs at least one method.")
    return found, notes


def _numbered(name: str) -> Iterator[str]:
    for k in itertools.count(2):
        yield f"{name} {k}"


def _cost(kernels: Sequence[Method], residuals: int, members: int) -> int:
    """Returns the evaluations of one attempt at the members of one truth."""
    cost = members * sum(kernels[0].budget(residuals))
    pilots = any(kernel.one_target for kernel in kernels)
    return cost + PILOT * kernels[0].taken * pilots


def _truths(
    problem: Problem, count: int, near: int, data: Any, monitor: Monitor | None, seed: int
) -> Tensor:
    """Returns the truths, with shape (N, *)."""
    if data is None:
        return from_prior(problem, count, near, seed, monitor)
    like = torch.zeros((1, *problem.shape), dtype=problem.dtype, device=problem.device)
    return from_data(data, problem.constraint, count, seed, like)


@dataclass
class Work:
    """What candidates share.

    Attributes:
        stated: The constraint stated through the truths.
        truths: The truths, with shape (N, *).
        members: The number of members of each.
        seed: The seed of the members.
        statistics: The user's summaries.
        level: The probability of finding a fault in one candidate that is right.
        path: The folder of stores; None for none.
        batch_size: How many members may go through the constraint at a time; None for some.
    """

    stated: Constraint | None
    truths: Tensor
    members: int
    seed: int
    statistics: Mapping[str, Callable[[Tensor], Tensor]] | None
    level: float
    path: Path | str | None = None
    batch_size: int | None = None

    def candidate(self, label: str, name: str, method: Any, chosen: Plan) -> Candidate:
        """Samples all members by a candidate, and tests them."""
        start = time.perf_counter()
        words = describe(chosen.kernels)
        try:
            stated = replace(chosen, kernels=self.restated(chosen.kernels), remarks=())
            self.check_conditions(stated)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the verdict says what is wrong
                x, evaluations = self.sample(label, stated)
        except (ValueError, SamplingError) as error:
            passing = isinstance(error.__cause__, OSError) or is_exhausted(error)
            if passing or isinstance(error, DenoiserError | StoreError):  # no candidate's fault
                raise
            return Candidate(name, method, words, failure=str(error).rstrip("."))
        feasible = self.feasible(x)
        odd = None if chosen.monitor is None else self.oddness(chosen.monitor, x)
        rows = x.unflatten(0, (len(self.truths), self.members))
        try:
            seen: Examination | None = examine(
                self.truths,
                rows,
                statistics=self.statistics,
                oddness=odd,
                settled=self.settled(x).unflatten(0, rows.shape[:2]),
                level=self.level,
                seed=self.seed,
            )
            failure = ""
        except ValueError as error:
            seen, failure = None, str(error).rstrip(".")
        return Candidate(
            name=name,
            method=method,
            words=words,
            examination=seen,
            feasible=feasible.double().mean().item(),
            plausible=None if odd is None else (odd[:, 1:] <= 1).double().mean().item(),
            evaluations=evaluations,
            seconds=time.perf_counter() - start,
            failure=failure,
            members=rows,
        )

    def restated(self, kernels: Sequence[Method]) -> tuple[Method, ...]:
        """Returns the kernels with the constraint stated through truths."""
        made: dict[int, Method] = {}
        for kernel in kernels:
            made[id(kernel)] = kernel
            if kernel.constraint is not None and self.stated is not None:
                stated = self.stated
                if kernel.constraint.inequalities is None:  # early attempts leave them out
                    stated = without_inequalities(stated)
                problem = kernel.bound_to.but(constraint=stated)
                made[id(kernel)] = replace(kernel, problem=problem)
        return tuple(made[id(kernel)] for kernel in kernels)

    def check_conditions(self, chosen: Plan) -> None:
        """Refuses a denoiser whose conditions differ."""
        if chosen.monitor is None:
            return
        ids = torch.arange(len(self.truths) * self.members, device=self.truths.device)
        try:
            chosen.monitor.check_conditions(ids, chosen.kernels[0].bound_to.batch_size)
        except DenoiserError as error:
            raise DenoiserError(
                f"An audit needs a denoiser with the same conditions for all {len(ids)} samples "
                "that it draws; give the denoiser one row of conditions."
            ) from error

    def sample(self, label: str, chosen: Plan) -> tuple[Tensor, float]:
        """Samples all members, with shape (N M, *), and returns them and the evaluations that
        each took."""
        count, kernels = len(self.truths) * self.members, chosen.kernels
        alone = any(kernel.one_target for kernel in kernels)
        if self.path is not None and not alone:
            place, size = Path(self.path) / f"{label}.zarr", kernels[0].bound_to.batch_size
            ensemble.run(chosen, place, count, seed=self.seed, batch_size=size or "auto")
            return _read(place, count, self.truths)
        groups = [range(count)]
        if alone:
            groups = [
                range(first, first + self.members) for first in range(0, count, self.members)
            ]
        results, meter = [], current()
        for k, ids in enumerate(groups):
            with meter.part(expected=meter.left / (len(groups) - k)):
                results.append(run(kernels, ids, seed=self.seed, monitor=chosen.monitor))
        result = Result.join(results)
        taken = result.evaluations
        return result.samples, (taken.member_forward + taken.member_backward) / count

    def feasible(self, x: Tensor) -> Tensor:
        """Returns which members satisfy their statement, with shape (N M)."""
        if self.stated is None:
            return torch.ones(len(x), dtype=torch.bool)
        good = finite(x)
        with calling(range(len(x)), x.device):
            return good & self.stated.assess(torch.where(per_sample(good, x), x, 0.0))[1]

    def oddness(self, monitor: Monitor, x: Tensor) -> Tensor:
        """Returns how unlike data truths and members are, with shape (N, M + 1)."""
        size = monitor.survey.problem.batch_size
        truths, odd = (
            monitor.assess(part, range(len(part)), size).statistic for part in (self.truths, x)
        )
        return torch.cat([truths[:, None], odd.reshape(len(self.truths), self.members)], dim=1)

    def settled(self, x: Tensor) -> Tensor:
        """Returns members moved closer to their statements, by a few steps of steepest descent:
        how far shows what the tolerance allows."""
        equalities = None if self.stated is None else self.stated.equalities
        if equalities is None:
            return x
        found = []
        size = min(BATCH, self.batch_size or BATCH)
        for ids in torch.arange(len(x), device=x.device).split(size):
            z = x[ids].nan_to_num(0.0, 0.0, 0.0)
            for _ in range(DESCENTS):
                with calling(ids, x.device), torch.enable_grad():
                    z = z.detach().requires_grad_()
                    value = equalities.residual(z).square().sum(dim=1)
                    (slope,) = torch.autograd.grad(value.sum() / 2, z)
                steep = slope.flatten(start_dim=1).square().sum(dim=1)
                length = torch.where(steep > 0, value.detach() / steep, 0.0)
                z = z.detach() - per_sample(length, z) * slope
            found.append(torch.where(per_sample(finite(z), z), z, x[ids]))
        return torch.cat(found)


def _read(path: Path, count: int, like: Tensor) -> tuple[Tensor, float]:
    """Returns the members of a store, NaN for those that failed, and the evaluations of each."""
    store, found = ensemble.Store(path), []
    for member in range(count):
        x = torch.full(like.shape[1:], math.nan, dtype=like.dtype)
        with contextlib.suppress(ValueError, OSError):  # a member that failed
            x = torch.from_numpy(store.get(member)).to(like.dtype)
        found.append(x)
    records = store.all_records()
    taken = sum(record.forward + record.backward for record in records) / max(1, len(records))
    return torch.stack(found).to(like), taken


def _model(
    problem: Problem,
    data: Any,
    like: Tensor,
    members: int,
    seed: int,
    statistics: Mapping[str, Callable[[Tensor], Tensor]] | None,
    level: float,
    path: Path | str | None,
) -> Candidate:
    """Tests samples of the model without the constraint against data."""
    found = from_data(data, None, len(like), seed, like[:1])
    chosen = Plan((Ancestral(steps=STEPS).bind(problem.but(constraint=None)),))
    work = Work(None, found, members, seed, statistics, level, path, problem.batch_size)
    return work.candidate("model", "the model, without the constraint", "ancestral", chosen)
