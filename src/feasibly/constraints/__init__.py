"""Constraints, residual first."""

from .base import Constraint
from .composite import Composite
from .decoded import Decoded, FrameDecoder
from .equality import Equality, Scalar
from .framewise import Framewise
from .inequality import Bounds, Inequality
from .level_set import GaussianRandomField, LevelSet
from .observation import Linear, Observation

__all__ = [
    "Bounds",
    "Composite",
    "Constraint",
    "Decoded",
    "Equality",
    "FrameDecoder",
    "Framewise",
    "GaussianRandomField",
    "Inequality",
    "LevelSet",
    "Linear",
    "Observation",
    "Scalar",
]
