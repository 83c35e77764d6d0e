"""Large ensembles: many samples, many processes, nothing lost.

A run of many members writes each into a store as soon as it is finished, and what stops in the
middle goes on where it was. The processes of a run share nothing but the store.
"""

from .manifest import Config, Coordinate, Layout, Manifest
from .memory import Footprint, estimate
from .run import run
from .store import Record, Store
from .summary import Summary

__all__ = [
    "Config",
    "Coordinate",
    "Footprint",
    "Layout",
    "Manifest",
    "Record",
    "Store",
    "Summary",
    "estimate",
    "run",
]
