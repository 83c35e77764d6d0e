"""The errors and warnings of this library."""

__all__ = [
    "CalibrationWarning",
    "ConstraintError",
    "DenoiserError",
    "InfeasibleWarning",
    "SamplingError",
    "StoreError",
]

from typing import Any


class ConstraintError(ValueError):
    """A constraint cannot be used as it is. The message says what to change."""


class DenoiserError(ValueError):
    """A denoiser cannot be used as it is. The message says what to change."""


class SamplingError(RuntimeError):
    """A run had to stop.

    Attributes:
        partial: The result of the members that were finished before; None if there were none.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class StoreError(ValueError):
    """A store of an ensemble cannot be used as it is. The message says what is wrong with it."""


class InfeasibleWarning(UserWarning):
    """Members of an ensemble do not satisfy its constraint."""


class CalibrationWarning(UserWarning):
    """Members of an ensemble are not samples of the distribution that they stand for."""
