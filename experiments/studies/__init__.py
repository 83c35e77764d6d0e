"""The questions that the paper, or its reader, asks: one file each, all of them listed here."""

__all__ = ["MEASUREMENTS", "STUDIES", "Comparison", "Make", "Measurement", "Study", "find"]

from ..study import Comparison, Make, Measurement, Study
from . import (
    ablation,
    audit,
    azula,
    baselines,
    bound,
    budgets,
    calibration,
    cost,
    defaults,
    dps_pc,
    equations,
    faults,
    fidelity,
    increments,
    inside,
    linear,
    lipschitz,
    minimizers,
    monitor,
    neighbours,
    networks,
    optimizers,
    optimizers_sweep,
    peers,
    precision,
    projection_steps,
    referee,
    seconds,
    solutions,
    stations,
    tuning,
    weights,
    work,
)

STUDIES: tuple[Study, ...] = (
    ablation.STUDY,
    baselines.STUDY,
    calibration.STUDY,
    defaults.STUDY,
    dps_pc.STUDY,
    inside.STUDY,
    linear.STUDY,
    minimizers.STUDY,
    neighbours.STUDY,
    optimizers.STUDY,
    optimizers_sweep.STUDY,
    projection_steps.STUDY,
    tuning.STUDY,
)

MEASUREMENTS: tuple[Measurement, ...] = (
    audit.MEASUREMENT,
    azula.MEASUREMENT,
    bound.MEASUREMENT,
    budgets.MEASUREMENT,
    cost.MEASUREMENT,
    equations.MEASUREMENT,
    faults.MEASUREMENT,
    fidelity.MEASUREMENT,
    increments.MEASUREMENT,
    lipschitz.MEASUREMENT,
    monitor.MEASUREMENT,
    networks.MEASUREMENT,
    peers.MEASUREMENT,
    precision.MEASUREMENT,
    referee.MEASUREMENT,
    seconds.MEASUREMENT,
    solutions.MEASUREMENT,
    stations.MEASUREMENT,
    weights.MEASUREMENT,
    work.MEASUREMENT,
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
