"""What can go wrong, in words for people."""

__all__ = [
    "CalibrationWarning",
    "ConstraintError",
    "ConstraintWarning",
    "DenoiserError",
    "InfeasibleWarning",
    "SamplingError",
    "StoreError",
]

from typing import Any


class ConstraintError(ValueError):
    """A constraint that cannot be used as it is: the message says what to change."""


class DenoiserError(ValueError):
    """A denoiser that cannot be used as it is: the message says what to change."""


class SamplingError(RuntimeError):
    """A run that had to stop. `partial` holds the result of the members that were finished
    before (None if there were none), so that they are not lost."""

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class StoreError(ValueError):
    """A store of an ensemble that cannot be used as it is: the message says what is wrong with
    it."""


class ConstraintWarning(UserWarning):
    """A constraint may not say what is meant: the message says how to state it."""


class InfeasibleWarning(UserWarning):
    """Members of an ensemble do not satisfy its constraint."""


class CalibrationWarning(UserWarning):
    """Members of an ensemble are not draws of the law that they stand for."""
