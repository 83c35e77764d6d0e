"""The problems as studies see them."""

from .base import Bench, Case
from .data2d import Data2DBench
from .exact import ExactBench
from .heat import HeatBench
from .observed import KSBench, ObservedBench, WeatherBench
from .oracles import OraclesBench

__all__ = [
    "Bench",
    "Case",
    "Data2DBench",
    "ExactBench",
    "HeatBench",
    "KSBench",
    "ObservedBench",
    "OraclesBench",
    "WeatherBench",
]
