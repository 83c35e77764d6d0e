import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.constraints import (
    Bounds,
    Composite,
    Equality,
    Integral,
    LevelSet,
    Linear,
    Mask,
)
from feasibly.errors import ConstraintError
from tests.tensors import double

check = settings(derandomize=True, deadline=None, max_examples=100)
positive = st.floats(-4, 4).map(lambda e: 10**e)


def coordinate(i, tolerance):
    return Equality(lambda x: x[:, i], tolerance)


PARTS = [
    Linear(double([[1.0, 1.0, 1.0]]), double([1.0]), tolerance=0.5),
    Bounds(-1.0, 1.0, tolerance=0.1),
    LevelSet(lambda x: x[:, 0] - x[:, 1] ** 2, tolerance=0.4),
]


@pytest.mark.parametrize("weights", [None, [3.0, 0.2, 1.0]], ids=str)
def test_a_sample_is_feasible_if_and_only_if_it_is_for_every_part(weights):
    x = torch.randn((400, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    each = torch.stack([part.is_feasible(x) for part in PARTS])
    whole = Composite(PARTS, weights)
    assert torch.equal(whole.is_feasible(x), each.all(dim=0))
    assert torch.equal(Composite([Composite(PARTS[:2]), PARTS[2]]).is_feasible(x), each.all(dim=0))
    # some are feasible above the tolerance at which minimizers stop
    assert (whole.violation(x) > whole.tolerance)[each.all(dim=0)].any()
    # some are feasible, and each part alone decides some
    assert each.all(dim=0).any()
    assert all((each.sum(dim=0) == 2)[~part].any() for part in each)


@given(
    st.lists(st.tuples(positive, positive), min_size=1, max_size=4),
    st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    st.floats(0, 0.999999),
)
@check
def test_a_residual_within_the_tolerance_makes_every_part_feasible(parts, direction, fill):
    tolerances, weights = zip(*parts, strict=True)
    composite = Composite(
        [coordinate(i, tolerance) for i, tolerance in enumerate(tolerances)], weights
    )
    n = len(parts)
    r = double(direction[:n]) + 1e-3
    r = r / r.norm() * math.sqrt(fill * composite.tolerance)
    x = (r / double(weights).sqrt())[None]
    torch.testing.assert_close(composite.residual(x)[0], r)
    assert all(part.is_feasible(x).item() for part in composite.constraints)
    assert composite.is_feasible(x).item()


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=4))
@check
def test_no_larger_tolerance_would_make_every_part_feasible(parts):
    tolerances, weights = zip(*parts, strict=True)
    composite = Composite([coordinate(i, c) for i, c in enumerate(tolerances)], weights)
    infeasible = 0
    for i, weight in enumerate(weights):
        x = torch.zeros(1, len(parts)).double()
        x[0, i] = math.sqrt(1.001 * composite.tolerance / weight)
        infeasible += not composite.is_feasible(x).item()
    assert infeasible >= 1


def test_violation_is_the_weighted_sum_of_the_parts():
    x = torch.randn((9, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = [3.0, 0.2, 1.0]
    expected = sum(w * part.violation(x) for w, part in zip(weights, PARTS, strict=True))
    torch.testing.assert_close(Composite(PARTS, weights).violation(x), expected)


def test_squared_residual_is_the_weighted_sum_of_the_squares_of_the_parts():
    x = torch.randn((9, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = [3.0, 0.2, 1.0]
    r = Composite(PARTS, weights).residual(x)
    assert r.shape == (9, 1 + 3 + 1)
    parts = zip(weights, PARTS, strict=True)
    expected = sum(w * part.residual(x).square().sum(dim=1) for w, part in parts)
    torch.testing.assert_close(r.square().sum(dim=1), expected)


def test_default_weights_count_each_part_in_its_own_tolerance():
    composite = Composite([coordinate(0, 1e-6), coordinate(1, 4.0)])
    assert composite.tolerance == pytest.approx(1.0)
    violation = composite.violation(double([[1e-3, 0.0], [0.0, 2.0], [1e-3, 2.0]]))
    torch.testing.assert_close(violation, double([1.0, 1.0, 2.0]))


START = torch.tensor([[1.0, 3.0], [0.0, 0.0], [0.0, 0.0]]).double()


def conserved(y=None, start=1e-20, mass=1e-20):
    """The first of three frames is known, and their mean is conserved."""
    frames = torch.tensor([[True, True], [False, False], [False, False]])
    return Composite([Mask(frames, START, start), Integral((-1,), y, mass)])


def test_a_projection_on_linear_parts_satisfies_them_all_at_once():
    x = torch.randn((4, 3, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # the known frame has mean 2, which the others are shifted to
    expected = x - x.mean(dim=2, keepdim=True) + 2
    expected[:, 0] = START[0]
    for whole in (conserved(), conserved(y=2.0), Composite([conserved(), conserved(y=2.0)])):
        nearest = whole.projection(x)
        torch.testing.assert_close(nearest, expected)
        assert whole.is_feasible(nearest).all()


@pytest.mark.parametrize("weights", [None, [1e6, 1e-3]], ids=["default", "given"])
def test_parts_of_very_different_tolerances_are_solved_to_the_same_precision(weights):
    parts = [Mask(torch.tensor([True, False]), 1.0, 1e-20), Integral((-1,), 0.5, 1e-2)]
    x = double([[3.0, 7.0]])
    torch.testing.assert_close(Composite(parts, weights).projection(x), double([[1.0, 0.0]]))


def test_parts_that_contradict_each_other_are_refused_with_their_names():
    message = (
        r"contradict each other.* violates Integral\(tolerance=1e-06\) with a violation of 1\."
    )
    with pytest.raises(ConstraintError, match=message):
        conserved(y=1.0, start=1e-20, mass=1e-6).projection(torch.zeros(2, 3, 2))


def test_parts_that_differ_within_their_tolerances_have_a_projection():
    whole = conserved(y=2.0 + 1e-4, start=1e-6, mass=1e-6)
    assert whole.is_feasible(whole.projection(torch.zeros(2, 3, 2))).all()


def test_a_composite_with_a_part_that_is_not_linear_has_no_closed_form():
    with pytest.raises(NotImplementedError, match=r"Bounds\(tolerance=0\.1\) is not linear; proj"):
        Composite(PARTS[:2]).projection(torch.zeros(1, 3))
