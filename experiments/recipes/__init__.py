"""The recipes of the priors, one file a problem."""

from .arm import Arm
from .base import Recipe, TrainConfig
from .data2d import Banana, Checkerboard
from .ks import KS, KS128
from .molecule import Dipeptide
from .sbi import SIMULATED
from .sst import SST
from .weather import Weather, WeatherAutoencoder

RECIPES: dict[str, type[Recipe]] = {
    recipe.config.prior: recipe
    for recipe in (
        Checkerboard,
        Banana,
        KS,
        KS128,
        WeatherAutoencoder,
        Weather,
        Arm,
        Dipeptide,
        SST,
        *SIMULATED,
    )
}

__all__ = ["RECIPES", "Recipe", "TrainConfig"]
