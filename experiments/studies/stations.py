"""What do stations with errors tell of a day, alone and beside a mass that is exact?

Sixty stations, off the grid, report all fields every six hours. The day is one that no prior was
trained on, encoded and decoded once, so that a latent can match it.
"""

import statistics
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import feasibly
from feasibly import ensemble
from feasibly.constraints import Composite, Constraint, Equality
from feasibly.minimizers import LBFGS
from feasibly.problems.weather import LATITUDE, VARIABLES, Weather
from feasibly.samplers import DPS, MMPS, Method, PostHoc
from feasibly.weather import Stations

from ..records import DEFAULT, Record, grouped
from ..study import Measurement
from ..tables import TEXT, Columns

STATIONS = 60
REPORTED = (0, 6, 12, 18)
ERRORS = (300.0, 3.0, 3.0)
"""The errors of the variables: 30 m of height are a geopotential of 300 m²/s²; 3 m/s of wind."""

MISSING = 0.05
DAYS, MEMBERS, CHUNK = 4, 16, 4
BETWEEN = slice(6, 19)
"""The hours of the scores, from 6 to 18."""

OBSERVED = ("stations", "stations and mass")
STORES = Path("runs/stations")

METHODS: Mapping[str, str | Method] = {
    DEFAULT: "auto",
    "MMPS": MMPS(steps=64, iterations=8),
    "DPS": DPS(steps=256, zeta=0.1),
    "post-hoc projection": PostHoc(steps=64, minimize=LBFGS(64, max_step=1.0)),
}
"""For each label the method. The third and the fourth have settings of our choice; the last one
takes no noise, and moves samples until chi-square a value is one."""


@cache
def planet() -> Weather:
    """Returns the shipped planet, with its mass as the constraint."""
    return Weather("mass")


def reports(day: Tensor, k: int) -> Stations:
    """Returns a table of stations for a day, with shape (24, 3, 32, 64); `k` is its seed."""
    rng = np.random.default_rng(k)
    latitude = np.degrees(np.arcsin(rng.uniform(-1, 1, STATIONS)))
    longitude = rng.uniform(0, 360, STATIONS)
    shape = (len(REPORTED), STATIONS, len(VARIABLES))

    def column(values: Any, axis: int) -> np.ndarray:
        apart = [axis == i for i in range(3)]
        return np.broadcast_to(
            np.asarray(values).reshape([-1 if own else 1 for own in apart]), shape
        ).ravel()

    table = {
        "time": column(REPORTED, 0),
        "lat": column(latitude, 1),
        "lon": column(longitude, 1),
        "variable": column(VARIABLES, 2),
        "error": column(ERRORS, 2),
        "value": np.zeros(shape).ravel(),
    }
    grid: dict[str, Any] = {
        "variables": VARIABLES,
        "times": np.arange(24),
        "latitude": LATITUDE,
        "longitude": torch.arange(64) * 360 / 64,
    }
    exact = Stations(table, **grid)(day[None])[0].numpy()
    value = exact + table["error"] * rng.standard_normal(len(exact))
    value[rng.random(len(exact)) < MISSING] = np.nan
    return Stations(table | {"value": value}, **grid)


def stated(observed: str, day: Tensor, k: int) -> tuple[Constraint, Constraint, Constraint]:
    """Returns what is observed, alone and with the mass if it is, and the mass."""
    seen = reports(day, k).constraint(planet().autoencoder.decode, recompute=False)
    mass = planet().constraint(day)
    return seen, seen if observed == OBSERVED[0] else Composite([seen, mass]), mass


def measure(setting: dict) -> list[Record]:
    """Samples an ensemble of a day by one method, in a store, and scores it."""
    k, label, observed = setting["day"], setting["label"], setting["observed"]
    day = planet().reference(k)
    seen, constraint, mass = stated(observed, day, k)
    method = METHODS[label]
    if isinstance(method, PostHoc):
        fitting = Equality(seen.residual, tolerance=len(reports(day, k)))
        constraint = fitting if observed == OBSERVED[0] else Composite([fitting, mass])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = feasibly.plan(
            planet().denoiser,
            constraint,
            planet().shape,
            method=method,
            monitor=label == DEFAULT,
        )
        place = STORES / f"{observed}-{k}-{label}.zarr".replace(" ", "-")
        ensemble.run(plan, place, MEMBERS, batch_size=CHUNK)
    store = ensemble.Store(place)
    z = torch.stack([torch.from_numpy(store.get(member)) for member in range(MEMBERS)])
    taken = store.all_records()
    with torch.no_grad():
        chi_square = seen.residual(z).square().mean(dim=1)
        exact = mass.is_feasible(z)
    asked = exact if observed == OBSERVED[1] else torch.ones_like(exact)
    return [
        planet().scores(z, asked, day)
        | {
            "chi_square": chi_square.tolist(),
            "mass": exact.double().mean().item(),
            "evaluations": sum(row.forward + row.backward for row in taken) / MEMBERS,
            "seconds": sum(row.seconds for row in taken),
        }
    ]


def rows(records: Sequence[Record]) -> list[Record]:
    """Returns the rows of its table: means over hours from 6 to 18, and over the days that all
    methods have. The default on all of its days has a row of its own."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for (observed,), found in grouped(records, "observed").items():
        by_label = grouped(found, "label")
        days = [{row["day"] for row in group} for group in by_label.values()]
        shared, own = set.intersection(*days), by_label[DEFAULT,]
        for (label,), group in by_label.items():
            groups[observed, label] = [row for row in group if row["day"] in shared]
        if len(own) > len(shared):
            groups[observed, f"{DEFAULT}, {len(own)} days"] = own

    def mean(group: Sequence[Record], name: str, v: int) -> float:
        return statistics.fmean(x for row in group for x in row[name][v][BETWEEN])

    def ratio(group: Sequence[Record], v: int) -> float:
        wide = mean(group, "variance", v) * (MEMBERS + 1) / MEMBERS
        return (wide / mean(group, "mean_se", v)) ** 0.5

    return [
        {
            "observed": observed,
            "label": label,
            "z": mean(group, "crps", 0),
            "v": mean(group, "crps", 2),
            "ratio": f"{ratio(group, 0):.2f}, {ratio(group, 2):.2f}",
            "chi_square": statistics.fmean(x for row in group for x in row["chi_square"]),
            "evaluations": statistics.fmean(row["evaluations"] for row in group),
        }
        for (observed, label), group in groups.items()
    ]


COLUMNS: Columns = {
    "observed": ("observed", TEXT),
    "label": ("method", TEXT),
    "z": ("CRPS of z (m²/s²)", "{:.0f}"),
    "v": ("CRPS of v (m/s)", "{:.2f}"),
    "ratio": ("spread / skill of z, v", TEXT),
    "chi_square": ("chi-square a value", "{:.2f}"),
    "evaluations": ("evaluations a member", "{:.0f}"),
}

MEASUREMENT = Measurement(
    name="stations",
    question="What do stations with errors tell of a day, alone and beside an exact mass?",
    problem="weather",
    settings=[
        {"observed": observed, "day": day, "label": label, "members": MEMBERS}
        for observed in OBSERVED
        for label in METHODS
        for day in range(DAYS)
    ],
    measure=measure,
    rows=rows,
    columns=COLUMNS,
)
