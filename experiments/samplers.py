"""How studies make samplers: the library's default and the paper's setting are said here alone."""

import time
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import feasibly
from feasibly.constraints import Constraint
from feasibly.denoisers import Denoiser
from feasibly.network import Evaluations, Network
from feasibly.plausible import reference
from feasibly.policy import Plan, choose
from feasibly.samplers import PPR, PostHoc, Sampler
from feasibly.sampling import Problem

from .records import Record

Make = Callable[[Denoiser, Constraint, Problem], Plan]
"""Makes the samplers for a denoiser and a constraint, of which a dry run has shown the problem."""


def default(
    denoiser: Denoiser,
    constraint: Constraint,
    problem: Problem,
    kind: type[Sampler] | None = None,
    **options: Any,
) -> Plan:
    """Makes what the library samples by if it is asked for nothing else.

    Arguments:
        denoiser: The denoiser.
        constraint: The constraint.
        problem: What a dry run shows of them.
        kind: A variant of the method, to take over its settings; None for the method itself.
        options: What differs from the default: the `method`, its options, the number of
            `attempts`, or `fast`.
    """
    if options.get("method", "auto") == "auto":
        network = Network(denoiser, evaluations := Evaluations())
        survey = reference(network, problem.x_0.shape[1:], constraint)
        plan = choose(denoiser, constraint, problem, survey=survey, **options)
        plan = replace(plan, survey=survey, evaluations=evaluations)
    else:
        plan = choose(denoiser, constraint, problem, **options)
    if kind is None:
        return plan
    # equal attempts stay one object, which a run prepares once
    made = {
        id(one): kind(**{f.name: getattr(one, f.name) for f in fields(one)})
        for one in plan.attempts
    }
    return replace(plan, attempts=tuple(made[id(one)] for one in plan.attempts))


def only(kind: type[Sampler], **options: Any) -> partial[Plan]:
    """Returns how to make just one sampler, in the method's own settings but for the options,
    among which is the number of `attempts`, one by default."""
    return partial(_only, kind=kind, **options)


def _only(
    denoiser: Denoiser,
    constraint: Constraint,
    problem: Problem,
    kind: type[Sampler],
    attempts: int = 1,
    **options: Any,
) -> Plan:
    return Plan((kind(denoiser, constraint, **options),) * attempts)


ppr = partial(default, method="ppr")
"""Makes PPR in the library's settings, which depend on the problem."""

paper = only(PPR)
"""Makes PPR in the paper's setting, which is PPR's own; `kind` is a variant of it."""

post_hoc = only(PostHoc)
"""Makes the baseline that projects an unconstrained sample."""


def quiet(*problem: Any, **options: Any) -> feasibly.Result:
    """Returns what `feasibly.sample` does, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return feasibly.sample(*problem, **options)


def cost(taken: Evaluations, members: int, start: float) -> Record:
    """Returns the evaluations of a member, and the seconds since a start."""
    evaluations = (taken.member_forward + taken.member_backward) / members
    return {"evaluations": evaluations, "seconds": time.perf_counter() - start}
