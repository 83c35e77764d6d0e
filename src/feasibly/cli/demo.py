"""`python -m feasibly demo`: shipped priors under hard constraints."""

__all__ = ["demo"]

from pathlib import Path
from typing import Literal

import tyro

from .demo_data2d import demo_data2d
from .demo_ks import demo_ks
from .demo_three import demo_three
from .demo_weather import demo_weather
from .words import make_folder


def demo(
    problem: tyro.conf.Positional[Literal["three", "data2d", "ks", "weather"]] = "three",
    out: Path = Path("out/demo"),
    members: int | None = None,
    constraint: int = 0,
    seed: int = 0,
) -> int:
    """Sample priors under hard constraints, and show how well.

    Arguments:
        problem: One look at three problems; points in the plane, of two priors; trajectories of
            the Kuramoto-Sivashinsky equation; or days of weather on a small planet.
        out: The folder for the report, the figures and the samples.
        members: The number of samples of each ensemble: by default 1024 points, 4 trajectories or
            8 days. Of `three`, that of the points and of the maps: 512.
        constraint: Which of the constraints, 0 to 11, or which reference trajectory or day.
        seed: The seed of the ensembles.
    """
    make_folder(out)  # before the work, not after it
    if problem == "three":
        return demo_three(out, 512 if members is None else members, constraint, seed)
    if problem == "ks":
        return demo_ks(out, 4 if members is None else members, constraint, seed)
    if problem == "weather":
        return demo_weather(out, 8 if members is None else members, constraint, seed)
    return demo_data2d(out, 1024 if members is None else members, constraint, seed)
