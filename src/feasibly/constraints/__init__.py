"""Constraints: a residual that is zero where a constraint holds, and a tolerance."""

from .base import Constraint, log_volume
from .composite import Composite
from .decoded import Decoded, FrameDecoder
from .each_member import EachMember, through
from .equations import DivergenceFree, Evolution, burgers, heat, kuramoto_sivashinsky, vorticity
from .fields import ClosedLoop, Energy, Integral, Lengths, Mask, Neumann
from .functions import BlackBox, Equality, GaussianRandomField, LevelSet, Scalar
from .inequality import Bounds, Inequality, Obstacles
from .observation import Linear, Observation
from .statistics import Histogram, Quantiles, Spectrum, energy_spectrum

__all__ = [
    "BlackBox",
    "Bounds",
    "ClosedLoop",
    "Composite",
    "Constraint",
    "Decoded",
    "DivergenceFree",
    "EachMember",
    "Energy",
    "Equality",
    "Evolution",
    "FrameDecoder",
    "GaussianRandomField",
    "Histogram",
    "Inequality",
    "Integral",
    "Lengths",
    "LevelSet",
    "Linear",
    "Mask",
    "Neumann",
    "Observation",
    "Obstacles",
    "Quantiles",
    "Scalar",
    "Spectrum",
    "burgers",
    "energy_spectrum",
    "heat",
    "kuramoto_sivashinsky",
    "log_volume",
    "through",
    "vorticity",
]
