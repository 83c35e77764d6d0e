"""How studies make samplers: the library's default and the paper's setting are said here alone."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import feasibly
from feasibly.network import Evaluations
from feasibly.policy import Plan
from feasibly.problem import Problem
from feasibly.samplers import METHODS, PPR, Method, PostHoc, TunedPPR

from .records import Record

Make = Callable[[Problem], Plan]
"""Makes the kernels for a problem."""


def default(problem: Problem, kind: type[Method] | None = None, **options: Any) -> Plan:
    """Makes what the library samples by if it is asked for nothing else.

    Arguments:
        problem: The problem.
        kind: A variant of the method, to take over its settings; None for the method itself.
        options: What differs from the default: the `method`, the number of `attempts`, or `error`.
    """
    posed = problem.denoiser.denoiser, problem.constraint, problem.shape
    monitor = options.get("method", "auto") == "auto"
    plan = feasibly.plan(*posed, monitor=monitor, dtype=problem.dtype, **options)
    if kind is None:
        return plan
    # equal attempts stay one object, which a run prepares once
    made = {
        id(one): kind(**{f.name: getattr(one, f.name) for f in fields(one)})
        for one in plan.kernels
    }
    return replace(plan, kernels=tuple(made[id(one)] for one in plan.kernels))


def tuned(problem: Problem, kind: type[Method] | None = None, **options: Any) -> Plan:
    """Makes PPR in the library's settings, which depend on the problem, but for the options, among
    which is the number of `attempts`."""
    attempts = {"attempts": options.pop("attempts")} if "attempts" in options else {}
    return default(problem, kind, method=TunedPPR(**options), **attempts)


def only(kind: type[Method], **options: Any) -> partial[Plan]:
    """Returns how to make just one method, in its own settings but for the options, among which
    is the number of `attempts`, one by default."""
    return partial(_only, kind=kind, **options)


def _only(problem: Problem, kind: type[Method], attempts: int = 1, **options: Any) -> Plan:
    return Plan((kind(**options).bind(problem),) * attempts)


ppr = tuned
"""Makes PPR in the library's settings."""

paper = only(PPR)
"""Makes PPR in the paper's setting, which is PPR's own; `kind` is a variant of it."""

post_hoc = only(PostHoc)
"""Makes the baseline that projects an unconstrained sample."""


def named(method: str, options: Mapping[str, Any]) -> str | Method:
    """Returns a method by its name, with options; `auto` has none."""
    return METHODS[method](**options) if options else method


def quiet(*problem: Any, **options: Any) -> feasibly.Result:
    """Returns what `feasibly.sample` does, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return feasibly.sample(*problem, **options)


def cost(taken: Evaluations, members: int, start: float) -> Record:
    """Returns the evaluations of a member, and the seconds since a start."""
    evaluations = (taken.member_forward + taken.member_backward) / members
    return {"evaluations": evaluations, "seconds": time.perf_counter() - start}
