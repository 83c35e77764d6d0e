"""Truths: samples of the prior, or data, through which a constraint can be stated."""

__all__ = ["from_data", "from_prior", "unlike"]

from typing import Any

import torch
from torch import Tensor

from ..checks.inputs import as_data
from ..constraints.base import Constraint
from ..errors import SamplingError
from ..members import calling
from ..metrics import is_outlying
from ..minimizers.base import finite
from ..monitor import Monitor
from ..problem import Problem
from ..randomness import generator
from ..run import run
from ..samplers import Ancestral

STEPS = 256
"""The number of diffusion steps of a truth. With 256 the standard deviation of normals is within
0.1 %, with 128 it is 0.3 % too large."""

TRIES = 64
"""The most samples of the prior that are tried to find one inside inequalities."""

SEED = 2**32 - 5
"""The seed of truths is this minus the audit's, so that no member has a truth's noise."""


def from_prior(
    problem: Problem, count: int, near: int, seed: int, monitor: Monitor | None = None
) -> Tensor:
    r"""Samples truths from the prior, without the constraint.

    Samples outside of inequalities, and implausible ones, are not taken, since members are not
    either.

    Arguments:
        problem: The problem, whose constraint says which are near; None for any samples.
        count: The number of truths.
        near: How many samples there are for each truth; see :func:`nearest`.
        seed: The seed of the audit.
        monitor: What tells which samples are plausible; None to take all.

    Returns:
        The truths, with shape (N, \*).

    Raises:
        SamplingError: If too few samples satisfy the inequalities.
    """
    constraint, size = problem.constraint, problem.batch_size
    kernel = Ancestral(steps=STEPS).bind(problem.but(constraint=None))
    wanted, found, tried = count * near, [], 0
    while sum(map(len, found)) < wanted and tried < TRIES * wanted:
        more = max(wanted, tried)  # where few are inside, more at a time
        result = run([kernel], range(tried, tried + more), seed=(SEED - seed) % 2**32)
        x, tried = result.samples[result.finite], tried + more
        x = x[inside(constraint, x)]
        if monitor is not None and len(x):
            x = x[monitor.assess(x, [0] * len(x), size).plausible]
        found.append(x)
    pool = torch.cat(found)[:wanted]
    if len(pool) < count:
        raise SamplingError(
            f"{len(pool)} of {tried} unconditional samples satisfy the inequalities, too few for "
            f"{count} truths; audit with fewer truths, or pass data=...."
        )
    return nearest(constraint, pool, count)


def from_data(
    data: Any, constraint: Constraint | None, count: int, seed: int, like: Tensor
) -> Tensor:
    r"""Returns truths among data that the model has not seen.

    Arguments:
        data: The data, with shape (K, \*).
        constraint: The constraint; None for any data.
        count: The number of truths, at most.
        seed: The seed of their order.
        like: A sample, whose shape, type and device the data should have.

    Raises:
        ValueError: If the data are of another shape than samples.
    """
    x = as_data(data)
    if x.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"audit(data=...) has samples of shape {tuple(x.shape[1:])}, but one sample has shape "
            f"{tuple(like.shape[1:])}; give data with shape (K, *)."
        )
    x = x[torch.randperm(len(x), generator=generator(seed, 5)).to(x.device)].to(like)
    x = x[finite(x)]
    x = x[inside(constraint, x)]
    return nearest(constraint, x, min(count, len(x)))


@torch.no_grad()
def inside(constraint: Constraint | None, x: Tensor) -> Tensor:
    """Returns which samples satisfy the inequalities, with shape (B)."""
    inequalities = None if constraint is None else constraint.inequalities
    if inequalities is None or not len(x):
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    with calling([0], x.device):
        return inequalities(x).inside.all(dim=1)


@torch.no_grad()
def unlike(constraint: Constraint, x: Tensor) -> str:
    """Says that no statement through these samples is like the constraint as it is given, if so;
    see :func:`feasibly.metrics.is_outlying`."""
    equalities = constraint.equalities
    if equalities is None:
        return ""
    with calling([0], x.device):
        if not is_outlying(equalities.residual(x)):
            return ""
    return (
        "Your target is unlike those of this audit: hardly any unconditional sample comes near "
        "it. A method may be calibrated on these and miscalibrated on yours. A larger `near` "
        "tests targets nearer to yours."
    )


@torch.no_grad()
def nearest(constraint: Constraint | None, x: Tensor, count: int) -> Tensor:
    """Returns the samples whose residuals are nearest to zero, relative to the typical ones.

    Each truth is still a sample of its own statement, because this looks at residuals alone.
    """
    equalities = None if constraint is None else constraint.equalities
    if equalities is None or count >= len(x):
        return x[:count]
    with calling([0], x.device):
        r = equalities.residual(x).double()
    typical = r.abs().median(dim=0).values.clamp_min(1e-300)
    far = (r / typical).square().sum(dim=1)
    return x[far.argsort(stable=True)[:count].sort().values]
