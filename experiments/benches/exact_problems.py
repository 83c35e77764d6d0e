"""The problems whose exact distribution is known, and which of them are held out."""

from collections.abc import Iterable, Mapping

import torch

from . import (
    exact_blind,
    exact_branches,
    exact_curves,
    exact_fields,
    exact_inside,
    exact_learned,
    exact_limits,
    exact_linear,
    exact_many,
    exact_rare,
)
from .exact_base import Problem

FAMILIES = (
    exact_linear,
    exact_curves,
    exact_inside,
    exact_fields,
    exact_branches,
    exact_learned,
    exact_rare,
    exact_many,
    exact_limits,
    exact_blind,
)

PROBLEMS: Mapping[str, Problem] = {
    problem.name: problem for family in FAMILIES for problem in family.PROBLEMS
}
"""All of them, by name."""

SEED = 20  # of the choice of those that are held out


def held_out(problems: Iterable[Problem]) -> frozenset[str]:
    """Returns the names of a third of the problems of each family, chosen by a seed from the names
    in alphabetical order."""
    families: dict[str, list[str]] = {}
    for problem in problems:
        families.setdefault(problem.family, []).append(problem.name)
    chosen = []
    for names in map(sorted, families.values()):
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(SEED))
        chosen += [names[i] for i in order[: round(len(names) / 3)].tolist()]
    return frozenset(chosen)


HELD_OUT = (
    held_out(
        problem
        for family in FAMILIES
        if family not in (exact_many, exact_limits, exact_blind)
        for problem in family.PROBLEMS
    )
    | exact_many.ASIDE
    | {problem.name for problem in exact_blind.PROBLEMS}
)
"""The names of those that no policy is tuned on: a third of each family, half of those with
many values, all that are blind, and no limit."""
