"""The methods' rows of the paper's Table 1, and its budgets (methods' calls)."""

import pytest
import torch

from experiments.budgets import PAPER
from experiments.budgets import rows as budgets
from feasibly import samplers
from feasibly.cli.methods import declared, methods, rows
from feasibly.constraints import Equality
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit

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
    for option in ("steps=", "output=None", "retries="):
        assert f"    {option}" in text
    assert ("zeta=" in text) == (name in ("dps", "dps-pc", "resample"))


@pytest.mark.parametrize("name", PAPER)
def test_budgets_of_the_paper_are_reproduced(name):
    row = next(row for row in budgets() if row["method"] == name)
    assert (row["paper_forward"], row["paper_backward"]) == PAPER[name][1:]
    lean = {"DPS": (1024, 1024), "MMPS": (5120, 15360), "TrustSampling": (12480, 12288)}
    assert (row["forward"], row["backward"]) == lean.get(name, PAPER[name][1:])


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize("name", PAPER)
def test_budgets_are_what_runs_cost(name):
    """At T = 2, on a constraint of KS's size that is never met, so that nothing stops early."""
    schedule = LogLogit()
    oracle = Gaussian(torch.zeros(4).double(), torch.eye(4).double(), schedule)
    phases = torch.linspace(0, 6, 96).double()
    never = Equality(
        lambda x: (torch.sin(x[:, :, None] + phases) + 3).flatten(start_dim=1), tolerance=1e-12
    )
    row = next(row for row in budgets() if row["method"] == name)
    sampler = row["make"](oracle, never, steps=2)
    calls = sampler.sample(2, (4,), dtype=torch.float64).evaluations
    assert (calls.forward, calls.backward) == sampler.budget(384)
    steps = PAPER[name][0]
    assert calls.forward * steps == 2 * row["forward"]
    assert calls.backward * steps == 2 * row["backward"]
