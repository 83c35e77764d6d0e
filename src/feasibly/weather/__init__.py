"""Weather in the forms of others: Appa, ERA5, stores of WeatherBench2, tables of stations."""

from .appa import Appa
from .forecasts import ForecastStore, write_forecast
from .stations import Stations
from .weatherbench import Weather, read_era5

__all__ = ["Appa", "ForecastStore", "Stations", "Weather", "read_era5", "write_forecast"]
