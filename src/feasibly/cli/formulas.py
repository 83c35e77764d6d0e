"""TeX formulas as plain text, for a terminal."""

__all__ = ["displayed", "inline"]

import re
import textwrap
import unicodedata
from collections.abc import Iterator

SYMBOLS = {
    "gets": "←",
    "to": "→",
    "leq": "≤",
    "geq": "≥",
    "neq": "≠",
    "approx": "≈",
    "sim": "~",
    "propto": "∝",
    "in": "∈",
    "pm": "±",
    "times": "×",
    "cdot": "·",
    "infty": "∞",
    "partial": "∂",
    "nabla": "∇",
    "top": "ᵀ",
    "mid": "|",
    "|": "‖",
    "sum": "Σ",
}
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau "
    "phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
SYMBOLS |= dict(zip(GREEK.split(), "αβγδεζηθικλμνξπρστφχψωΓΔΘΛΞΠΣΦΨΩ", strict=True))
ACCENTS = {"hat": "\u0302", "tilde": "\u0303", "bar": "\u0304"}
FONTS = {"mathrm", "mathcal", "mathbb", "mathbf", "textsc", "text"}
SILENT = {"left", "right", "big", "Big", "!"}
SPACES = {",": " ", ":": " ", ";": " ", " ": " ", "quad": " ", "qquad": " "}
RAISED = str.maketrans("0123456789+-ᵀ*", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀ*")

WIDTH = 96
"""The widest line of a displayed formula."""


def inline(tex: str) -> str:
    """Writes a formula within a text as plain text; its line breaks stay.

    Greek letters and signs are written in Unicode, indices as `x_t`, fractions as `a/b`. A
    macro that is not known is written by its name.
    """
    text = _written(iter(re.findall(r"\\[A-Za-z]+|\\.|\n *| +|.", tex)))
    text = re.sub(r"(?<=\S) {2,}", " ", text)
    return re.sub(r" +(?=[.,;)])", "", text).strip()


def displayed(tex: str) -> list[str]:
    """Writes a formula on lines of its own as plain text: the lines."""
    tex = re.sub(r"\s+", " ", tex.replace("&", ""))
    # a remark in brackets stays with its formula
    parts = re.split(r"\\\\|\\qquad(?! *\\text\{\()", tex)
    lines = [inline(part) for part in parts]
    wrap = textwrap.TextWrapper(
        WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return [row for line in lines for row in wrap.wrap(line)]


def _written(tokens: Iterator[str]) -> str:
    """Writes tokens until the brace that closes their group, or their end."""
    written = ""
    for token in tokens:
        if token == "}":
            break
        if token == "^":
            written += _raised(_one(tokens))
        elif token == "_":
            index = _one(tokens)
            written += f"_{index}" if index.isalnum() else f"_({index})"
        else:
            written += _atom(token, tokens)
    return written.replace("∂ ", "∂")


def _one(tokens: Iterator[str]) -> str:
    """Writes the next atom: a group, a macro with what it takes, or a letter."""
    return next((_atom(token, tokens) for token in tokens if not token.isspace()), "")


def _atom(token: str, tokens: Iterator[str]) -> str:
    if token == "{":
        return _written(tokens)
    if not token.startswith("\\"):
        return token
    name = token[1:]
    if name in ("frac", "tfrac"):
        return f"{_bracketed(_one(tokens))}/{_bracketed(_one(tokens))}"
    if name == "sqrt":
        return f"√{_bracketed(_one(tokens))}"
    if name in ACCENTS:
        return unicodedata.normalize("NFC", _one(tokens) + ACCENTS[name])
    if name in FONTS:
        return _one(tokens)
    if name in SILENT:
        return ""
    return SPACES.get(name) or SYMBOLS.get(name, name)


def _raised(exponent: str) -> str:
    if set(exponent) <= set("0123456789+-ᵀ*"):
        return exponent.translate(RAISED)
    return f"^{exponent}" if exponent.isalnum() else f"^({exponent})"


def _bracketed(text: str) -> str:
    """Puts a sum, a product or a fraction in brackets, unless it is in some."""
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if not depth and (letter.isspace() or letter in "+-/"):
            return f"({text})"
    return text
