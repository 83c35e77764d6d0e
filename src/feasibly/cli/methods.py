"""`python -m feasibly methods`: what there is to sample with."""

__all__ = ["methods", "rows"]

import inspect
import re
import sys
from dataclasses import fields
from typing import Literal

import tyro
from rich.table import Table

from ..policy import RULES
from ..samplers import METHODS, Method
from .formulas import displayed, inline
from .words import Screen

AUTO = "auto"
HEADS = ("method", "space", "renoises", "gradients", "")


def rows() -> list[tuple[str, ...]]:
    """Returns the rows of the table, as modules and classes declare them."""
    return [(name, *declared(method), title(method)) for name, method in METHODS.items()]


def declared(method: type[Method]) -> tuple[str, str, str]:
    """Returns a method's row of the paper's Table 1: space, renoise, propagation."""
    if method.space is None:
        return "-", "-", "-"
    words = {True: "yes", False: "no"}
    return method.space, words[method.renoises], words[method.differentiates]


def title(method: type[Method]) -> str:
    """Returns the first line of the documentation of a method's module."""
    return (sys.modules[method.__module__].__doc__ or "").split("\n")[0].rstrip(".")


def plain(text: str) -> str:
    """Takes the marks of reStructuredText and of TeX off a documentation."""
    text = re.sub(BLOCK, lambda found: block(found[1], found[2]), text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]*)`", lambda found: inline(found[1]), text)
    text = re.sub(r":[a-z]+:`~?([^`<]*?)(?:\s+<[^`]*>)?`", r"\1", text)
    text = re.sub(r"^( *)\| ", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"(?<![\w^*])\*(\w[^*\n]*\w)\*(?![\w*])", r"\1", text)
    return re.sub(r"`+|\*\*", "", text)


BLOCK = r"^( *)\.\. math::(.*(?:\n\1 +.*)*)"
"""A formula on lines of its own, which are indented, and its indentation."""


def block(indent: str, tex: str) -> str:
    """Writes such a formula."""
    return "\n".join(f"{indent}    {line}" for line in displayed(tex))


Name = Literal[("all", AUTO, *METHODS)]  # ty: ignore[invalid-type-form]


def methods(name: tyro.conf.Positional[Name] = "all") -> int:
    """List the methods, with their rows of the paper's Table 1, or explain one.

    Space is what the constraint acts on: the noisy state x_t or the clean estimate x_0. A method
    renoises if it adds noise after that step. Methods with gradients propagate through the
    denoiser, at about twice the cost of an evaluation.

    Arguments:
        name: A method, to print its documentation, its options and their defaults; or `auto`, to
            print which methods the default chooses.
    """
    console = Screen()
    if name == AUTO:
        table = Table("your constraint", "what runs", box=None)
        for rule in RULES:
            table.add_row(rule.case, plain(rule.takes))
        console.print(table)
        return 0
    if name != "all":
        method = METHODS[name]
        console.say(plain(inspect.getdoc(method) or ""))
        console.say("\nDefaults:")
        for option in fields(method):
            if option.init and option.repr:
                chosen = method.chooses and option.default is None
                value = "chosen" if chosen else repr(option.default)
                console.say(f"    {option.name}={value}")
        return 0
    table = Table(*HEADS, box=None)
    for row in rows():
        table.add_row(*row)
    console.print(table)
    return 0
