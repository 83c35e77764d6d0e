"""Runs a study: every sampler in every setting, resuming where a run was stopped."""

__all__ = ["PROBLEMS", "run"]

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from feasibly.constraints import Constraint
from feasibly.errors import InfeasibleWarning, SamplingError
from feasibly.problems.data2d import Data2D, Lines
from feasibly.result import Result
from feasibly.samplers import Sampler

from . import records
from .studies.base import Study
from .versions import versions

TRUTH = "truth against itself"

PROBLEMS: dict[str, type[Data2D]] = {"data2d": Data2D, "lines": Lines}


def run(
    study: Study,
    priors: list[str],
    members: int,
    seed: int,
    constraints: range,
    pool: int,
    only: Sequence[str] = (),
) -> None:
    """Runs a study on its problem, and appends a record for each setting that has none.

    Arguments:
        study: The study.
        priors: The names of the priors.
        members: The number of members of an ensemble, and of ground-truth samples.
        seed: The seed of the ensembles.
        constraints: Which constraints, by their seeds.
        pool: How many samples of the prior the ground truth is selected from.
        only: The labels to run; all by default.
    """
    console = Console()
    made_by = versions()  # once: the code that runs is the code that was loaded
    path = records.path_of(study.name, study.problem)
    known = records.read(study.name, study.problem) if path.exists() else []
    keys = ("label", "prior", "constraint", "members", "seed", "pool", "sampler")
    done = {tuple(record[k] for k in keys) for record in known}

    for prior in priors:
        problem = PROBLEMS[study.problem](prior)
        for k in constraints:
            constraint = problem.constraint(k)
            labels = [v for v in (*study.samplers, TRUTH) if not only or v in only]
            names = {
                v: "" if v == TRUTH else repr(study.samplers[v](problem.denoiser, constraint))
                for v in labels
            }
            todo = [v for v in labels if (v, prior, k, members, seed, pool, names[v]) not in done]
            if not todo:
                continue
            truth = problem.ground_truth(constraint, problem.prior_samples(pool))
            if len(truth) < 2 * members:
                raise ValueError(
                    f"Only {len(truth)} of {pool} samples of the prior satisfy constraint {k}; "
                    f"{2 * members} are needed. Raise --pool."
                )
            for label in todo:
                record: records.Record = {
                    "study": study.name,
                    "label": label,
                    "default": label == study.default,
                    "problem": study.problem,
                    "prior": prior,
                    "constraint": k,
                    "members": members,
                    "seed": seed,
                    "pool": pool,
                    "sampler": names[label],
                }
                if label == TRUTH:
                    second = truth[members : 2 * members]
                    feasible = constraint.is_feasible(second)
                    record |= problem.scores(second, feasible, truth[:members])
                else:
                    make = partial(study.samplers[label], problem.denoiser, constraint)
                    record |= _score(make, problem, constraint, members, seed, truth[:members])
                records.append(study.name, study.problem, record | {"versions": made_by})
                console.print(
                    f"{prior} {k:2d} {label}: feasible {record['feasible']:.1%}, joint "
                    f"{record['joint']:.1%}, k-NN {record['knn']:.3f}",
                    highlight=False,
                )


def _score(
    make: Callable[[], Sampler],
    problem: Data2D,
    constraint: Constraint,
    members: int,
    seed: int,
    truth: Tensor,
) -> records.Record:
    """Scores a sampler under its own read-out and, as `state_*`, under the state."""
    sampler = make()
    tap = Tap(sampler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InfeasibleWarning)
            result = sampler.sample(members, problem.shape, seed=seed)
            state = tap.x_t
            if sampler.retries or type(sampler).finish is not Sampler.finish:
                other = make()  # the last step's states are not what it would return
                other.readout = "state"
                state = other.sample(members, problem.shape, seed=seed).samples
    except SamplingError as error:  # a method that breaks down scores nothing, and is kept
        nothing = dict.fromkeys(("feasible", "in_support", "joint", "knn"), 0.0) | {"tv": 1.0}
        noted = {f"state_{key}": value for key, value in nothing.items()}
        return nothing | noted | {"error": str(error)}
    scores = problem.scores(result.samples, result.feasible, truth)
    noisy = problem.scores(state, constraint.is_feasible(state), truth)
    noted = {f"state_{k}": noisy[k] for k in ("feasible", "in_support", "joint", "knn", "tv")}
    return scores | noted | _account(result)


class Tap:
    """Keeps the states that a sampler's last step returned, so that one run gives both
    read-outs."""

    def __init__(self, sampler: Sampler) -> None:
        self.step = sampler.step
        self.x_t = torch.empty(0)
        sampler.step = self  # ty: ignore[invalid-assignment]

    def __call__(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        self.x_t, x_0 = self.step(*arguments)
        return self.x_t, x_0


def _account(result: Result) -> dict[str, float | str]:
    quantiles = torch.tensor([0.5, 0.9, 0.99, 1.0], dtype=torch.float64)
    c = result.violation.double().nan_to_num(posinf=1e300)
    values: Tensor = c.quantile(quantiles)
    return {
        "violation_median": values[0].item(),
        "violation_90": values[1].item(),
        "violation_99": values[2].item(),
        "violation_worst": values[3].item(),
        "forward": result.calls.forward,
        "backward": result.calls.backward,
        "member_forward": result.calls.member_forward / len(result.members),
        "member_backward": result.calls.member_backward / len(result.members),
        "seconds": result.seconds,
        "overhead": result.overhead,
    }
