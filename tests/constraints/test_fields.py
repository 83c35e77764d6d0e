"""Known values, slopes, integrals, lengths and obstacles."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.constraints import ClosedLoop, Energy, Integral, Lengths, Mask, Neumann, Obstacles
from tests.tensors import double, normal

check = settings(derandomize=True, deadline=None, max_examples=30)


def test_a_mask_sees_what_it_covers_and_sets_it():
    mask = torch.tensor([[True, False], [False, True]])
    known = Mask(mask, torch.tensor([[1.0, math.nan], [math.nan, 2.0]]).double(), tolerance=1e-9)
    x = torch.tensor([[[1.5, 7.0], [8.0, 5.0]]]).double()
    assert known.residual(x).tolist() == [[0.5, 3.0]]
    assert known.violation(x).item() == 0.25 + 9.0
    assert known.projection(x).tolist() == [[[1.0, 7.0], [8.0, 2.0]]]


def test_a_boundary_condition_holds_the_frame_of_a_field():
    wall = Mask.boundary((3, 4, 5), (-2, -1), 0.5, tolerance=1e-9)
    inside = torch.zeros(4, 5, dtype=torch.bool)
    inside[1:-1, 1:-1] = True
    assert torch.equal(wall.mask, ~inside.expand(3, 4, 5))
    x = wall.projection(normal(2, 3, 4, 5))
    assert (x[..., 0, :] == 0.5).all()
    assert (x[..., -1] == 0.5).all()
    assert wall.is_feasible(x).all()


def test_an_initial_condition_holds_the_first_frames():
    u = normal(2, 6)
    start = Mask.initial(u, 5, tolerance=1e-9)
    x = normal(3, 5, 6, seed=1)
    after = start.projection(x)
    assert torch.equal(after[:, :2], u.expand(3, 2, 6))
    assert torch.equal(after[:, 2:], x[:, 2:])
    torch.testing.assert_close(start.residual(x), (x[:, :2] - u).flatten(start_dim=1))


def test_a_slope_at_the_ends_is_exact_on_parabolas():
    t = torch.linspace(0, 2, 9, dtype=torch.float64)
    x = torch.stack((t**2, 3 * t - t**2))[None]  # slopes 0 and 4; 3 and -1
    free = Neumann(-1, 0.25, 0.0, tolerance=1e-6)
    torch.testing.assert_close(free.residual(x), torch.tensor([[0.0, 3, 4, -1]]).double())
    # the ends first, then the other axes
    flux = torch.tensor([[0.0, 3.0], [4.0, -1.0]])
    assert Neumann(-1, 0.25, flux, tolerance=1e-12).is_feasible(x).all()


def test_an_integral_weighs_its_cells():
    cells = torch.tensor([1.0, 2.0, 0.5])
    mass = Integral((-1,), torch.tensor([1.0, 5.0]), 1e-9, weights=cells)
    x = torch.tensor([[[1.0, 1.0, 2.0], [2.0, 1.0, 4.0]]]).double()
    assert mass.residual(x).tolist() == [[3.0, 1.0]]


def test_without_weights_an_integral_is_an_average():
    x = normal(4, 2, 3, 5)
    r = Integral((-2, -1), 0.25, 1e-9).residual(x)
    torch.testing.assert_close(r, x.mean(dim=(-2, -1)) - 0.25)


@given(st.integers(0, 2**16), st.booleans(), st.booleans())
@check
def test_the_projection_on_an_integral_is_nearest(seed, conserved, weighted):
    weights = normal(3, 4, seed=seed + 1).abs() + 0.1 if weighted else None
    constraint = Integral((-2, -1), None if conserved else 0.7, 1e-18, weights=weights)
    x = normal(2, 5, 3, 4, seed=seed)
    nearest = constraint.projection(x)
    assert constraint.is_feasible(nearest).all()
    # another feasible point: the move to the nearest is orthogonal to what leads there from it
    other = constraint.projection(normal(2, 5, 3, 4, seed=seed + 2))
    dot = ((nearest - x) * (other - nearest)).flatten(start_dim=1).sum(dim=1)
    if conserved:  # any level will do, so this holds along all of the subspace
        other = other + nearest
        torch.testing.assert_close(constraint.residual(other), torch.zeros(2, 4).double())
    torch.testing.assert_close(dot, torch.zeros(2).double())


def test_a_mean_over_the_first_axis_is_conserved_along_the_next():
    mass = Integral((-2,), None, 1e-20)  # of fields with space first and time second
    x = normal(3, 4, 5)
    nearest = mass.projection(x)
    assert mass.is_feasible(nearest).all()
    mean = x.mean(dim=1, keepdim=True)
    torch.testing.assert_close(nearest, x - mean + mean.mean(dim=2, keepdim=True))


def test_energy_is_half_the_weighted_square():
    x = torch.tensor([[1.0, 2.0]]).double()
    constraint = Energy((-1,), 3.0, 1e-9, weights=torch.tensor([2.0, 0.5]))
    assert constraint.residual(x).item() == (2 * 1 + 0.5 * 4) / 2 - 3
    with pytest.raises(NotImplementedError, match="minimizer"):
        constraint.projection(x)


def test_conserved_energy_is_compared_to_the_first_frame():
    x = torch.tensor([[[1.0, 1.0], [2.0, 0.0], [1.0, -1.0]]]).double()
    constraint = Energy((-1,), None, 1e-9)
    assert constraint.residual(x).tolist() == [[0.5, 0.0]]
    with pytest.raises(NotImplementedError, match="minimizer"):
        constraint.projection(x)


def test_the_projection_on_an_energy_is_the_nearest_point_of_a_sphere():
    constraint = Energy((-1,), 0.5, 1e-20)  # a mean square of 1 for two values: |x| = sqrt(2)
    x = torch.tensor([[3.0, 4.0]]).double()
    torch.testing.assert_close(constraint.projection(x), x / 5 * math.sqrt(2))


def test_known_values_alone_go_where_the_mask_is_true():
    x = torch.arange(12.0).reshape(1, 3, 4)
    mask = x[0] % 3 == 0
    known = Mask(mask, x[0][mask], 1e-9)
    assert known.violation(x).item() == 0
    assert torch.equal(known.projection(torch.zeros(1, 3, 4)), torch.where(mask, x, 0.0))
    column = torch.zeros(4, 4, dtype=torch.bool)
    column[:, 0] = True
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(Mask(column, values, 1e-9).y[:, 0], values), "and not along the last axis"


def test_a_loop_is_closed_where_its_ends_meet():
    loop = ClosedLoop(tolerance=1e-12)
    path = double([[[0.0, 0.0], [5.0, 5.0], [2.0, 4.0]]])
    assert loop.residual(path).tolist() == [[2.0, 4.0]]
    # the shortest way: both ends go half of it
    assert loop.projection(path).tolist() == [[[1.0, 2.0], [5.0, 5.0], [1.0, 2.0]]]


def test_lengths_are_those_of_each_pair_in_each_frame():
    arm = Lengths(torch.tensor([[0, 1], [1, 2]]), double([5.0, 1.0]), tolerance=1e-9)
    frames = double([[[[0, 0], [3, 4], [3, 6]], [[0, 0], [0, 5], [1, 5]]]])
    assert arm.residual(frames).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_points_that_coincide_have_a_length_with_a_finite_slope():
    x = torch.zeros(1, 2, 2, dtype=torch.float64, requires_grad=True)
    r = Lengths(torch.tensor([[0, 1]]), 1.0, tolerance=1e-9).residual(x)
    (g,) = torch.autograd.grad(r.sum(), x)
    assert r.item() == pytest.approx(-1)
    assert g.isfinite().all()


def test_obstacles_measure_depth():
    discs = Obstacles(double([[0.0, 0.0], [4.0, 0.0]]), double([2.0, 1.0]), tolerance=1e-9)
    path = double([[[0.0, 0.5], [3.5, 0.0], [0.0, 3.0]]])
    assert discs.residual(path).tolist() == [[1.5, 0.0, 0.0, 0.5, 0.0, 0.0]]
    assert discs.equalities is None


def test_balls_are_obstacles_in_space():
    ball = Obstacles(double([[1.0, 2.0, 2.0]]), 4.0, tolerance=1e-9)
    assert ball.residual(double([[[0.0, 0.0, 0.0]]])).tolist() == [[1.0]]
    (g,) = torch.autograd.functional.jacobian(ball.residual, double([[[0.0, 0.0, 0.0]]])).flatten(
        end_dim=-2
    )
    torch.testing.assert_close(g, double([1.0, 2.0, 2.0]) / 3)  # towards the center is deeper
