"""How near are samples to the reference posteriors of sbibm, whose authors know nothing of us?

A prior is trained on pairs of parameters and data. Conditioned on the data exactly, its
parameters are compared with the benchmark's reference by the benchmark's two-sample test (C2ST):
the accuracy of a classifier, which is 0.5 where it cannot tell them apart. The study needs the
benchmark's files (`pip install --no-deps sbibm`) and scikit-learn, and for one row azula.

References:
    | Benchmarking Simulation-Based Inference (Lueckmann et al., 2021)
    | https://arxiv.org/abs/2101.04653
    | CBG, whose row is quoted from its paper (2026), https://arxiv.org/abs/2602.22428
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from feasibly import priors
from feasibly.constraints import Linear
from feasibly.denoisers import Karras
from feasibly.errors import SamplingError
from feasibly.network import Evaluations, Network, counted
from feasibly.samplers import SMC

from .. import figures, peers
from ..records import DEFAULT, Record, grouped, pack
from ..samplers import cost, quiet
from ..study import Measurement
from ..tables import TEXT, Columns
from ..tasks.learned import HOME
from ..tasks.sbi import TASKS, Task

MEMBERS, MANY = 1_000, 10_000
OBSERVATIONS = 10
ACCURACY = 1e-3  # of feasible data, in their standard deviations

METHODS: Mapping[str, str | SMC] = {
    DEFAULT: "auto",
    "PPR": "ppr-tuned",
    "MMPS": "mmps",
    "SMC, 32 particles": SMC(particles=32),
}
"""For each label the method, with no other option but the particles."""

AZULA = "azula's TDS"
LABELS = (*METHODS, AZULA)


@peers.optional
def measure(setting: dict) -> list[Record]:
    """Samples the posterior of one observation, and compares it with the reference."""
    task, label, members = TASKS[setting["task"]], setting["label"], setting["members"]
    reference, test = task.reference(setting["observation"]), _classifier()
    model, constraint = _posed(task, setting["observation"])
    start, taken = time.perf_counter(), Evaluations()
    about: Record = {}
    if label == AZULA:
        with torch.random.fork_rng(), counted(taken):
            torch.manual_seed(0)
            x = peers.azula_tds(Network(model), constraint, members, (task.dim,), steps=256)
    else:
        try:
            result = quiet(model, constraint, members, (task.dim,), method=METHODS[label])
        except SamplingError as error:
            return [{"error": str(error)}]
        x, taken = result.samples, result.evaluations
        about = {"warnings": result.warnings, "pareto_k": result.pareto_k}
    about |= cost(taken, members, start)
    theta = task.parameters_of(x)
    if label == DEFAULT and setting["observation"] == 1 and members == MEMBERS:
        about["theta"] = pack(theta)  # for the figure
    return [
        about
        | {
            "feasible": constraint.is_feasible(x).double().mean().item(),
            "c2st": test(theta, reference[:members]),
        }
    ]


def _posed(task: Task, observation: int) -> tuple[Karras, Linear]:
    """The prior, and the data of an observation as a constraint.

    Raises:
        Missing: If the prior has not been trained.
    """
    weights = HOME / f"sbi-{task.name}.safetensors"
    if not weights.exists():
        command = f"python -m experiments train sbi-{task.name} --ship"
        raise peers.Missing(f"There is no prior of {task.name}; run: {command}")
    seen = torch.eye(task.dim)[task.parameters :]
    constraint = Linear(seen, task.observation(observation), ACCURACY**2 * task.data)
    return priors.load(str(weights)), constraint


def _classifier() -> Callable[[Tensor, Tensor], float]:
    """Returns the benchmark's test: the accuracy of a small network, by five folds.

    Raises:
        Missing: If scikit-learn is not installed.
    """
    choose = peers.installed("sklearn.model_selection", "scikit-learn")
    networks = peers.installed("sklearn.neural_network", "scikit-learn")

    def c2st(x: Tensor, reference: Tensor) -> float:
        mean, std = reference.mean(dim=0), reference.std(dim=0)
        both = (torch.cat([reference, x]) - mean) / std
        which = torch.cat([torch.zeros(len(reference)), torch.ones(len(x))])
        width = 10 * x.shape[1]
        network = networks.MLPClassifier((width, width), max_iter=10_000, random_state=1)
        folds = choose.KFold(5, shuffle=True, random_state=1)
        found = choose.cross_val_score(network, both.numpy(), which.numpy(), cv=folds)
        return float(found.mean())

    return c2st


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns a row for each task and number of samples: of each label the mean C2ST over the
    observations that it has sampled, and their number."""
    found = []
    for (name, members), group in grouped(records, "task", "members").items():
        row: Record = {"task": name.replace("_", " ")}
        if members != MEMBERS:
            row["task"] += f", {members:,} samples"
        for (label,), part in grouped(group, "label").items():
            scores = [one["c2st"] for one in part if "c2st" in one]
            failed = "" if len(scores) == len(part) else f", {len(part) - len(scores)} failed"
            row[label] = f"{fmean(scores):.3f} ({len(scores)}{failed})" if scores else "failed"
        if published := TASKS[name].published:
            row["published"] = f"{published:.3f}"
        found.append(row)
    return found


COLUMNS: Columns = {
    "task": ("task", TEXT),
    **{label: (label, TEXT) for label in LABELS},
    "published": ("CBG, as published", TEXT),
}

MEASUREMENT = Measurement(
    name="sbi",
    question="How near are samples to the reference posteriors of sbibm?",
    problem="sbi",
    settings=[
        {"task": task, "observation": k + 1, "label": label, "members": members}
        for members, labels in ((MEMBERS, LABELS), (MANY, (DEFAULT,)))
        for k in range(OBSERVATIONS)
        for label in labels
        for task in TASKS
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
    figures={"": figures.posteriors},
)
