"""Whole equations: is every component of a discretised residual met, beside a few given values?

Poisson's and Burgers' equations have exact denoisers and known answers. Darcy flow has a learned
prior, and is held against truths of the data: the observed pressure is each truth's. Of Kuramoto
and Sivashinsky's equation each frame must follow from the one before by the solver of the data,
with its steps, on the points that the prior has.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

import feasibly
from feasibly import priors
from feasibly.constraints import Constraint, Equality
from feasibly.denoisers import Denoiser
from feasibly.errors import SamplingError
from feasibly.metrics import crps_of_each
from feasibly.network import Evaluations, Network, counted
from feasibly.problems import ks, ks_solver
from feasibly.schedules import Flow

from .. import peers
from ..benches import exact_laws
from ..benches.exact import ExactCase
from ..benches.exact_poisson import Poisson, problem
from ..records import DEFAULT, PRIOR, TRUTH, Record, averages, grouped
from ..samplers import quiet
from ..study import Measurement
from ..tables import TEXT, Columns
from ..tasks.darcy import Physics, darcy

OURS: Mapping[str, str] = {DEFAULT: "auto", "PPR": "ppr-tuned", "post-hoc projection": "post-hoc"}
THEIRS, THEIR_STEPS = "PCFM's own", 100
LABELS = (*OURS, THEIRS, PRIOR, TRUTH)
POINTS = {"Darcy": 15, "KS": 20}  # values that are given
MEMBERS = {"Poisson": 128, "Burgers": 256, "Darcy": 32, "KS": 8}
SEEDS = {"Poisson": 1, "Burgers": 1, "Darcy": 4, "KS": 1}
ACCURACY = 1e-3  # of the residual of Darcy flow, whose source is one
KS_ACCURACY = 2.5e-3  # that of the data on the prior's points, in units of the field
CASES = (
    *(
        (12, solved, timing, "one")
        for solved in (True, False)
        for timing in ("vp", "edm", "cosine")
    ),
    *((12, True, "vp", form) for form in ("two", "matrix")),
    *(
        (12, solved, "vp", form)
        for form in ("noise", "little noise", "noisy points")
        for solved in (True, False)
    ),
    (24, True, "vp", "one"),
    (24, False, "vp", "two"),
    (64, True, "vp", "one"),
    (64, False, "vp", "one"),
)
"""Of Poisson's equation: points per side, whether data solve it, the schedule, and the form."""

LAWS = ((0.0, "edm"), (1.0, "edm"))
"""Of Burgers' equation: the factor of the nonlinear term, and the schedule."""

BANDS = 4  # of wavenumbers, whose standard deviations are compared


@dataclass(frozen=True)
class Task:
    """A prior, a constraint, and what stands for the truth.

    Attributes:
        shape: The shape of a sample.
    """

    denoiser: Denoiser
    constraint: Constraint
    shape: tuple[int, ...]
    equation: Callable[[Tensor], Tensor]
    about: Callable[[Tensor], Record]


def _poisson(seed: int, *case_: Any) -> Task:
    case = ExactCase(problem(*case_))
    prior = case.denoiser
    assert isinstance(prior, Poisson)
    to_waves = prior.waves

    def about(x: Tensor) -> Record:
        truth = case.posterior.sample(1024, Generator().manual_seed(seed + 1))
        waves = [to_waves(z.double()).std(dim=0) for z in (x, truth)]
        share = (waves[0] / waves[1]).chunk(BANDS, dim=1)
        means = [part.mean().item() for row in share for part in row.chunk(BANDS, dim=2)]
        return {"ratio": case.judged(x, len(x))["ratio"], "std": [min(means), max(means)]}

    return Task(prior, case.constraint, case.shape, prior.equation, about)


def _burgers(seed: int, *case_: Any) -> Task:
    case = ExactCase(exact_laws.problem(*case_))

    def about(x: Tensor) -> Record:
        truth = case.posterior.sample(1024, Generator().manual_seed(seed + 1))
        stds = [z[:, : exact_laws.POINTS].double().std(dim=0) for z in (x, truth)]
        share = (stds[0] / stds[1])[stds[1] > exact_laws.ACCURACY]
        return {
            "ratio": case.judged(x, len(x))["ratio"],
            "std": [share.min().item(), share.max().item()],
        }

    constraint = case.constraint
    return Task(case.denoiser, constraint, case.shape, constraint.residual, about)


def _darcy(seed: int) -> Task:
    physics, generator = Physics(), Generator().manual_seed(1000 + seed)
    (truth,) = physics.sample(1, generator)
    where = torch.randperm(physics.n**2, generator=generator)[: POINTS["Darcy"]]
    seen = lambda x: x[:, 1].flatten(start_dim=1)[:, where]  # noqa: E731
    y = seen(truth[None])

    def residual(x: Tensor) -> Tensor:
        return torch.cat([physics.residual(x).flatten(start_dim=1), seen(x) - y.to(x)], dim=1)

    constraint = Equality(residual, ACCURACY**2 * physics.n**2)
    shape = tuple(truth.shape)
    return Task(darcy(Flow()), constraint, shape, physics.residual, _against(truth[:1]))


def _ks(seed: int) -> Task:
    generator = Generator().manual_seed(1000 + seed)
    u = ks_solver.bdf1(ks_solver.initial_conditions(1, generator), ks_solver.STEPS)
    stride = ks_solver.POINTS // 64
    truth = u[0, -ks_solver.POINTS :: stride, ::stride] / ks.RMS
    where = torch.randperm(truth.numel(), generator=generator)[: POINTS["KS"]]
    y = truth.flatten()[where]

    def equation(u: Tensor) -> Tensor:
        return u[:, 1:] - _followed(ks.RMS * u[:, :-1], stride) / ks.RMS

    def residual(u: Tensor) -> Tensor:
        seen = u.flatten(start_dim=1)[:, where] - y.to(u)
        return torch.cat([equation(u).flatten(start_dim=1), seen], dim=1)

    constraint = Equality(residual, KS_ACCURACY**2 * truth.numel())
    return Task(priors.load("ks"), constraint, tuple(truth.shape), equation, _against(truth))


def _followed(u: Tensor, steps: int) -> Tensor:
    """Returns fields some steps of the data's solver later, on fewer points; see
    :func:`ks_solver.bdf1`. Three iterations a step are enough."""
    k, points = ks_solver.wavenumbers(u.shape[-1]).to(u), u.shape[-1]
    P = 1 - ks_solver.DT * (k**2 - k**4)
    old = now = torch.fft.rfft(u)
    for _ in range(steps):
        guess = 2 * now - old
        for _ in range(3):
            square = torch.fft.irfft(guess, n=points).square()
            guess = (now - 0.5j * ks_solver.DT * k * torch.fft.rfft(square)) / P
        old, now = now, guess
    return torch.fft.irfft(now, n=points)


def _against(truth: Tensor) -> Callable[[Tensor], Record]:
    """Returns how to score the first field of samples against one truth."""

    def about(x: Tensor) -> Record:
        x, M = x[:, : len(truth)].double(), len(x)
        rank = (x < truth).double().sum(dim=0)
        return {
            "crps": crps_of_each(x[None], truth[None].double()).mean().item(),
            "variance": (M + 1) / M * x.var(dim=0).mean().item(),
            "mean_se": (x.mean(dim=0) - truth).square().mean().item(),
            "outside": ((rank == 0) | (rank == M)).double().mean().item() * (M + 1) / 2,
        }

    return about


TASKS = {"Poisson": _poisson, "Burgers": _burgers, "Darcy": _darcy, "KS": _ks}


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples one ensemble, and scores it."""
    label, seed, members = setting["label"], setting["seed"], setting["members"]
    task = TASKS[setting["task"]](seed, *setting["case"])
    denoiser, constraint, shape = task.denoiser, task.constraint, task.shape
    taken, found, start = Evaluations(), Record(), time.perf_counter()
    if label == THEIRS:
        with counted(taken):
            x = _theirs(Network(denoiser), constraint, members, shape, seed)
        found["commit"] = peers.commit("PCFM")
    else:
        posed = denoiser, None if label == PRIOR else constraint, members, shape
        try:
            result = quiet(*posed, method=OURS.get(label, "auto"), seed=seed)
        except SamplingError as error:
            return [{"error": str(error), "seconds": time.perf_counter() - start}]
        x, taken = result.samples, result.evaluations
        found |= {"reason": result.reason, "warnings": list(result.warnings)}
    found["seconds"] = time.perf_counter() - start
    if setting["task"] in ("Darcy", "KS"):
        monitor = feasibly.plan(denoiser, constraint, shape).monitor
        assert monitor is not None
        plausible = monitor.assess(x, range(members))
        found["plausible"] = plausible.plausible.double().mean().item()
    return [
        task.about(x)
        | found
        | {
            "feasible": constraint.is_feasible(x).double().mean().item(),
            "violation": constraint.violation(x.double()).median().item(),
            "equation": task.equation(x.double()).square().mean().sqrt().item(),
            "forward": taken.member_forward / members,
            "backward": taken.member_backward / members,
        }
    ]


def _theirs(
    network: Network, constraint: Constraint, members: int, shape: tuple[int, ...], seed: int
) -> Tensor:
    """Samples by PCFM's own code, whose fields have two axes."""
    flat = (shape[0] * shape[1], shape[2])
    v = peers.velocity(lambda u, s: network(u.reshape(-1, *shape), s).reshape(-1, *flat))
    residual = lambda u: constraint.residual(u.reshape(1, *shape))[0]  # noqa: E731
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        u = torch.randn(members, *flat)
        return peers.pcfm(v, u, residual, THEIR_STEPS, guided=False).reshape(-1, *shape)


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: means over seeds."""
    found = []
    named = [one | {"name": _name(one["task"], *one["case"])} for one in records]
    for (task, case, label), group in grouped(named, "task", "name", "label").items():
        row: Record = {"task": f"{task}{case}", "label": label, "default": label == DEFAULT}
        found.append(row)
        if any("error" in one for one in group):
            row["spread"] = "failed"
            continue
        row |= averages(group, "feasible", "ratio", "crps", "plausible", "equation", "outside")
        mean = averages(group, "variance", "mean_se", "forward", "backward")
        if "std" in group[0]:
            low, high = zip(*(one["std"] for one in group), strict=True)
            row["spread"] = f"{min(low):.2f} to {max(high):.2f}"
        else:
            row["spread"] = f"{math.sqrt(mean['variance'] / mean['mean_se']):.2f}"
        row["evaluations"] = f"{mean['forward']:.0f} + {mean['backward']:.0f}"
    return found


def _name(task: str, *case: Any) -> str:
    """What follows the name of a task in tables, for a case of it."""
    if task == "Poisson":
        n, solved, timing, form = case
        data = "data solve it" if solved else "data do not"
        return f" {n} x {n}, {data}, {timing}, {form}"
    if task == "Burgers":
        speed, timing = case
        size = f"{exact_laws.TIMES} x {exact_laws.POINTS}"
        return f" {size}, {'nonlinear' if speed else 'linear'}, {timing}"
    return ""


COLUMNS: Columns = {
    "task": ("equation", TEXT),
    "label": ("method", TEXT),
    "feasible": ("feasible", "{:.0%}"),
    "ratio": ("sliced", "{:.2f}"),
    "spread": ("spread", TEXT),
    "crps": ("CRPS", "{:.3f}"),
    "evaluations": ("evaluations", TEXT),
}

MEASUREMENT = Measurement(
    name="equations",
    question="Are whole equations met, and are samples distributed as they should be?",
    problem="equations",
    settings=[
        {
            "task": task,
            "case": case,
            "label": label,
            "seed": seed,
            "members": 32 if 64 in case else MEMBERS[task],
        }
        for task, cases, labels in (
            ("Poisson", CASES, (DEFAULT,)),
            ("Burgers", LAWS, (DEFAULT, "PPR")),
            ("Darcy", [()], (*OURS, THEIRS, PRIOR)),
            ("KS", [()], (DEFAULT, "post-hoc projection", PRIOR)),
        )
        for case in cases
        for label in labels
        for seed in range(SEEDS[task])
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
