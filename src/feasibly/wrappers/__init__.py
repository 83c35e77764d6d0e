"""Denoisers around denoisers: of the same samples, run in another way."""

from .blankets import Blankets
from .chunked import Chunked
from .precision import MixedPrecision

__all__ = ["Blankets", "Chunked", "MixedPrecision"]
