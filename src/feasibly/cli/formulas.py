"""TeX formulas as plain text, for a terminal."""

__all__ = ["displayed", "inline"]

import re

SIGNS = {"gets": "←", "to": "→", "leq": "≤", "geq": "≥", "approx": "≈", "propto": "∝", "in": "∈"}
SIGNS |= {"times": "×", "cdot": "·", "infty": "∞", "partial": "∂", "nabla": "∇", "top": "ᵀ"}
SIGNS |= {"mid": "|", "|": "‖", "sum": "Σ", "sqrt": "√", ",": " ", ":": " ", ";": " ", " ": " "}
SIGNS |= {"quad": " ", "qquad": " ", "neq": "≠", "pm": "±", "sim": "~"}
SIGNS |= dict.fromkeys(["left", "right", "big", "Big", "!"], "")
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau "
    "phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
SIGNS |= dict(zip(GREEK.split(), "αβγδεζηθικλμνξπρστφχψωΓΔΘΛΞΠΣΦΨΩ", strict=True))


def inline(tex: str) -> str:
    """Writes a formula as plain text: signs in Unicode, groups in brackets, and macros that are
    not known by their names."""
    text = re.sub(r"\\(?:math|text)[a-z]*(?:\{([^{}]*)\})?", lambda m: m[1] or "", tex)
    text = re.sub(r"\\([A-Za-z]+|.)", lambda m: SIGNS.get(m[1], m[1]), text).replace("^ᵀ", "ᵀ")
    for _ in range(4):  # as deep as groups are nested
        text = re.sub(r"t?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)", text)
        text = re.sub(r"(?<!frac)(?<!\})\{([^{}\s]{,2})\}", r"\1", text)
        text = re.sub(r"(?<!frac)(?<!\})\{([^{}]*)\}(?!\{)", r"(\1)", text)
    text = re.sub(r"(?<=\S) {2,}", " ", re.sub("[{}]", "", text))
    return re.sub(r" +(?=[.,;)])", "", text).strip()


def displayed(tex: str) -> list[str]:
    """Writes a formula on lines of its own as plain text: the lines."""
    tex = re.sub(r"\s+", " ", tex.replace("&", ""))
    return [inline(part) for part in re.split(r"\\\\", tex)]
