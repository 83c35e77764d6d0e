"""The recipes of the priors, one file a problem."""

from .base import Recipe, TrainConfig
from .darcy import DarcyFlow
from .data2d import Banana, Checkerboard
from .heat import HeatFlow
from .ks import KS, KS128
from .learned import Clusters, Field
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
        Clusters,
        Field,
        HeatFlow,
        DarcyFlow,
    )
}

__all__ = ["RECIPES", "Recipe", "TrainConfig"]
