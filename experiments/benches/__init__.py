"""The problems as studies see them, one file each."""

from .base import Bench, Case
from .data2d import Data2DBench
from .exact import ExactBench
from .heat import HeatBench
from .ks import KSBench
from .observed import ObservedBench
from .oracles import OraclesBench
from .weather import WeatherBench

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
