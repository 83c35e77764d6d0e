"""The network evaluations of the paper's settings: as it prints them, and as runs make them."""

import pytest
import torch

from experiments.paper import EVALUATIONS, KS_RESIDUALS
from experiments.studies import budgets
from experiments.tests.conftest import sampled
from feasibly.constraints import Equality
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit

NAMES = list(EVALUATIONS)


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_s_convention_gives_the_paper_s_numbers(name):
    steps, *theirs = EVALUATIONS[name].values()
    (record,) = budgets.measure({"method": name, "steps": steps})
    assert list(record["by_convention"].values()) == theirs
    lean = {"DPS": [1024, 1024], "MMPS": [5120, 15360], "TS": [12480, 12288]}
    assert [record["forward"], record["backward"]] == lean.get(name, theirs)


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize("name", NAMES)
def test_budgets_are_what_runs_cost(name):
    """At T = 2, on a constraint of KS's size that is never met, so that nothing stops early."""
    oracle = Gaussian(torch.zeros(4).double(), torch.eye(4).double(), LogLogit())
    phases = torch.linspace(0, 6, KS_RESIDUALS // 4).double()
    never = Equality(
        lambda x: (torch.sin(x[:, :, None] + phases) + 3).flatten(start_dim=1), tolerance=1e-12
    )
    kernel = budgets.make(name, oracle, never, steps=2)
    run = sampled(kernel, 2, shape=(4,), dtype=torch.float64).evaluations
    assert (run.forward, run.backward) == kernel.budget(KS_RESIDUALS)
    steps = EVALUATIONS[name]["steps"]
    (record,) = budgets.measure({"method": name, "steps": steps})
    assert run.forward * steps == 2 * record["forward"]
    assert run.backward * steps == 2 * record["backward"]
