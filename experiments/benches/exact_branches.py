"""A Markov chain of normals of which a function of most values is known, such as their squares.

A known value has one branch or a few, and neighbours tell which. Forward filtering and backward
sampling, over the branches of one value after another, give the exact distribution.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Generator, Tensor

from feasibly.constraints import Equality
from feasibly.oracles import Gaussian

from .exact_base import Posterior, Problem, conditional, gaussians, schedule

SIZE, LEFT_OUT = 48, 6  # one value in so many is not observed
ACCURACY = 1e-3  # of a feasible residual
FREQUENCY = 1.5  # of the sine
TURNS = 3  # of the sine, on each side, beyond which the prior's mass is negligible


def same(x: Tensor) -> Tensor:
    return x[None]


def mirrored(x: Tensor) -> Tensor:
    return torch.stack([x, -x])


def wrapped(x: Tensor) -> Tensor:
    turns = 2 * math.pi / FREQUENCY * torch.arange(-TURNS, TURNS + 1).double()[:, None]
    return torch.cat([x + turns, math.pi / FREQUENCY - x + turns])


FUNCTIONS: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "square": (torch.square, mirrored),
    "sine": (lambda x: (FREQUENCY * x).sin(), wrapped),
    "cubic": (lambda x: x + x**3 / 3, same),
    "exponential": (torch.exp, same),
    "saturated": (torch.tanh, same),
    "softplus": (torch.nn.functional.softplus, same),
}
"""What is known of a value, and the branches that a value is one of, with shape (K, m). On all
branches of a value the function is as steep, so that they differ by the prior alone."""

MONOTONE = ("exponential", "saturated", "softplus")
"""The functions of one branch that are a family of their own."""


def chain(
    seed: int,
    kind: str,
    correlation: float,
    timing: str,
    size: int = SIZE,
    left_out: int = LEFT_OUT,
) -> Posterior:
    """A chain of unit variance, of which a function of most values is that of another sample."""
    function, branches = FUNCTIONS[kind]
    i = torch.arange(size)
    cov = correlation ** (i[:, None] - i).abs().double()
    generator = torch.Generator().manual_seed(seed)
    (truth,) = gaussians(torch.zeros(size).double(), cov, 1, generator)
    seen = (i % left_out != left_out - 1).nonzero()[:, 0]
    known, values = function(truth[seen]), branches(truth[seen])

    gap = seen.diff()
    near = correlation ** gap.double()
    spread = 1 - near.square()
    apart = values[None, :, 1:] - near * values[:, None, :-1]  # from the first axis to the second
    log_step = -apart.square() / (2 * spread)
    filtered = [-values[:, 0].square() / 2]
    for k in range(len(gap)):
        filtered.append((filtered[-1][:, None] + log_step[..., k]).logsumexp(dim=0))

    A = torch.eye(size).double()[seen]
    zero = torch.zeros(size).double()
    gain = cov @ A.T @ torch.linalg.inv(A @ cov @ A.T)
    _, rest = conditional(zero, cov, A, zero[seen])

    def sample(n: int, generator: Generator) -> Tensor:
        log_p = filtered[-1].expand(n, -1)
        found = []
        for k in range(len(seen) - 1, -1, -1):
            which = torch.multinomial(log_p.softmax(dim=1), 1, generator=generator)[:, 0]
            found.append(values[which, k])
            if k:
                log_p = filtered[k - 1] + log_step[:, which, k - 1].T
        x = torch.stack(found[::-1], dim=1) @ gain.T
        x = x + gaussians(zero, rest, n, generator)
        x[:, seen] = torch.stack(found[::-1], dim=1)
        return x

    tolerance = ACCURACY**2 * len(seen)
    constraint = Equality(lambda x: function(x[:, seen]) - known.to(x), tolerance)
    return Posterior(Gaussian(zero, cov, schedule(timing)), constraint, (size,), sample)


def _problems() -> Iterator[Problem]:
    cases = (
        ("square", 0.5, "vp"),
        ("square", 0.9, "loglogit"),
        ("sine", 0.5, "edm"),
        ("sine", 0.9, "cosine"),
        ("cubic", 0.5, "loglogit"),
        ("cubic", 0.9, "vp"),
        ("exponential", 0.5, "edm"),
        ("exponential", 0.9, "loglogit"),
        ("saturated", 0.5, "vp"),
        ("saturated", 0.9, "cosine"),
        ("softplus", 0.5, "rectified"),
        ("softplus", 0.9, "edm"),
    )
    for seed, (kind, correlation, timing) in enumerate(cases, start=60):
        make = partial(chain, seed, kind, correlation, timing)
        family = "monotone" if kind in MONOTONE else "branches"
        name = f"{family}-{kind}-{correlation:g}-{timing}"
        yield Problem(name, family, "curved", make, SIZE - SIZE // LEFT_OUT)


PROBLEMS = [*_problems()]
