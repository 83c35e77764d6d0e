"""What the commands sample: a shipped prior, or objects of the user's own."""

__all__ = ["load_constraint", "load_denoiser", "load_object"]

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from .. import priors
from ..constraints import Constraint, GaussianRandomField, LevelSet
from ..errors import SamplingError
from ..models import wrap
from ..models.hub import is_on_hub
from ..problems.data2d import CONSTRAINTS


def load_object(path: str) -> Any:
    """Calls the function at `module:function`; modules of the current folder are found.

    Raises:
        ValueError: If there is no such function, or it needs arguments.
    """
    module, _, name = path.partition(":")
    if not module or not name or not module.replace(".", "").isidentifier():
        raise ValueError(f"{path!r} is not of the form module:function, such as mymodel:denoiser.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module raises
        raise ValueError(
            f"{path!r} cannot be imported ({type(error).__name__}: {error}); run from the folder "
            f"of {module}.py, and name a function without arguments in it."
        ) from error
    if not callable(function):
        raise ValueError(f"{path!r} is not a function but {type(function).__name__}.")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ValueError(
            f"{path!r} cannot be called without arguments ({error}); name a function that takes "
            "none and returns the object."
        ) from error
    except ValueError:  # some built-in functions do not say what they take
        pass
    try:
        return function()
    except (ValueError, SamplingError):  # which say what is wrong, if they are ours
        raise
    except Exception as error:
        raise ValueError(f"{path!r} failed ({type(error).__name__}: {error}).") from error


def load_denoiser(name: str) -> Any:
    """Returns a shipped prior by its name, a prior's file, a model in a folder of diffusers or of
    the hub, or the result of module:function. A folder does not hide a shipped prior of the same
    name."""
    if is_on_hub(name) or (name not in priors.available() and Path(name).is_dir()):
        return wrap(name)
    return load_object(name) if ":" in name else priors.load(name)


def load_constraint(name: str) -> Constraint:
    """Returns constraint 0 to 11 of Data2D by its number, or the result of module:function.

    Raises:
        ValueError: If there is no such constraint.
    """
    if ":" in name:
        constraint = load_object(name)
        if not isinstance(constraint, Constraint):
            raise ValueError(
                f"{name!r} returned {type(constraint).__name__}; it must return a constraint, "
                "such as feasibly.Equality(function, tolerance=1e-6)."
            )
        return constraint
    if not name.isdigit() or int(name) >= CONSTRAINTS:
        raise ValueError(
            f"There is no constraint {name!r}; give 0 to {CONSTRAINTS - 1} for those of Data2D, "
            "or module:function for your own."
        )
    return LevelSet(GaussianRandomField(seed=int(name)))
