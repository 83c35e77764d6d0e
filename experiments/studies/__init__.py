"""The questions that the paper, or its reader, asks: one file each."""

import importlib
import pkgutil

from .base import Study


def find() -> dict[str, Study]:
    """Returns every study, by name."""
    modules = [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    ]
    studies = [module.study for module in modules if hasattr(module, "study")]
    return {study.name: study for study in studies}
