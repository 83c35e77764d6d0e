"""What a run does at its edges: attempts that fail, outputs that fail, stale preparations."""

from dataclasses import dataclass, replace

import pytest
import torch

import feasibly
from feasibly import PPR, Ancestral, Equality, SamplingError
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.samplers import Rejection
from feasibly.sampling import Run, inspect
from feasibly.schedules import LogLogit

PRIOR = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
LINE = Equality(lambda x: x[:, :1] - 0.3, tolerance=1e-8)
FREE = {"steps": 4, "order": 1, "spacing": "time"}


@dataclass(frozen=True, repr=False, eq=False)
class Lost(Ancestral):
    """All members become NaN at the second step."""

    def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
        step = super().step(x_t, t, s, randn, memory)
        return step._replace(x=step.x * torch.nan) if self.index(s) == 2 else step


def run():
    return Run(0, (2,), torch.float32, "cpu")


def test_an_attempt_in_which_all_members_fail_leaves_a_trace():
    made = run()
    made.sample([Ancestral(PRIOR, LINE, **FREE), Lost(PRIOR, LINE, **FREE)], [0, 1, 2])
    last = made.trace[-1]
    assert (last.attempt, last.step, last.failed, last.members) == (1, 2, 3, 3)


def test_a_path_is_that_of_the_attempt_that_is_kept():
    made = run()
    sampler = Ancestral(PRIOR, LINE, output="projected", **FREE)
    result = made.sample([sampler] * 2, list(range(6)))
    first = sampler.sample(6, (2,)).violation
    assert (result.violation == first).any()
    assert (result.violation < first).any()
    for i, violation in enumerate(result.violation.tolist()):
        assert made.paths[i][-1] == pytest.approx(violation)


def test_an_output_that_fails_is_named_and_keeps_what_was_finished():
    def denoiser(x_t, t):
        if t == 0:
            raise RuntimeError("no such time")
        return PRIOR(x_t, t).mean

    denoiser.schedule = PRIOR.schedule
    with pytest.raises(SamplingError, match=r"output after the last step failed.*no such time"):
        Ancestral(denoiser, **FREE).sample(2, (2,))


def test_a_pilot_of_other_settings_is_sampled_anew():
    problem = inspect(PRIOR, LINE, (2,), chunk=64)
    prepared = Rejection(PRIOR, LINE, steps=8, level=0.3).prepare(problem)
    assert prepared.prepare(problem) is prepared
    other = replace(prepared, level=0.1)
    with pytest.raises(ValueError, match="no pilot for its settings"):
        other.begin(MemberNoise(0, [0], (2,)))
    assert other.prepare(problem).pilot.log_bar != prepared.pilot.log_bar


def test_preparation_counts_in_the_time_of_a_run():
    result = Rejection(PRIOR, LINE, steps=8, level=0.3).sample(2, (2,))
    assert 0 <= result.overhead <= 1


def test_a_sampler_of_another_denoiser_is_refused():
    other = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
    with pytest.raises(ValueError, match="another denoiser"):
        feasibly.sample(PRIOR, LINE, 2, (2,), method=PPR(other, LINE))


@pytest.mark.parametrize(
    ("constraint", "method", "options"),
    [
        (None, "auto", {}),
        (LINE, "auto", {"steps": 4}),
        (LINE, "ppr", {"minimize": GaussNewton(3)}),
    ],
    ids=str,
)
def test_fast_is_refused_where_it_would_do_nothing(constraint, method, options):
    with pytest.raises(ValueError, match=r"(?i)leave (fast|one of the two) out"):
        feasibly.sample(PRIOR, constraint, 2, (2,), method=method, fast=True, options=options)


def test_an_index_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match="index twice"):
        Ancestral(PRIOR, **FREE).sample([1, 1], (2,))


def test_a_member_that_was_reset_is_finite_again():
    """The estimate before the reset, which was not finite, is not extrapolated from."""
    sampler = Ancestral(PRIOR, steps=4)
    times = sampler.times(torch.float32)
    last = sampler.step(torch.full((1, 2), torch.nan), times[0], times[1]).memory
    step = sampler.step(torch.zeros(1, 2), times[1], times[2], torch.zeros_like, last)
    assert step.x.isfinite().all()
