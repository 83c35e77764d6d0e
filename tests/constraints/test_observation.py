"""Observations and matrices; complex values are two real ones each."""

import numpy as np
import pytest
import torch
from hypothesis import settings

import feasibly
from feasibly import constraints
from feasibly.constraints import Linear, Observation
from feasibly.members import calling
from tests.tensors import double, normal

check = settings(derandomize=True, deadline=None, max_examples=40)


def test_the_residual_of_an_observation_is_what_was_missed():
    constraint = Observation(lambda x: x[:, ::2], double([1.0, 2.0]), tolerance=1e-3)
    r = constraint.residual(double([[1.5, 9.0, 1.0], [1.0, 0.0, 2.0]]))
    assert r.tolist() == [[0.5, -1.0], [0.0, 0.0]]


def test_an_observation_of_any_shape_is_flattened():
    constraint = Observation(lambda x: x[..., :2], torch.zeros(3, 2), tolerance=1e-3)
    assert constraint.residual(torch.ones(5, 3, 4)).shape == (5, 6)


def test_numbers_in_a_list_keep_their_double_precision():
    x = double([[0.1]])
    assert Linear([[1.0]], [0.1], tolerance=1e-30).violation(x).item() == 0
    assert Observation(lambda x: x, [0.1], tolerance=1e-30).violation(x).item() == 0


def test_contradictory_rows_are_refused_with_how_much_they_miss():
    A = double([[1.0, 0.0], [1.0, 0.0]])
    # the best x_1 is 1/2, which misses each row by 1/2
    for tolerance in (1e-3, 0.499):
        with pytest.raises(
            ValueError, match=r"no x satisfies A x = y\. The smallest .* is 0\.5, but the"
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


D = 6
F = torch.fft.rfft(torch.eye(D, dtype=torch.float64), dim=0)[1:3]
TRUE = torch.randn(D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = F @ TRUE.to(F.dtype)


def waves(x):
    return torch.fft.rfft(x)[:, 1:3]


EXACT = {
    "linear": feasibly.Linear(F, Y, 1e-8),
    "linear of arrays": feasibly.Linear(F.numpy(), Y.tolist(), 1e-8),
    "observation": feasibly.Observation(waves, Y, 1e-8),
    "equality": feasibly.Equality(lambda x: waves(x) - Y.to(waves(x)), 1e-8),
    "each member": feasibly.EachMember(feasibly.Equality(waves, 1e-8), Y.expand(8, 2)),
    "black box": constraints.BlackBox(lambda x: np.fft.rfft(x.numpy())[:, 1:3] - Y.numpy(), 1e-8),
}


@pytest.mark.parametrize("name", EXACT)
def test_both_parts_of_complex_values_hold(name):
    law = EXACT[name]
    x = torch.randn(8, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gap = torch.view_as_real(waves(x) - Y).reshape(8, 4)
    with calling(range(8)):
        assert torch.allclose(law.residual(x), gap, atol=1e-12)
        assert torch.allclose(law.violation(x), gap.square().sum(dim=1))
        assert law.is_feasible(TRUE[None].expand(8, D)).all()


@pytest.mark.parametrize(
    ("noise", "stds"),
    [
        (0.1, [0.1, 0.1, 0.1, 0.1]),
        ([0.1, 0.2], [0.1, 0.1, 0.2, 0.2]),
        (np.diag([1.0, 4.0, 9.0, 16.0]), [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_noise_is_that_of_each_part(noise, stds):
    x = torch.zeros(1, D, dtype=torch.float64)
    scaled = torch.view_as_real(-Y).flatten() / torch.tensor(stds)
    for law in (feasibly.Linear(F, Y, noise=noise), feasibly.Observation(waves, Y, noise=noise)):
        assert torch.allclose(law.residual(x)[0].abs().sort().values, scaled.abs().sort().values)
