import pytest
import torch

from feasibly.constraints import ClosedLoop, Lengths, Obstacles


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def test_a_loop_is_closed_where_its_ends_meet():
    loop = ClosedLoop(tolerance=1e-12)
    path = double([[[0.0, 0.0], [5.0, 5.0], [2.0, 4.0]]])
    assert loop.residual(path).tolist() == [[2.0, 4.0]]
    # the shortest way: both ends go half of it
    assert loop.projection(path).tolist() == [[[1.0, 2.0], [5.0, 5.0], [1.0, 2.0]]]


def test_a_path_of_one_point_is_a_loop():
    x = double([[[1.0, 2.0]]])
    assert ClosedLoop(tolerance=1e-12).projection(x).tolist() == x.tolist()


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lengths(torch.tensor([[0, 0]]), 1.0, 1e-6), "pairs of different points"),
        (lambda: Lengths(torch.tensor([[0, 1]]), 0.0, 1e-6), "must be positive"),
        (lambda: Obstacles(torch.zeros(2), 1.0, 1e-6), "centers of shape"),
        (lambda: Obstacles(torch.zeros(1, 2), -1.0, 1e-6), "positive radii"),
    ],
    ids=["pair", "length", "centers", "radius"],
)
def test_what_is_no_geometry_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
