"""Weather in the forms of others: Appa, ERA5, and the stores of WeatherBench2."""

from .appa import Appa
from .forecasts import ForecastStore, write_forecast
from .weatherbench import Weather, read_era5

__all__ = ["Appa", "ForecastStore", "Weather", "read_era5", "write_forecast"]
