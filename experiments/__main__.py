"""`python -m experiments {train, run, tables, figures, docs}`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from . import records, studies, tables
from . import run as runner
from .figures import FIGURES
from .train import TrainConfig, export
from .train import train as train_prior

Positional = tyro.conf.Positional
CONFIG = TrainConfig()


def train(
    name: Positional[Literal["checkerboard", "banana"]],
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = CONFIG,
    out: Path = Path("runs"),
    ship: bool = False,
) -> None:
    """Train a prior, resuming from its last checkpoint.

    Arguments:
        name: The prior.
        config: The training's settings.
        out: The folder for checkpoints and, when finished, for the prior and its card.
        ship: Write the finished prior into the package instead.
    """
    folder = out / name
    trainer = train_prior(name, folder, config)
    if trainer.step < config.steps:
        print(f"Stopped at step {trainer.step} of {config.steps}; the same command resumes.")
        return
    target = Path(__file__).parent.parent / "src/feasibly/priors" if ship else folder
    export(name, trainer, folder, target)
    print((target / f"{name}.md").read_text())


def run(
    study: Positional[str],
    problem: Literal["data2d"] = "data2d",
    priors: tuple[str, ...] = ("checkerboard", "banana"),
    members: int = 1024,
    seed: int = 0,
    constraints: int = 12,
    first: int = 0,
    pool: int = 49152,
    threads: int = 1,
    labels: tuple[str, ...] = (),
) -> None:
    """Run a study; settings that have a result are not run again.

    Arguments:
        study: The name of the study.
        problem: The problem.
        priors: The priors.
        members: The members of an ensemble.
        seed: The seed of the ensembles.
        constraints: How many constraints.
        first: The seed of the first constraint's random field: 0 for the twelve of Data2D, 100
            for those on which defaults are tuned.
        pool: How many samples of the prior the ground truth is selected from.
        threads: The number of threads.
        labels: The samplers to run; all by default.
    """
    import torch

    torch.set_num_threads(threads)
    fields = range(first, first + constraints)
    runner.run(_study(study), list(priors), members, seed, fields, pool, labels)


def print_tables(
    study: Positional[str],
    problem: Literal["data2d"] = "data2d",
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    mean: bool = False,
) -> None:
    """Print a study's table.

    Arguments:
        study: The name of the study.
        problem: The problem.
        as_json: Print one JSON object a setting instead of a Markdown table of means.
        mean: With --json, print the means.
    """
    rows = records.read(_study(study).name, problem)
    if as_json:
        for row in tables.means(rows) if mean else rows:
            print(json.dumps(row))
    else:
        print(tables.render(tables.means(rows)))


def docs() -> None:
    """Write the tables of the README and the docs anew, from the results."""
    root = records.RESULTS.parent
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        page.write_text(tables.fill(page.read_text(), records.read))
        print(page)


def figures(study: Positional[str], problem: Literal["data2d"] = "data2d") -> None:
    """Draw a study's figures, as PNG and PDF, from its results.

    Arguments:
        study: The name of the study.
        problem: The problem.
    """
    name = _study(study).name
    if name not in FIGURES:
        raise ValueError(f"{name} has no figures; those of {sorted(FIGURES)} can be drawn.")
    figure = FIGURES[name](records.read(name, problem))
    for suffix in ("png", "pdf"):
        path = records.RESULTS / problem / f"{name}.{suffix}"
        figure.savefig(path, dpi=150)
        print(path)


def _study(name: str) -> studies.Study:
    found = studies.find()
    if name not in found:
        raise ValueError(f"There is no study {name!r}; choose one of {sorted(found)}.")
    return found[name]


if __name__ == "__main__":
    commands = {
        "train": train,
        "run": run,
        "tables": print_tables,
        "figures": figures,
        "docs": docs,
    }
    try:
        tyro.extras.subcommand_cli_from_dict(  # ty: ignore[no-matching-overload]
            commands,
            prog="experiments",
            description=__doc__,
        )
    except ValueError as error:
        message = f"[bold red]error:[/] {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)
