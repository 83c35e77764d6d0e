import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.constraints import (
    BlackBox,
    Bounds,
    Composite,
    Constraint,
    Decoded,
    Inequality,
    Linear,
    Obstacles,
)
from tests.tensors import double

check = settings(derandomize=True, deadline=None, max_examples=60)
reals = st.floats(-10, 10)


def test_an_inequality_sees_only_what_is_above_zero():
    constraint = Inequality(lambda x: x - 1, tolerance=0.1)
    r = constraint.residual(double([[0.5, 1.5], [-3.0, 1.0]]))
    assert r.tolist() == [[0.0, 0.5], [0.0, 0.0]]


def test_a_side_of_bounds_may_be_left_open():
    x = double([[-2.0, 3.0]])
    for lower, upper, expected in ((0.0, None, [[-2.0, 0.0]]), (None, 1.0, [[0.0, 2.0]])):
        assert Bounds(lower, upper, tolerance=1e-3).residual(x).tolist() == expected


@given(st.lists(reals, min_size=3, max_size=3), reals, st.floats(0, 5))
@check
def test_the_violation_of_bounds_is_the_squared_distance_to_the_box(x, lower, width):
    x, upper = double([x]), lower + width
    distance = torch.stack((lower - x, x - upper, torch.zeros_like(x))).amax(dim=0)
    bounds = Bounds(double(lower), double(upper), tolerance=1e-3)
    torch.testing.assert_close(bounds.violation(x), distance.square().sum(dim=1))


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (-math.inf, 1.0, [-9.0, 0.0, 1.0]),
        (-1.0, math.inf, [-1.0, 0.0, 9.0]),
    ],
    ids=["above", "below"],
)
def test_an_infinite_bound_is_no_bound(lower, upper, expected):
    bounds, x = Bounds(lower, upper, tolerance=1e-3), double([[-9.0, 0.0, 9.0]])
    assert bounds.projection(x).tolist() == [expected]
    assert bounds.violation(x).isfinite().all()


def test_bounds_given_as_numbers_keep_their_double_precision():
    # 0.1 in single precision is 1.5e-9 too large, so that 0.1 itself would be infeasible
    bounds, x = Bounds(0.1, 0.3, tolerance=1e-3), double([[0.1, 0.3]])
    assert torch.equal(bounds.projection(x), x)


EQUALITY = Linear(double([[1.0, 1.0]]), double([1.0]), tolerance=1e-6)
HALF = Inequality(lambda x: x[:, :1], tolerance=1e-6)


def test_an_inequality_has_no_equalities_and_an_equality_is_its_own():
    assert HALF.equalities is None
    assert Bounds(-1.0, 1.0, tolerance=1e-3).equalities is None
    assert EQUALITY.equalities is EQUALITY
    thin = Bounds(double([0.0, 1.0]), double([0.5, 1.0]), tolerance=1e-3)
    x = double([[3.0, 3.0], [0.2, 1.0]])
    assert thin.equalities.residual(x).tolist() == [[2.0], [0.0]]  # of the second element
    assert Bounds(0.5, 0.5, tolerance=1e-3).equalities.residual(x).tolist() == [
        [2.5, 2.5],
        [-0.3, 0.5],
    ]


def parts(constraint, x):
    return [tensor.tolist() for tensor in constraint.inequalities(x)[:3]]


def test_inequalities_are_joined_and_keep_their_units_and_their_decoder():
    x = double([[3.0, 1.0]])
    two = Composite([HALF, EQUALITY, Bounds(-math.inf, double([2.0, math.inf]), 1e-3)])
    assert parts(two, x) == [[[3.0, 3.0]], [[-math.inf] * 2], [[0.0, 2.0]]]
    assert Composite([EQUALITY, EQUALITY]).inequalities is None
    assert parts(HALF.in_units(1.0, 2.0), x)[0] == [[7.0]]
    assert EQUALITY.in_units(0.0, 2.0).inequalities is None
    assert parts(Decoded(HALF, torch.neg), x)[0] == [[-3.0]]
    assert Decoded(EQUALITY, torch.neg).inequalities is None


def everything(constraint, x):
    found = constraint.intervals(x)
    assert not found.variance.any()  # nothing here has errors
    return [tensor.tolist() for tensor in found[:3]]


def test_intervals_are_residuals_at_zero_and_then_the_values_of_inequalities():
    x, inf = double([[3.0, 1.0], [-2.0, 0.5]]), math.inf
    assert everything(EQUALITY, x) == [[[3.0], [-2.5]], [[0.0]] * 2, [[0.0]] * 2]
    assert everything(HALF, x) == [[[3.0], [-2.0]], [[-inf]] * 2, [[0.0]] * 2]
    # an equality comes first, wherever it is among the parts, with its weight's root
    mixed = Composite([HALF, EQUALITY], weights=[5.0, 4.0])
    assert everything(mixed, x) == [
        [[6.0, 3.0], [-5.0, -2.0]],
        [[0.0, -inf]] * 2,
        [[0.0, 0.0]] * 2,
    ]


def test_intervals_of_bounds_have_equal_ones_as_residuals_and_leave_infinite_ones_out():
    inf = math.inf
    bounds = Bounds(double([0.0, 1.0, -inf, -inf]), double([0.5, 1.0, inf, 2.0]), tolerance=1e-3)
    values, lower, upper = everything(bounds, double([[3.0, 4.0, 5.0, 6.0]]))
    assert values == [[3.0, 3.0, 6.0]]  # 4 - 1 of the equal ones, then two elements as they are
    assert lower == [[0.0, 0.0, -inf]]
    assert upper == [[0.0, 0.5, 2.0]]
    assert everything(Bounds(0.5, 0.5, tolerance=1e-3), double([[2.0]])) == [
        [[1.5]],
        [[0.0]],
        [[0.0]],
    ]


def test_intervals_keep_units_and_decoders_and_those_of_obstacles_and_black_boxes_have_signs():
    x = double([[3.0, 1.0]])
    mixed = Composite([HALF, EQUALITY], weights=[1.0, 1.0])
    assert everything(mixed.in_units(1.0, 2.0), x)[0] == [[9.0, 7.0]]  # of 2 x + 1
    assert everything(Decoded(mixed, torch.neg), x)[0] == [[-5.0, -3.0]]
    disc = Obstacles([[0.0, 0.0]], [5.0], tolerance=1e-6)
    path = double([[[3.0, 0.0], [0.0, 9.0]]])
    assert everything(disc, path) == [[[2.0, -4.0]], [[-math.inf] * 2], [[0.0, 0.0]]]
    inside = BlackBox(lambda x: x[:, :1], tolerance=1e-6, inequality=True)
    assert everything(inside, -x) == [[[-3.0]], [[-math.inf]], [[0.0]]]
    on = BlackBox(lambda x: x[:, :1], tolerance=1e-6)
    assert everything(on, -x) == [[[-3.0]], [[0.0]], [[0.0]]]


def test_intervals_have_gradients_inside_too():
    x = double([[-3.0, 0.5]]).requires_grad_()
    values = Composite([HALF, Bounds(-1.0, 1.0, tolerance=1e-6)]).intervals(x).values
    (g,) = torch.autograd.grad(values.sum(), x)
    assert g.tolist() == [[2.0, 1.0]]


def test_intervals_of_a_class_with_a_residual_alone_are_that_residual():
    class Own(Constraint):
        def residual(self, x):
            return x[:, :1] - 1

    assert everything(Own(1e-6), double([[3.0]])) == [[[2.0]], [[0.0]], [[0.0]]]

    class Side(Own):
        equalities = None

    assert everything(Side(1e-6), double([[3.0]])) == [[[2.0]], [[-math.inf]], [[0.0]]]
