import pytest
import torch

import feasibly
from feasibly import members, samplers
from feasibly.constraints import GaussianRandomField, LevelSet, Linear
from feasibly.minimizers import LBFGS, Adam, GaussNewton, WarmLBFGS
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

LEVEL = LevelSet(GaussianRandomField(seed=3))
LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)


class Conditional:
    """The Gaussian whose mean is a member's own; notes which members were asked for."""

    def __init__(self, means):
        self.oracle = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
        self.schedule = self.oracle.schedule
        self.means = means
        self.seen = []

    def __call__(self, x_t, t):
        rows = members.current()
        self.seen.append(rows.tolist())
        assert len(rows) == len(x_t)
        mean = self.means[rows].to(x_t)
        return self.oracle(x_t - mean, t).mean + mean


def test_there_are_no_members_outside_of_a_run():
    assert members.current() is None
    with members.among(torch.tensor([0])):
        assert members.current() is None


def test_rows_are_taken_of_the_rows_taken_before():
    with members.calling([7, 8, 9]):
        with members.among(torch.tensor([2, 0])):
            with members.among(torch.tensor([False, True])):
                assert members.current().tolist() == [7]
            assert members.current().tolist() == [9, 7]
        assert members.current().tolist() == [7, 8, 9]
    assert members.current() is None


def test_an_error_within_leaves_nothing_behind():
    with pytest.raises(KeyError), members.calling([1]):
        raise KeyError
    assert members.current() is None


MAKE = {
    "ancestral": lambda d: on(samplers.Ancestral(steps=8), d),
    "PPR, Gauss-Newton": lambda d: on(feasibly.PPR(steps=8, minimize=GaussNewton(3)), d, LEVEL),
    "PPR, LBFGS": lambda d: on(feasibly.PPR(steps=8, minimize=LBFGS(4)), d, LEVEL),
    # its curvature, from tiny pairs, makes much of rounding: few steps
    "PPR, WarmLBFGS": lambda d: on(
        feasibly.PPR(steps=4, minimize=WarmLBFGS(4), repeats=1), d, LEVEL
    ),
    "CDIM": lambda d: on(samplers.CDIM(steps=8), d, LINE),
    "trust": lambda d: on(samplers.TrustSampling(steps=8), d, LEVEL),
    "proximal": lambda d: on(samplers.ProximalLangevin(steps=8), d, LEVEL),
    "HDC": lambda d: on(samplers.HDC(steps=8, minimize=Adam(4)), d, LEVEL),
    "PCFM": lambda d: on(samplers.PCFM(steps=8), d, LEVEL),
}


@pytest.mark.filterwarnings("ignore::feasibly.errors.InfeasibleWarning")
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_a_conditional_member_is_the_same_alone_as_in_any_batch(make):
    means = torch.tensor([[3.0, 0.0], [0.0, 3.0], [-3.0, 0.0], [0.0, -3.0], [0.0, 0.0]])
    denoiser = Conditional(means)
    kernel = make(denoiser)
    kept = {"seed": 1, "dtype": torch.float64, "attempts": 2}
    together = sampled(kernel, range(5), (2,), **kept)
    again = sampled(kernel, [4, 2], (2,), **kept)
    torch.testing.assert_close(together.samples[[4, 2]], again.samples, rtol=1e-6, atol=1e-6)
    chunks = sampled(kernel, range(5), (2,), batch_size=2, **kept)
    torch.testing.assert_close(together.samples, chunks.samples, rtol=1e-6, atol=1e-6)
    assert members.current() is None


def test_minimizers_ask_for_the_members_that_still_search():
    denoiser = Conditional(torch.zeros(64, 2))
    sampled(on(feasibly.PPR(steps=8, minimize=GaussNewton(6)), denoiser, LEVEL), 64, (2,))
    assert {len(rows) for rows in denoiser.seen} - {2, 1, 64}


def test_members_follow_their_own_conditions():
    means = torch.tensor([[30.0, 0.0]]).repeat(512, 1)
    means[::2] = -means[::2]
    samples = sampled(on(samplers.Ancestral(steps=64), Conditional(means)), 512, (2,)).samples
    # unit variance: eight standard deviations are a chance of 1e-15
    assert (samples - means).abs().max() < 8
