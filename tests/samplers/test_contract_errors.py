"""Errors that say what is wrong with a new sampler."""

from dataclasses import dataclass

import pytest
import torch

from feasibly import SamplingError
from feasibly.oracles import Gaussian
from feasibly.samplers.base import Sampler, Step
from feasibly.schedules import LogLogit

PRIOR = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())


def test_a_repr_that_names_an_address_is_refused():
    @dataclass(frozen=True)
    class Plain(Sampler):
        enforces = False

        def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
            return Step(x_t, x_t)

    with pytest.raises(TypeError, match=r"Plain has a repr of its own.*repr=False"):
        Plain(PRIOR)


def test_a_step_that_returns_no_step_is_named():
    @dataclass(frozen=True, repr=False, eq=False)
    class Pair(Sampler):
        enforces = False

        def step(self, x_t, t, s, randn=torch.randn_like, memory=None):
            return x_t, x_t

    with pytest.raises(SamplingError, match=r"`step` returned tuple, not Step\(x, x_0, memory\)"):
        Pair(PRIOR).sample(2, (2,))
