"""What to sample, in the words of the command line, and the sampler that they name."""

__all__ = ["Job", "parse"]

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .. import minimizers
from ..api import plan
from ..policy import Plan
from ..priors import available
from ..progress import current
from ..samplers import METHODS
from .load import load_constraint, load_denoiser

MINIMIZERS = set(minimizers.__all__) - {"Minimizer", "Minimum", "Residual"}


class UnfitError(ValueError):
    """A minimizer cannot be made of an option."""


@dataclass(frozen=True)
class Job:
    """What to sample.

    Attributes:
        denoiser: A shipped prior, a prior's file, a folder of diffusers, a model of the
            hub, or module:function.
        constraint: A number, or module:function.
        method: The name of the method.
        options: Its options, each `name=value`.
    """

    denoiser: str
    constraint: str
    method: str
    options: tuple[str, ...] = ()

    def build(self, shape: Sequence[int], batch_size: int | None = None) -> Plan:
        """Loads what the job names, and returns its kernels.

        Arguments:
            shape: The shape of one sample.
            batch_size: How many states may go through the denoiser at a time; None for all.

        Raises:
            ValueError: If a name is unknown, or an option does not fit.
        """
        chosen: dict[str, Any] = {}
        for name, value in map(parse, self.options):
            if name in chosen:
                raise ValueError(f"{name} is given twice, by --options or otherwise.")
            chosen[name] = value
        ours = ("attempts", "error") if self.method == "auto" else ("attempts",)
        general = {name: chosen.pop(name) for name in ours if name in chosen}
        known = {"attempts", *ours}
        if self.method in METHODS:
            known |= {f.name for f in fields(METHODS[self.method]) if f.init and f.repr}
        for name in chosen:
            if name not in known:
                raise ValueError(
                    f"{self.method} has no option {name!r}; its options are "
                    f"{', '.join(sorted(known))}."
                )
        with current().part("loading", 0):
            denoiser, constraint = load_denoiser(self.denoiser), load_constraint(self.constraint)
        try:
            method = METHODS[self.method](**chosen) if self.method in METHODS else self.method
            return plan(
                denoiser, constraint, shape, method=method, batch_size=batch_size, **general
            )
        except TypeError as error:  # a word where a number belongs
            raise ValueError(
                f"An option of {self.method} has the wrong type ({error}); the options given are "
                f"{', '.join(self.options) or 'none'}."
            ) from error

    @classmethod
    def stored(
        cls, source: Mapping[str, Any], denoiser: str | None, constraint: str | None
    ) -> "Job":
        """Returns the job that a store names, if that can be trusted.

        A store may be anybody's, and module:function would run code of its choice: what is not
        shipped with the package must be named again by who resumes.

        Arguments:
            source: The source in the store's manifest, not empty.
            denoiser: The denoiser as given again; None if it is not.
            constraint: The constraint, likewise.

        Raises:
            ValueError: If a name must be given again, or is another than the store's.
        """
        given = {"denoiser": denoiser, "constraint": constraint}
        shipped = {
            "denoiser": source["denoiser"] in available(),
            "constraint": source["constraint"].isdecimal(),
        }
        for name, value in given.items():
            if value is None and not shipped[name]:
                raise ValueError(
                    f"The store names the {name} {source[name]!r}, which is not part of feasibly. "
                    "For safety, feasibly does not run code named in a store: if it is yours, add "
                    f"--{name} {source[name]}."
                )
            if value not in (None, source[name]):
                raise ValueError(
                    f"The store was started with the {name} {source[name]!r}, not with {value!r}."
                )
        return cls(**source)


def parse(option: str) -> tuple[str, Any]:
    """Splits `name=value`; a value is a Python literal, a minimizer or, if it is neither, a
    word."""
    name, found, text = option.partition("=")
    if not found or not name.isidentifier():
        raise ValueError(f"--options takes name=value, such as zeta=0.01, got {option!r}.")
    try:
        return name, _value(ast.parse(text, mode="eval").body)
    except UnfitError:
        raise
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return name, float(text) if text in ("inf", "nan") else text


def _value(node: ast.expr) -> Any:
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and isinstance(called, ast.Name) and called.id in MINIMIZERS:
        options = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        arguments = map(ast.literal_eval, node.args)
        try:
            return getattr(minimizers, called.id)(*arguments, **options)
        except (TypeError, ValueError) as error:
            raise UnfitError(
                f"{called.id}(...) cannot be made with these options: {error}"
            ) from error
    return ast.literal_eval(node)
