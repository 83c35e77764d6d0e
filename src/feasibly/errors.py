"""The errors and warnings of this library."""

__all__ = [
    "AS_REAL",
    "IN_TORCH",
    "CalibrationWarning",
    "ConstraintError",
    "DenoiserError",
    "InfeasibleWarning",
    "SamplingError",
    "StoreError",
    "advise",
    "safe",
    "several",
]

import sys
import warnings
from typing import Any

AS_REAL = "return its real part, or have real and imaginary parts as channels of the data"
"""What to do with complex outputs, for states are real."""

IN_TORCH = "Use functions of torch, or pass f to constraints.BlackBox(f, tolerance)"
"""What to do with a constraint's function of arrays."""


def safe(text: str) -> str:
    """Returns a text of any origin as one that a terminal only shows: of what is not printable,
    its escape, but for the ends of lines."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def several(count: int, noun: str) -> str:
    """Returns a number of things in words, such as `1 sample` and `2 samples`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def advise(sentence: str, kind: type[Warning] = UserWarning) -> None:
    """Warns at the line of the user's that called the library."""
    frame, level = sys._getframe(), 1
    # decorators that are context managers have frames of their own
    while frame.f_back and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, kind, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module == "contextlib" or module.split(".")[0] == "feasibly"


class _Said(Exception):
    """What has a message. It may quote a file or another exception."""

    def __init__(self, message: str = "") -> None:
        super().__init__(safe(str(message)))


class ConstraintError(_Said, ValueError):
    """A constraint cannot be used as it is. The message says what to change."""


class DenoiserError(_Said, ValueError):
    """A denoiser cannot be used as it is. The message says what to change."""


class SamplingError(_Said, RuntimeError):
    """A run had to stop.

    Attributes:
        partial: The result of the samples that were finished before; None if there were none.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class StoreError(_Said, ValueError):
    """A store of an ensemble cannot be used as it is. The message says what is wrong with it."""


class InfeasibleWarning(_Said, UserWarning):
    """Samples do not satisfy their constraint."""


class CalibrationWarning(_Said, UserWarning):
    """Samples may not have the distribution that they stand for."""
