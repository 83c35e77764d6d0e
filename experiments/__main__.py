"""`python -m experiments {data, train, run, enter, tables, figures, docs}`."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from feasibly.problems.data2d import DISTRIBUTIONS
from feasibly.problems.ks import OBSERVATIONS

from . import data as datasets
from . import measure, pages, parallel, records, studies, tables, variables
from .benches import (
    Bench,
    Data2DBench,
    ExactBench,
    HeatBench,
    KSBench,
    ObservedBench,
    OraclesBench,
    WeatherBench,
)
from .benches.curves import CURVES
from .benches.posteriors import POSTERIORS
from .recipes import RECIPES
from .train import export
from .train import train as train_prior

Positional = tyro.conf.Positional
PRIORS = tyro.extras.subcommand_type_from_defaults({k: r.config for k, r in RECIPES.items()})
Problem = Literal[
    "data2d",
    "lines",
    "curves",
    "oracles",
    "exact",
    "equations",
    "heat",
    "solutions",
    "ks",
    "weather",
]


@dataclass(frozen=True)
class KSData:
    """Kuramoto-Sivashinsky trajectories.

    Arguments:
        trajectories: The number of trajectories; the paper has 65,536.
        size: The number of frames and of grid points of each.
        seed: The seed.
    """

    trajectories: int = 8192
    size: int = 128
    seed: int = 0

    def write(self, folder: Path) -> None:
        datasets.ks(folder / "ks.npy", self.trajectories, self.size, self.seed)


@dataclass(frozen=True)
class WeatherData:
    """The weather of a small planet, hour by hour.

    Arguments:
        members: The number of members.
        hours: The hours of each, after 20 days of spin-up.
        resolution: The truncation of the solver.
        seed: The seed.
    """

    members: int = 128
    hours: int = 384
    resolution: Literal["T21", "T31", "T42"] = "T31"
    seed: int = 0

    def write(self, folder: Path) -> None:
        torch.set_num_threads(1)  # its kernels are too small to be shared
        path = folder / "weather.npy"
        datasets.weather(path, self.members, self.hours, self.resolution, self.seed)


@dataclass(frozen=True)
class WeatherDay:
    """One day of it, which no prior is trained on, as netCDF."""

    def write(self, folder: Path) -> None:
        torch.set_num_threads(1)
        datasets.weather_day(folder / "weather_day.nc")


DATA = tyro.extras.subcommand_type_from_defaults(
    {"ks": KSData(), "weather": WeatherData(), "weather-day": WeatherDay()}
)


def data(
    config: Annotated[DATA, tyro.conf.arg(name="")],  # ty: ignore[invalid-type-form]
    out: Path = Path("runs/data"),
) -> None:
    """Simulate training data; a stopped run is taken up where it was.

    Arguments:
        config: What to simulate.
        out: The folder for the file.
    """
    config.write(out)


def train(
    config: Annotated[PRIORS, tyro.conf.arg(name="")],  # ty: ignore[invalid-type-form]
    out: Path = Path("runs"),
    data: Path = Path("runs/data"),
    ship: bool = False,
) -> None:
    """Train a prior, resuming from its last checkpoint.

    Arguments:
        config: The prior and its training's settings.
        out: The folder for checkpoints and, when finished, for the prior and its card.
        data: The folder of the training data, for the priors that need some.
        ship: Write the finished prior to where it is kept instead: into the package, or to
            `experiments/priors`.
    """
    name = config.prior
    folder = out / name
    trainer = train_prior(folder, config, data)
    if trainer.step < config.steps:
        print(f"Stopped at step {trainer.step} of {config.steps}; the same command resumes.")
        return
    target = trainer.recipe.home if ship else folder
    export(trainer, folder, target)
    print((target / f"{name}.md").read_text())


def run(
    study: Positional[str],
    problem: Problem | None = None,
    observations: tuple[str, ...] = (),
    members: int | None = None,
    seed: int = 0,
    constraints: int = 12,
    references: int | None = None,
    first: int = 0,
    pool: int = 49152,
    full: bool = False,
    held_out: bool = False,
    jobs: int = 2,
    device: str = "cpu",
    labels: tuple[str, ...] = (),
) -> None:
    """Run a study; settings that have a result are not run again.

    Arguments:
        study: The name of the study.
        problem: The problem; by default the study's first.
        observations: The kinds of observation of KS or of the weather, by default the paper's
            three of KS, and `state`, `wind` and `sine` of the weather; or the posteriors of the
            oracles, by default all; or exact problems or families of them, or cases of heat, by
            default all.
        members: The members of an ensemble; by default 1024 on Data2D, the oracles and the exact
            problems (fewer on large ones), elsewhere those of the study's protocol.
        seed: The seed of the ensembles.
        constraints: How many constraints of Data2D; of the curves always all.
        references: How many references of KS or days of weather, by default, and at most, those
            of the study's protocol, or how many of each oracle or ensembles of each case of heat,
            by default 3. A study that was run on a few is later taken up with more.
        first: The seed of the first constraint's random field, or the first reference: 0 for
            those of the results, 100 for those on which defaults are tuned.
        pool: How many samples of the prior the ground truth of Data2D is selected from.
        full: The paper's number of references (256 of KS, 4 days of weather) and 32 members, for
            all labels.
        held_out: The exact problems that are set aside, in place of the others.
        jobs: How many processes share the settings.
        device: Where the networks of KS and of the weather run.
        labels: The samplers to run; all by default.
    """
    found, where = _asked(study, problem)
    if isinstance(found, studies.Measurement):
        torch.set_num_threads(1)
        measure.run(found, labels)
        return
    bench: Bench
    if where in OBSERVED:
        make, kinds, most = OBSERVED[where]
        some = references or (most if full else make.protocol[0])
        bench = make(
            observations or kinds,
            range(first, first + some),
            32 if full else members,
            seed,
            full,
            device,
        )
    elif where == "oracles":
        numbers = range(first, first + (references or 3))
        names = observations or tuple(POSTERIORS)
        bench = OraclesBench(names, numbers, members or 1024, seed)
    elif where == "exact":
        bench = ExactBench(observations, members, seed, held_out)
    elif where == "heat":
        bench = HeatBench(observations, range(first, first + (references or 3)), members)
    else:
        fields = range(first, first + constraints)
        if where == "curves":
            fields = range(len(CURVES))
        bench = Data2DBench(where, list(DISTRIBUTIONS), fields, members or 1024, seed, pool)
    parallel.run(found, bench, jobs, labels)


OBSERVED: dict[str, tuple[type[ObservedBench], tuple[str, ...], int]] = {
    "ks": (KSBench, tuple(OBSERVATIONS), 256),
    "weather": (WeatherBench, ("state", "wind", "sine"), 4),
}
"""The problems with references: the bench, its observations, and the paper's references."""


def enter(file: Positional[Path], name: str = "") -> None:
    """Run a sampler of your own on the referee's problems, and print the table with it.

    The file defines `sample(denoiser, constraint, members, shape, seed)`, which returns samples
    with shape (members, *shape). Problems that have a result are not run again.

    Arguments:
        file: The Python file.
        name: The name in the table; by default that of the file.
    """
    torch.set_num_threads(1)
    sampler = studies.referee.sampler_of(file)
    code = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    found = studies.referee.entered(name or file.stem, sampler, code)
    try:
        measure.run(found)
    except KeyboardInterrupt:
        raise SystemExit(
            "Stopped. Results of finished problems are kept. The same command goes on."
        ) from None
    print(tables.render(found.rows(records.read(found.name, found.problem)), found.columns))


def print_tables(study: Positional[str], problem: Problem | None = None) -> None:
    """Print a study's question and its table, with all columns.

    Arguments:
        study: The name of the study.
        problem: The problem; by default the study's first.
    """
    found, where = _asked(study, problem)
    print(found.question)
    rows = records.read(found.name, where)
    if isinstance(found, studies.Measurement):
        print(f"\n{tables.render(found.rows(rows), found.columns)}")
        return
    comparison = found.on[where]
    if comparison.rows is not None:
        print(f"\n{tables.render(comparison.rows(rows), comparison.columns)}")
        return
    for name, part in variables.parts(rows):
        print(f"\n{name}\n" if name else "")
        print(tables.render(tables.means(part)))


def docs() -> None:
    """Write the tables of the README and the docs anew."""
    for page in pages.PAGES:
        page.write_text(pages.fill(page.read_text()))
        print(page)


def figures(study: Positional[str], problem: Problem | None = None) -> None:
    """Draw a study's figures from its results.

    Arguments:
        study: The name of the study.
        problem: The problem; by default the study's first.
    """
    found, where = _asked(study, problem)
    drawings = (found if isinstance(found, studies.Measurement) else found.on[where]).figures
    if not drawings:
        raise ValueError(f"{study} has no figures on {where}.")
    rows = records.read(study, where)
    for suffix, draw in drawings.items():
        path = records.RESULTS / where / f"{study}{suffix}.png"
        draw(rows).savefig(path, dpi=150)
        print(path)


def _asked(name: str, problem: str | None) -> tuple[studies.Study | studies.Measurement, str]:
    """The study of a name, and the problem that is meant."""
    found = studies.find(name)
    known = [found.problem] if isinstance(found, studies.Measurement) else list(found.on)
    if problem not in (None, *known):
        raise ValueError(f"{name} is a study on {', '.join(known)}, and not on {problem}.")
    return found, problem or known[0]


if __name__ == "__main__":
    commands = {
        "data": data,
        "train": train,
        "run": run,
        "enter": enter,
        "tables": print_tables,
        "figures": figures,
        "docs": docs,
    }
    try:
        tyro.extras.subcommand_cli_from_dict(  # ty: ignore[no-matching-overload]
            commands,
            prog="experiments",
            description=__doc__,
            config=(tyro.conf.CascadeSubcommandArgs,),
        )
    except ValueError as error:
        message = f"[bold red]error:[/] {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)
