"""Constraints: a residual that is zero where a constraint holds, and a tolerance."""

from .base import Constraint
from .black_box import BlackBox
from .composite import Composite
from .decoded import Decoded, FrameDecoder
from .divergence import DivergenceFree
from .each_member import EachMember, through
from .equality import Equality, Scalar
from .equations import Evolution, burgers, heat, kuramoto_sivashinsky, vorticity
from .fields import Energy, Integral, Mask, Neumann
from .geometry import ClosedLoop, Lengths, Obstacles
from .inequality import Bounds, Inequality
from .level_set import GaussianRandomField, LevelSet
from .observation import Linear, Observation
from .quantiles import Histogram, Quantiles
from .spectrum import Spectrum, energy_spectrum
from .volume import log_volume

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
