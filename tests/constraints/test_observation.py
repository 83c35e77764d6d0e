import math

import numpy as np
import pytest
import torch
from hypothesis import settings

from feasibly.constraints import Linear, Observation

check = settings(derandomize=True, deadline=None, max_examples=40)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def test_the_residual_of_an_observation_is_what_was_missed():
    constraint = Observation(lambda x: x[:, ::2], double([1.0, 2.0]), tolerance=1e-3)
    r = constraint.residual(double([[1.5, 9.0, 1.0], [1.0, 0.0, 2.0]]))
    assert r.tolist() == [[0.5, -1.0], [0.0, 0.0]]


def test_an_observation_of_any_shape_is_flattened():
    constraint = Observation(lambda x: x[..., :2], torch.zeros(3, 2), tolerance=1e-3)
    assert constraint.residual(torch.ones(5, 3, 4)).shape == (5, 6)


@pytest.mark.parametrize("shape", [(1, 2), (3,), (), (5, 2)], ids=str)
def test_an_observed_value_of_another_shape_is_refused_with_both_shapes(shape):
    constraint = Observation(lambda x: x[:, :2], torch.zeros(shape), tolerance=1e-3)
    message = rf"A\(x\) has shape \(2,\) for one sample, but y has \({', '.join(map(str, shape))}"
    with pytest.raises(ValueError, match=message):
        constraint.residual(torch.ones(5, 3))


@pytest.mark.parametrize(
    ("A", "y"),
    [((3,), (3,)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((1, 2, 3), (1,))],
    ids=str,
)
def test_a_linear_constraint_of_mismatched_shapes_is_refused(A, y):
    with pytest.raises(ValueError, match=r"Linear needs A of shape \(m, D\) and y of shape \(m\)"):
        Linear(torch.zeros(A), torch.zeros(y), tolerance=1e-3)


@pytest.mark.parametrize("kind", [list, np.array], ids=["list", "array"])
def test_a_linear_constraint_takes_lists_and_arrays(kind):
    A, y = [[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]], [1.0, 0.5]
    x = normal(4, 3)
    expected = Linear(double(A), double(y), tolerance=1e-12)
    constraint = Linear(kind(A), kind(y), tolerance=1e-12)
    torch.testing.assert_close(constraint.residual(x), expected.residual(x))
    torch.testing.assert_close(constraint.projection(x), expected.projection(x))
    assert constraint.projection(x.float()).dtype == torch.float32


def test_numbers_in_a_list_keep_their_double_precision():
    x = double([[0.1]])
    assert Linear([[1.0]], [0.1], tolerance=1e-30).violation(x).item() == 0
    assert Observation(lambda x: x, [0.1], tolerance=1e-30).violation(x).item() == 0


@pytest.mark.parametrize(
    ("A", "y", "message"),
    [
        ([[1.0, 2.0], [3.0]], [1.0, 2.0], r"Linear\(A=...\) must be numbers.*Got list"),
        ([[1.0, 2.0]], None, r"Linear\(y=...\) must be numbers.*Got NoneType"),
        ([["a", "b"]], [1.0], r"Linear\(A=...\) must be numbers.*Got list.*'a'"),
        ([[math.nan, 2.0]], [1.0], r"Linear\(A=...\) has 1 values of 2 that are not finite"),
    ],
    ids=["ragged", "nothing", "words", "nan"],
)
def test_what_makes_no_matrix_is_refused_with_its_name(A, y, message):
    with pytest.raises(ValueError, match=message):
        Linear(A, y, tolerance=1e-3)


def test_contradictory_rows_are_refused_with_how_much_they_miss():
    A = double([[1.0, 0.0], [1.0, 0.0]])
    # the best x_1 is 1/2, which misses each row by 1/2
    for tolerance in (1e-3, 0.499):
        with pytest.raises(
            ValueError, match=r"no x satisfies A x = y\. The least .* is 0\.5, and the"
        ):
            Linear(A, double([0.0, 1.0]), tolerance)


def test_contradictory_rows_within_the_tolerance_are_accepted():
    A = double([[1.0, 0.0], [1.0, 0.0]])
    constraint = Linear(A, double([0.0, 1.0]), tolerance=0.501)
    assert constraint.is_feasible(constraint.projection(normal(4, 2))).all()


def test_dependent_but_consistent_rows_are_accepted():
    A = double([[1.0, 2.0], [2.0, 4.0]])
    constraint = Linear(A, double([1.0, 2.0]), tolerance=1e-12)
    assert constraint.is_feasible(constraint.projection(normal(4, 2))).all()


def test_the_residual_of_a_linear_constraint_is_the_matrix_product():
    A, y, x = normal(2, 6), normal(2, seed=1), normal(4, 2, 3, seed=2)
    expected = torch.stack([A @ sample.flatten() - y for sample in x])
    torch.testing.assert_close(Linear(A, y, tolerance=1e-3).residual(x), expected)
