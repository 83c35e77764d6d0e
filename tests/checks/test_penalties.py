"""Penalties that are stated as equalities."""

import math
import warnings

import pytest
import torch

import feasibly
from feasibly.checks import check_constraint
from feasibly.constraints import (
    BlackBox,
    Bounds,
    Composite,
    Equality,
    Inequality,
    Linear,
    Mask,
    Observation,
    Scalar,
)
from feasibly.errors import ConstraintWarning

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
LINE = Linear([[1.0, 1.0, 0.0]], [0.5], tolerance=1e-6)


def g(x):
    return x[:, 0] + x[:, 1] - 0.3


PENALTIES = {
    "of one inequality": Equality(lambda x: g(x).relu(), 1e-6),
    "of each element": Equality(lambda x: (x - 0.3).relu(), 1e-6),
    "of two sides": Equality(lambda x: x - x.clamp(-0.5, 0.5), 1e-6),
    "squared": Scalar(lambda x: g(x).relu().square(), 1e-6),
    "that hardly any sample meets": Equality(lambda x: (g(x) - 9).relu(), 1e-6),
    "beside an equality": Composite([LINE, Equality(lambda x: g(x).relu(), 1e-6)]),
    "in units": Equality(lambda x: g(x).relu(), 1e-6).in_units(0.1, 2.0),
    "of another program": BlackBox(lambda x: (x[:, :1] - 1).relu().numpy(), 1e-6),
}


@pytest.mark.parametrize("constraint", PENALTIES.values(), ids=PENALTIES.keys())
@pytest.mark.parametrize("n", [2, 64], ids=str)
def test_a_penalty_stated_as_an_equality_is_warned_of(constraint, n):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    with pytest.warns(ConstraintWarning, match=r"exactly zero.* as Inequality\(g, tolerance\)"):
        check_constraint(constraint, x)


HONEST = {
    "inequality": Inequality(g, 1e-6),
    "bounds": Bounds(-0.5, 0.5, 1e-6),
    "inequality beside an equality": Composite([LINE, Inequality(g, 1e-6)]),
    "penalty of an inequality for another program": BlackBox(
        lambda x: x[:, :1].relu(), 1e-6, inequality=True
    ),
    "known values": Mask([True, False, True], 0.3, 1e-6),
    "values outside of a mask": Observation(
        lambda x: x * torch.tensor([1.0, 0.0, 1.0]), [0.1, 0.0, 0.2], 1e-6
    ),
    "square": Equality(lambda x: g(x).square(), 1e-6),
    "distance": Scalar(lambda x: g(x).square(), 1e-6),
    "rectified values": Equality(lambda x: x.relu().sum(dim=1) - 1, 1e-6),
    "staircase with long steps": BlackBox(lambda x: x[:, :1].round(), 1e-6, step=2.0),
}


@pytest.mark.parametrize("constraint", HONEST.values(), ids=HONEST.keys())
def test_what_is_no_penalty_is_not_warned_of(constraint):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_constraint(constraint, X)


def test_samples_that_meet_an_equality_are_no_penalty():
    """Its residual is zero there, and its gradient is not."""
    at = torch.tensor([[0.5, 0.0, 1.0], [0.25, 0.25, 2.0]])
    assert LINE.is_feasible(at).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_constraint(LINE, at)


def test_a_function_that_refuses_noise_is_not_refused_for_it():
    def h(x):
        if x.abs().max() > 2:
            raise ValueError("out of range")
        return g(x)

    check_constraint(Equality(h, 1e-6), 0.1 * X)


def test_the_search_for_a_penalty_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    check_constraint(LINE, X)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sampler_warns_of_a_penalty_and_samples(gaussian):
    half = Equality(lambda x: x[:, :1].relu(), 1e-6)
    with pytest.warns(ConstraintWarning, match="as a penalty relu"):
        result = feasibly.sample(gaussian, half, 4, (2,), options={"steps": 4})
    assert result.feasible.all()
    assert math.isfinite(result.samples.sum().item())
