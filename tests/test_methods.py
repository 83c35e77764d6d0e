"""The methods' rows of the paper's Table 1."""

import pytest

from feasibly import samplers
from feasibly.cli.formulas import displayed, inline
from feasibly.cli.methods import declared, methods, plain, rows
from feasibly.policy import RULES

TABLE_1 = {
    "dps": ("x_t", "no", "yes"),
    "mmps": ("x_t", "no", "yes"),
    "hdc": ("x_0", "yes", "no"),
    "cps": ("x_0", "no", "no"),
    "proximal": ("x_t", "no", "no"),
    "trust": ("x_t", "yes", "yes"),
    "pdm": ("x_t", "no", "no"),
    "cdim": ("x_t", "no", "no"),
    "ppr": ("x_t", "yes", "yes"),
}
# CDIM's gradient passes through the network in its authors' code, and says so in the paper's text
EXCEPTIONS = {"cdim": ("x_t", "no", "yes")}


@pytest.mark.parametrize("name", TABLE_1)
def test_declarations_are_the_papers(name):
    assert declared(samplers.METHODS[name]) == EXCEPTIONS.get(name, TABLE_1[name])


def test_every_method_is_listed_with_its_title_and_the_list_is_printed(capsys):
    assert methods() == 0
    printed, listed = capsys.readouterr().out, rows()
    assert [row[0] for row in listed] == list(samplers.METHODS)
    for name, space, renoises, through, title in listed:
        assert name in printed
        assert 10 < len(title) < 85
        assert (space == "-") == (name in ("ancestral", "predictor-corrector"))
        assert space in ("x_t", "x_0", "-")
        assert {renoises, through} <= {"yes", "no"} or space == "-"


def test_auto_prints_the_rules(capsys):
    assert methods("auto") == 0
    text = " ".join(capsys.readouterr().out.split())
    for rule in RULES:
        for words in plain(f"{rule.case} {rule.takes}").split():
            assert words in text


@pytest.mark.parametrize("name", samplers.METHODS)
def test_a_method_is_explained_with_its_options(name, capsys):
    assert methods(name) == 0
    text = capsys.readouterr().out
    assert samplers.METHODS[name].__doc__.split()[0] in text
    for option in ("steps=", "output="):
        assert f"    {option}" in text
    assert ("zeta=" in text) == (name in ("dps", "dps-pc", "resample"))
    assert not {"\\", "{", "}", "$"} & set(text)
    assert ":math:" not in text
    assert ".. math" not in text


@pytest.mark.parametrize(
    ("tex", "written"),
    [
        (r"\sigma_t^2", "σ_t^2"),
        (r"p_t^\mathcal{C}", "p_t^C"),
        (r"(J V J^\top)^{-1} r", "(J V Jᵀ)^-1 r"),
        (
            r"\frac{\sigma_t^2}{\alpha_t} \frac{\partial d}{\partial x}",
            "(σ_t^2)/(α_t) (∂ d)/(∂ x)",
        ),
        (r"\frac{\sqrt{a}}{b}", "(√a)/(b)"),
        (r"\nabla_{x_t} \|r\|", "∇_(x_t) ‖r‖"),
        (r"\mathbb{E}[x_0 \mid x_t] \in (0, 1] .", "E[x_0 | x_t] ∈ (0, 1]."),
        (r"\text{(N times)}", "(N times)"),
        (r"\unknown{x}", "unknownx"),
    ],
)
def test_a_formula_is_written_as_plain_text(tex, written):
    assert inline(tex) == written


def test_formulas_of_a_display_have_lines_of_their_own():
    tex = r"""
    x_s &\gets x_t \qquad \text{(N times)} \\
    V = 1"""
    assert displayed(tex) == ["x_s ← x_t (N times)", "V = 1"]
    text = f"*much* :math:`\\alpha`.\n\n  .. math::{tex}\n\n  B."
    assert plain(text) == "much α.\n\n      x_s ← x_t (N times)\n      V = 1\n\n  B."
