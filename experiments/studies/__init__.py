"""The questions that the paper, or its reader, asks: one file each."""

import importlib
import pkgutil
from types import ModuleType

from .base import Measurement, Study


def find() -> dict[str, Study]:
    """Returns every study, by name."""
    studies = [module.study for module in _modules() if hasattr(module, "study")]
    return {study.name: study for study in studies}


def measurements() -> dict[str, Measurement]:
    """Returns every measurement, by name."""
    found = [module.measurement for module in _modules() if hasattr(module, "measurement")]
    return {measurement.name: measurement for measurement in found}


def _modules() -> list[ModuleType]:
    return [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    ]
