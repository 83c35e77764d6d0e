"""`python -m experiments {data, train, run, enter, tables, figures, docs, gallery}`."""

import hashlib
import sys
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from feasibly.problems.data2d import DISTRIBUTIONS

from . import data as datasets
from . import gallery as examples
from . import pages, records, studies, tables
from . import run as running
from .benches import Bench, Data2DBench, ExactBench, HeatBench, KSBench, OraclesBench, WeatherBench
from .benches.data2d import CURVES
from .recipes import RECIPES
from .train import export
from .train import train as train_prior

Positional = tyro.conf.Positional
PRIORS = tyro.extras.subcommand_type_from_defaults({k: r.config for k, r in RECIPES.items()})


def data(
    name: Positional[Literal["ks", "weather", "weather-day"]],
    number: int | None = None,
    out: Path = Path("runs/data"),
) -> None:
    """Simulate training data; a stopped run is taken up where it was.

    Arguments:
        name: Kuramoto-Sivashinsky trajectories, the weather of a small planet hour by hour, or
            one day of it, which no prior is trained on, as netCDF.
        number: How many trajectories of KS, by default 8,192 (the paper has 65,536), or members
            of the weather, by default 128.
        out: The folder for the file.
    """
    torch.set_num_threads(1)  # the weather's kernels are too small to be shared
    if name == "ks":
        datasets.ks(out / "ks.npy", number or 8192)
    elif name == "weather":
        datasets.weather(out / "weather.npy", number or 128)
    else:
        datasets.weather_day(out / "weather_day.nc")


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
        ship: Write the finished prior to where it is shipped from instead.
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
    problem: str | None = None,
    observations: tuple[str, ...] = (),
    members: int | None = None,
    constraints: int = 12,
    references: int | None = None,
    first: int = 0,
    pool: int = 49152,
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
        constraints: How many constraints of Data2D; of the curves always all.
        references: How many references of KS or days of weather, by default, and at most, those
            of the study's protocol, or how many of each oracle or ensembles of each case of heat,
            by default 3. A study that was run on a few is later taken up with more.
        first: The seed of the first constraint's random field, or the first reference: 0 for
            those of the results, 100 for those on which defaults are tuned.
        pool: How many samples of the prior the ground truth of Data2D is selected from.
        held_out: The held-out exact problems, in place of the others.
        jobs: How many processes share the settings.
        device: Where the networks of KS and of the weather run.
        labels: The samplers to run; all by default.
    """
    found, where = _asked(study, problem)
    if isinstance(found, studies.Measurement):
        torch.set_num_threads(1)
        running.measure(found, labels)
        return
    some = range(first, first + (references or 3))
    bench: Bench
    if where in ("ks", "weather"):
        make = KSBench if where == "ks" else WeatherBench
        some = range(first, first + (references or make.protocol[0]))
        bench = make(observations or make.kinds, some, members, device)
    elif where == "oracles":
        bench = OraclesBench(observations, some, members or 1024)
    elif where == "exact":
        bench = ExactBench(observations, members, held_out)
    elif where == "heat":
        bench = HeatBench(observations, some, members)
    else:
        fields = range(first, first + constraints)
        if where == "curves":
            fields = range(len(CURVES))
        bench = Data2DBench(where, list(DISTRIBUTIONS), fields, members or 1024, pool)
    running.share(found, bench, jobs, labels)


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
        running.measure(found)
    except KeyboardInterrupt:
        raise SystemExit(
            "Stopped. Results of finished problems are kept. The same command goes on."
        ) from None
    print(tables.render(found.rows(records.read(found.name, found.problem)), found.columns))


def print_tables(study: Positional[str], problem: str | None = None) -> None:
    """Print a study's question and its table, with all columns.

    Arguments:
        study: The name of the study.
        problem: The problem; by default the study's first.
    """
    found, where = _asked(study, problem)
    print(found.question)
    rows = records.read(found.name, where)
    shown = found if isinstance(found, studies.Measurement) else found.on[where]
    if shown.rows is not None:
        print(f"\n{tables.render(shown.rows(rows), shown.columns)}")
        return
    for name, part in tables.parts(rows):
        print(f"\n{name}\n" if name else "")
        print(tables.render(tables.means(part)))


def docs() -> None:
    """Write the tables of the README and the docs anew."""
    for page in pages.PAGES:
        page.write_text(pages.fill(page.read_text()))
        print(page)


def gallery(names: Positional[tuple[str, ...]] = (), prose: bool = False) -> None:
    """Run examples of the gallery in full, and store what they print and draw.

    Arguments:
        names: The examples, files of `docs/gallery`; all by default.
        prose: Whether only prose has changed, so that stored outputs are kept and nothing is run.
    """
    for name in names or examples.names():
        examples.execute(name, prose)
        print(examples.FOLDER / f"{name}.ipynb")


def figures(study: Positional[str], problem: str | None = None) -> None:
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
        "gallery": gallery,
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
