"""The questions that the paper, or its reader, asks: one file each."""

import importlib
import pkgutil
from types import ModuleType

from .base import Measurement, Study


def find(problem: str | None = None) -> dict[str, Study]:
    """Returns every study, by name: those on a problem or, by default, each on its first."""
    studies = [
        getattr(m, name)
        for m in _modules()
        for name in ("on_weather", "on_ks", "on_oracles", "study")
        if hasattr(m, name)
    ]
    return {study.name: study for study in studies if problem in (None, study.problem)}


def measurements() -> dict[str, Measurement]:
    """Returns every measurement, by name."""
    found = [module.measurement for module in _modules() if hasattr(module, "measurement")]
    return {measurement.name: measurement for measurement in found}


def _modules() -> list[ModuleType]:
    return [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    ]
