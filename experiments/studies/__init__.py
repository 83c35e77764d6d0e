"""The questions that the paper, or its reader, asks: one file each, all of them listed here."""

from ..study import Comparison, Measurement, Study
from . import (
    ablation,
    arm,
    audit,
    azula,
    baselines,
    bound,
    budgets,
    calibration,
    cost,
    defaults,
    downscaling,
    equations,
    faults,
    fidelity,
    increments,
    lipschitz,
    minimizers,
    molecule,
    networks,
    precision,
    referee,
    sbi,
    seconds,
    solutions,
    stations,
    tuning,
    weights,
    work,
)

__all__ = ["MEASUREMENTS", "STUDIES", "Comparison", "Measurement", "Study", "find"]

STUDIES: tuple[Study, ...] = (
    ablation.STUDY,
    baselines.STUDY,
    baselines.LINEAR,
    calibration.STUDY,
    defaults.STUDY,
    defaults.INSIDE,
    minimizers.STUDY,
    tuning.STUDY,
)

MEASUREMENTS: tuple[Measurement, ...] = (
    *solutions.MEASUREMENTS,
    referee.ON_RARE_MODES,
    *(
        one.MEASUREMENT
        for one in (
            arm,
            audit,
            azula,
            bound,
            budgets,
            cost,
            downscaling,
            equations,
            faults,
            fidelity,
            increments,
            lipschitz,
            molecule,
            networks,
            precision,
            referee,
            sbi,
            seconds,
            stations,
            weights,
            work,
        )
    ),
)


def find(name: str) -> Study | Measurement:
    """Returns the study or the measurement of a name.

    Raises:
        ValueError: If there is none.
    """
    known = {one.name: one for one in (*STUDIES, *MEASUREMENTS)}
    if name not in known:
        raise ValueError(f"There is no study {name!r}; choose one of {sorted(known)}.")
    return known[name]
