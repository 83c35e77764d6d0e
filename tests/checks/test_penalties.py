"""Penalties that are stated as equalities."""

import math

import pytest
import torch

import feasibly
from feasibly.checks.derivatives import roughness
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
from feasibly.errors import CalibrationWarning

X = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
LINE = Linear([[1.0, 1.0, 0.0]], [0.5], tolerance=1e-6)


def g(x):
    return x[:, 0] + x[:, 1] - 0.3


PENALTIES = {
    "of one inequality": Equality(lambda x: g(x).relu(), 1e-6),
    "of each element": Equality(lambda x: (x - 0.3).relu(), 1e-6),
    "of two sides": Equality(lambda x: x - x.clamp(-0.5, 0.5), 1e-6),
    "squared": Scalar(lambda x: g(x).relu().square(), 1e-6),
    "that half of the samples meet": Equality(lambda x: (g(x) + 0.3).relu(), 1e-6),
    "beside an equality": Composite([LINE, Equality(lambda x: g(x).relu(), 1e-6)]),
    "in units": Equality(lambda x: g(x).relu(), 1e-6).in_units(0.1, 2.0),
    "of another program": BlackBox(lambda x: (x[:, :1] - 1).relu().numpy(), 1e-6),
}


@pytest.mark.parametrize("constraint", PENALTIES.values(), ids=PENALTIES.keys())
def test_a_penalty_stated_as_an_equality_is_said_to_be_one(constraint):
    (said,) = roughness(constraint, X)
    assert "flat, with a zero gradient" in said
    assert "relu(g) = 0 means g <= 0" in said


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
def test_what_is_no_penalty_is_not_said_to_be_one(constraint):
    assert list(roughness(constraint, X)) == []


def test_samples_that_meet_an_equality_are_no_penalty():
    """Its residual is zero there, and its gradient is not."""
    at = torch.stack([LINE.projection(X), X]).flatten(end_dim=1)
    line = Equality(LINE.residual, 1e-6)
    assert line.is_feasible(at)[:64].all()
    assert list(roughness(line, at)) == []


def test_sample_warns_of_a_penalty_and_goes_on(gaussian):
    half = Equality(lambda x: x[:, :1].relu(), 1e-6)
    with pytest.warns(CalibrationWarning, match=r"State it as Inequality\(g, tolerance\)"):
        result = feasibly.sample(gaussian, half, 4, (2,), options={"steps": 4})
    assert any("State it as Inequality" in said for said in result.warnings)
    assert result.feasible.all()
    assert math.isfinite(result.samples.sum().item())
