"""What all constraints share, their units, and the volume factor of their residuals."""

import math

import pytest
import torch

from feasibly.constraints import Bounds, Constraint, Energy, Equality, LevelSet, Linear, log_volume
from feasibly.errors import ConstraintError


class OnCircle(Constraint):
    """The unit circle, with the least that an author has to write."""

    def residual(self, x):
        return x.square().sum(dim=1, keepdim=True) - 1


class Pair(Constraint):
    def residual(self, x):
        return x * torch.tensor([1.0, 2.0]).to(x)


def test_the_violation_is_the_sum_of_squared_residuals():
    violation = Pair(1.0).violation(torch.tensor([[3.0, 2.0], [0.0, 0.0]]))
    assert violation.tolist() == [9.0 + 16.0, 0.0]


def test_a_sample_is_feasible_up_to_and_at_the_tolerance():
    x = torch.tensor([[0.5, 0.0], [0.25, 0.0], [0.5001, 0.0]])
    assert Pair(0.25).is_feasible(x).tolist() == [True, True, False]


def test_a_sample_that_is_not_finite_is_not_feasible():
    x = torch.tensor([[torch.nan, 0.0], [torch.inf, 0.0], [0.0, 0.0]])
    assert Pair(0.25).is_feasible(x).tolist() == [False, False, True]


def test_a_violation_can_be_differentiated():
    x = torch.tensor([[2.0, 0.0]], requires_grad=True)
    (g,) = torch.autograd.grad(OnCircle(1e-3).violation(x).sum(), x)
    assert g.tolist() == [[2 * 3.0 * 4.0, 0.0]]  # 2 r dr/dx


MEAN = torch.tensor([10.0, -5.0], dtype=torch.float64)
STD = torch.tensor([4.0, 0.5], dtype=torch.float64)


def samples(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("mean", "std"), [(MEAN, STD), (3.0, 2.0), (MEAN, 2.0)], ids=["tensors", "numbers", "mixed"]
)
def test_a_constraint_in_units_sees_physical_samples(mean, std):
    stated = LevelSet(lambda u: u[:, 0] / 4 - 1.5 + u[:, 1].sin() / 10, tolerance=0.3)
    x = samples(20, 2)
    physical, ours = x * std + mean, stated.in_units(mean, std)
    torch.testing.assert_close(ours.residual(x), stated.residual(physical))
    torch.testing.assert_close(ours.violation(x), stated.violation(physical))
    assert torch.equal(ours.is_feasible(x), stated.is_feasible(physical))
    assert 0 < ours.is_feasible(x).sum() < 20  # so that the line above says something
    assert ours.tolerance == stated.tolerance


def test_bounds_in_units_are_the_rescaled_bounds():
    x = 3 * samples(50, 2)
    lower, upper = MEAN - STD, MEAN + 2 * STD
    ours = Bounds(lower, upper, tolerance=1e-2).in_units(MEAN, STD)
    # by hand: -1 <= x <= 2, with the residual in physical units
    torch.testing.assert_close(ours.residual(x), (x - x.clamp(-1, 2)) * STD)


def test_elements_with_units_of_their_own_have_a_projection_if_the_constraint_is_linear():
    plane = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([3.0]).double(), 1e-20)
    stated = plane.in_units(0.0, torch.tensor([1.0, 2.0]))
    x = samples(5, 2)
    nearest = stated.projection(x)
    assert stated.is_feasible(nearest).all()
    # in units of the model the plane is x_1 - 4 x_2 = 3
    torch.testing.assert_close((nearest - x)[:, 1], -4 * (nearest - x)[:, 0])
    sphere = Energy((-1,), 1.0, tolerance=1e-6).in_units(0.0, torch.tensor([1.0, 2.0]))
    with pytest.raises(NotImplementedError, match="elements have different units; project with"):
        sphere.projection(x)


class Slope(Constraint):
    """A linear constraint with the least that an author has to write."""

    linear = True

    def __init__(self, tolerance, y=0.0, copies=1):
        super().__init__(tolerance)
        self.y, self.copies, self.seen = y, copies, []

    def residual(self, x):
        self.seen.append(len(x))
        r = x[:, -1:] - x[:, :1] - self.y
        return r.repeat(1, self.copies)


def test_a_constraint_that_says_it_is_linear_has_a_closed_form():
    slope, x = Slope(1e-20, y=2.0, copies=3), samples(4, 3)
    nearest = slope.projection(x)
    move = (x[:, 0] + 2.0 - x[:, 2]) / 2
    expected = x + torch.stack((-move, torch.zeros(4), move), dim=1)
    torch.testing.assert_close(nearest, expected)


def test_the_matrix_of_a_linear_constraint_is_computed_once_for_each_shape():
    slope = Slope(1e-20, copies=3)
    slope.projection(samples(4, 3))
    slope.seen.clear()
    slope.projection(samples(5, 3))
    assert slope.seen == [5]
    slope.projection(samples(5, 6))
    assert max(slope.seen) == 5
    assert len(slope.seen) > 2


def test_a_linear_constraint_with_too_many_equations_has_no_closed_form():
    with pytest.raises(
        NotImplementedError, match=r"many equations .*\(2000 for 3000 elements\).*minimizer"
    ):
        Slope(1e-20, copies=2000).projection(samples(2, 3000))


def test_a_linear_constraint_that_contradicts_itself_is_refused():
    class Torn(Slope):
        def residual(self, x):
            return super().residual(x) - torch.tensor([1.0, -1.0]).to(x)

    message = r"no sample satisfies all of its equations; .* violation is 2\."
    with pytest.raises(ConstraintError, match=message):
        Torn(0.5, copies=2).projection(samples(2, 3))
    assert Torn(2.5, copies=2).is_feasible(Torn(2.5, copies=2).projection(samples(2, 3))).all()


def test_of_a_linear_residual_it_is_the_volume_of_its_matrix():
    A = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    constraint = Linear(A, torch.zeros(3, dtype=torch.float64), tolerance=1e-6)
    found = log_volume(constraint, torch.randn(4, 7, 1, dtype=torch.float64))
    torch.testing.assert_close(found, (torch.logdet(A @ A.T) / 2).expand(4))


def test_it_is_each_sample_s_own_and_counts_how_steep_the_residual_is():
    steep = Equality(lambda x: (3 * x[:, :1]).exp() * (x.norm(dim=1, keepdim=True) - 1), 1e-6)
    angle = torch.tensor([0.0, 1.0, 2.5])
    x = torch.stack((angle.cos(), angle.sin()), dim=1)
    torch.testing.assert_close(log_volume(steep, x), 3 * x[:, 0], atol=1e-5, rtol=0)


def test_more_residuals_than_elements_have_no_volume():
    constraint = Equality(lambda x: torch.cat((x, x.sum(dim=1, keepdim=True)), dim=1), 1e-6)
    assert log_volume(constraint, torch.ones(2, 3)).tolist() == [-math.inf, -math.inf]


def test_a_sample_that_is_not_finite_has_no_volume_and_leaves_others_theirs():
    constraint = Equality(lambda x: (2 * x[:, :1]).exp(), 1e-6)
    found = log_volume(constraint, torch.tensor([[0.0, 1.0], [torch.nan, 0.0], [0.5, 0.0]]))
    assert found[1].isnan()
    torch.testing.assert_close(found[[0, 2]], torch.tensor([math.log(2), math.log(2) + 1]))
