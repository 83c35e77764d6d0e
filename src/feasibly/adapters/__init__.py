"""Networks, and weather, in the forms of other libraries; one file a family of networks."""

from .appa import Appa
from .base import Adapter
from .forecasts import ForecastStore, write_forecast
from .latent import LatentDecoder
from .self_test import self_test
from .weatherbench import Weather, read_era5
from .wrap import KINDS, wrap

__all__ = [
    "KINDS",
    "Adapter",
    "Appa",
    "ForecastStore",
    "LatentDecoder",
    "Weather",
    "read_era5",
    "self_test",
    "wrap",
    "write_forecast",
]
