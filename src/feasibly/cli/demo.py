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
    """Sample shipped models under hard constraints, and show how well it works.

    Arguments:
        problem: three for a brief look at three problems; data2d for points in the plane, from two
            models; ks for trajectories of the Kuramoto-Sivashinsky equation; or weather for days
            of a toy shallow-water model.
        out: The folder for the report, the figures and the samples.
        members: The number of samples of each ensemble: by default 1024 points, 4 trajectories or
            8 days. For `three`, the number of points and of maps, by default 512.
        constraint: The number of the constraint (0 to 11), or of the reference trajectory or day.
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
