"""What a caller may pass: arguments are refused at the entrance of a function, in words."""

__all__ = ["fit_fields", "fitted", "members_of", "placed", "shape_of", "typed", "whole"]

import collections.abc
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import torch

F = TypeVar("F", bound=Callable[..., Any])

NUMBERS: dict[Any, Callable[[Any], Any]] = {int: operator.index, float: float}
WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
    NoneType: "None",
    collections.abc.Callable: "a function",
    Mapping: "a dict",
    dict: "a dict",
    Iterable: "a list",
    torch.dtype: "torch.float32 or torch.float64",
    torch.device: "a device",
}


def typed(function: F) -> F:
    """Refuses arguments of the wrong type before a function runs, as its annotations say.

    Only plain annotations are looked at: booleans, numbers, texts, functions, dicts, literals,
    classes, and unions of these. Numbers of other libraries become Python's.

    Raises:
        ValueError: If an argument is of another type.
    """
    signature = inspect.signature(function)
    # of these, `check_parts` and `check_method` say more
    kinds = {
        name: known.annotation
        for name, known in signature.parameters.items()
        if known.annotation is not known.empty and name not in ("constraint", "method")
    }
    of = getattr(function, "__qualname__", "").removesuffix(".__init__").split(".")[-1]

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        try:
            given = signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{of}(): {error}.") from None
        for name in kinds.keys() & given.arguments.keys():
            given.arguments[name] = fitted(of, name, given.arguments[name], kinds[name])
        return function(*given.args, **given.kwargs)

    return checked  # ty: ignore


def fit_fields(value: Any) -> None:
    """Does the same to the fields of a frozen dataclass, in its `__post_init__`."""
    for field in fields(value):
        chosen = field.default is None and getattr(value, field.name) is None
        if field.init and field.name != "constraint" and not chosen:
            found = fitted(
                type(value).__name__, field.name, getattr(value, field.name), field.type
            )
            object.__setattr__(value, field.name, found)


def fitted(of: str, name: str, value: Any, kind: Any) -> Any:
    """Returns an argument in its type; raises a ValueError if it is of another."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = []
    for one in kinds:
        fits, said, made = _fit(value, one)
        if fits:
            return made
        words.append(said)
    raise ValueError(f"{of}({name}=...) takes {' or '.join(words)}, got {value!r:.200}.")


def _fit(value: Any, kind: Any) -> tuple[bool, str, Any]:
    """Whether a value is of a type, the type in words, and the value."""
    origin = get_origin(kind) or kind
    words = WORDS.get(origin) or f"a {getattr(kind, '__name__', str(kind)).lower()}"
    if kind in NUMBERS:  # a text is no number, nor is True
        if isinstance(value, bool | np.bool_ | str | bytes):
            return False, words, value
        try:
            number = NUMBERS[kind](value)
        except (TypeError, ValueError, RuntimeError):
            return False, words, value
        return True, words, value if isinstance(value, int) else number
    if origin is Literal:
        known = get_args(kind)
        fits = isinstance(value, str) and value in known
        return fits, " or ".join(map(repr, known)), value
    if origin is collections.abc.Callable:
        return callable(value), words, value
    if origin in (dict, Mapping, Iterable):
        return isinstance(value, Mapping if origin is dict else origin), words, value
    if kind is torch.dtype:
        return value in (torch.float32, torch.float64), words, value
    if kind is Any or not isinstance(kind, type):
        return True, words, value  # no plain type; it is tested elsewhere
    return isinstance(value, kind), words, value


def whole(name: str, value: Any, least: int, most: float = math.inf, *, of: str = "sample") -> int:
    """Returns an argument of a function or a class, a whole number of any library, as an int.

    Raises:
        ValueError: If it is no whole number, or out of range.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        range_ = f"of at least {least}" if most == math.inf else f"from {least} to {most:.0f}"
        raise ValueError(f"{of}({name}=...) takes a whole number {range_}, got {value!r}.")
    return number


def members_of(members: int | Sequence[int], of: str = "sample") -> Sequence[int]:
    """Returns the indices of members, given those or their number.

    Raises:
        ValueError: If there is none, or one is no index or given twice.
    """
    try:
        operator.index(members)  # ty: ignore[invalid-argument-type]
    except TypeError:
        pass
    else:
        return range(whole("n", members, 1, 2**32, of=of))
    if isinstance(members, str | bytes | Mapping) or not isinstance(members, Iterable):
        raise ValueError(
            f"{of}(n=...) takes the number of samples, or their indices, got {members!r}."
        )
    ids = [whole("n", i, 0, 2**32 - 1, of=of) for i in members]
    if not ids:
        raise ValueError(f"{of}() needs at least one sample, got n={members!r}.")
    if len(set(ids)) < len(ids):
        raise ValueError(f"{of}(n=...) contains an index twice, which would be the same sample.")
    return ids


def shape_of(shape: Sequence[int], of: str = "sample") -> tuple[int, ...]:
    """Returns the shape of one sample as whole numbers; raises a ValueError if one is below 1."""
    if isinstance(shape, str | bytes | Mapping) or not isinstance(shape, Iterable):
        raise ValueError(
            f"{of}(shape=...) takes the shape of one sample, such as (2,) or (64, 64), got "
            f"{shape!r}."
        )
    return tuple(whole("shape", n, 1, of=of) for n in shape)


def placed(device: torch.device | str | None, of: str = "sample") -> torch.device | None:
    """Returns a device that tensors can be on; None for None.

    Raises:
        ValueError: If there is no such device.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
        torch.empty(0, device=found).cpu()
    except Exception as error:  # each kind of device has errors of its own
        reason = str(error).split("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"{of}(device=...) takes a device of this machine, such as 'cpu', got {device!r} "
            f"({reason:.200})."
        ) from error
    return found
