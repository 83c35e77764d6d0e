"""The methods' rows of the paper's Table 1."""

import pytest

from feasibly import samplers
from feasibly.cli.methods import declared, methods, rows

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


def test_every_method_is_listed_with_its_title():
    listed = rows()
    assert [row[0] for row in listed] == list(samplers.METHODS)
    for name, space, renoises, through, title in listed:
        assert 10 < len(title) < 85
        assert (space == "-") == (name in ("ancestral", "predictor-corrector"))
        assert space in ("x_t", "x_0", "-")
        assert {renoises, through} <= {"yes", "no"} or space == "-"


def test_the_list_is_printed(capsys):
    assert methods() == 0
    text = capsys.readouterr().out
    for name in samplers.METHODS:
        assert name in text


@pytest.mark.parametrize("name", samplers.METHODS)
def test_a_method_is_explained_with_its_options(name, capsys):
    assert methods(name) == 0
    text = capsys.readouterr().out
    sampler = samplers.METHODS[name]
    assert sampler.__doc__.split()[0] in text
    for option in ("steps=", "output="):
        assert f"    {option}" in text
    assert ("zeta=" in text) == (name in ("dps", "dps-pc", "resample"))
