"""How studies make samplers: the library's default and the paper's setting are said here alone."""

import time
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import feasibly
from feasibly.network import Evaluations
from feasibly.policy import Plan
from feasibly.problem import Problem
from feasibly.samplers import PPR, Method, PostHoc, TunedPPR

from .records import Record

Make = Callable[[Problem], Plan]
"""Makes the kernels for a problem."""


def default(problem: Problem, **options: Any) -> Plan:
    """Makes what the library samples by if it is asked for nothing else.

    Arguments:
        problem: The problem.
        options: The arguments of :func:`feasibly.plan` that differ. There is no monitor by default
            if there is a `method`.
    """
    posed = problem.denoiser.denoiser, problem.constraint, problem.shape
    options = {"monitor": "method" not in options, "dtype": problem.dtype} | options
    return feasibly.plan(*posed, **options)


def library(
    problem: Problem, method: type[Method], kind: type[Method] | None = None, **options: Any
) -> Plan:
    """Makes a method in the library's settings, which depend on the problem.

    Arguments:
        problem: The problem.
        method: The method.
        kind: A variant of it, to take over its settings; None for the method itself.
        options: The options that differ, and the number of `attempts`.
    """
    attempts = options.pop("attempts", None)
    plan = default(problem, method=method(**options), attempts=attempts)
    if kind is None:
        return plan
    # equal attempts stay one object, which a run prepares once
    made = {
        id(one): kind(**{f.name: getattr(one, f.name) for f in fields(one)})
        for one in plan.kernels
    }
    return replace(plan, kernels=tuple(made[id(one)] for one in plan.kernels))


ppr = partial(library, method=TunedPPR)
"""Makes PPR in the library's settings."""


def only(kind: type[Method], **options: Any) -> partial[Plan]:
    """Returns how to make just one method, in its own settings but for the options, among which
    is the number of `attempts`, one by default."""
    return partial(_only, kind=kind, **options)


def _only(problem: Problem, kind: type[Method], attempts: int = 1, **options: Any) -> Plan:
    return Plan((kind(**options).bind(problem),) * attempts)


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
