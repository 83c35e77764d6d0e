import torch

from experiments.samplers import quiet
from experiments.studies.cost import Clock, Ledger
from feasibly import CalibratedPPR, Linear
from feasibly.oracles import Gaussian
from feasibly.problem import Problem
from feasibly.run import run
from feasibly.schedules import LogLogit

PRIOR = Gaussian(torch.zeros(3), torch.eye(3), LogLogit())
SUM = Linear(torch.ones(1, 3), torch.ones(1), 1e-6)
MEMBERS, STEPS = 4, 5
TESTED = 152  # of the plan's and the run's dry run: two states and the test of their gradient


def test_each_evaluation_is_assigned_once_and_the_test_of_two_states_beside_them():
    ledger = Ledger(PRIOR)
    taken = quiet(ledger, SUM, MEMBERS, (3,)).evaluations
    counted = taken.member_forward + 2 * taken.member_backward
    assert sum(ledger.work.values()) == counted + TESTED
    assert {"survey", "test"} <= {what for what, _ in ledger.work}


def test_posterior_samples_take_a_forward_pass_and_two_products_a_step():
    ledger = Ledger(PRIOR)
    run([CalibratedPPR(steps=STEPS).bind(Problem(ledger, SUM, (3,)))], MEMBERS)
    work = {k: sum(v.values()) for k, v in ledger.by_purpose(MEMBERS).items()}
    assert (work["prediction"], work["covariance"]) == (STEPS, 2 * 2 * STEPS)
    assert work["solve"] == 2 * STEPS  # one value, one product
    assert "survey" not in work


def test_a_clock_counts_both_passes_of_a_decoder_and_changes_neither():
    waits = []

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            waits.append("forward")
            return 2 * z

        @staticmethod
        def backward(ctx, g):
            waits.append("backward")
            return 2 * g

    clock = Clock(Slow.apply)
    z = torch.ones(3, 2, requires_grad=True)
    x = clock(z)
    once = clock.seconds
    (g,) = torch.autograd.grad(x.sum(), z)
    assert 0 < once < clock.seconds
    assert waits == ["forward", "backward"]
    assert torch.equal(x.detach(), 2 * z.detach())
    assert torch.equal(g, 2 * torch.ones_like(z))
