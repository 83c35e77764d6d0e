import pytest
import torch

from feasibly.constraints import Bounds, Constraint, Energy, LevelSet, Linear
from feasibly.errors import ConstraintError


class OnCircle(Constraint):
    """The unit circle, with the least that an author has to write."""

    def residual(self, x):
        return x.square().sum(dim=1, keepdim=True) - 1


class Pair(Constraint):
    def residual(self, x):
        return x * torch.tensor([1.0, 2.0]).to(x)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")], ids=str)
def test_a_tolerance_that_is_not_positive_is_refused(tolerance):
    with pytest.raises(ValueError, match=r"OnCircle\(tolerance=\.\.\.\) must be positive, got"):
        OnCircle(tolerance)


def test_the_violation_is_the_sum_of_squared_residuals():
    violation = Pair(1.0).violation(torch.tensor([[3.0, 2.0], [0.0, 0.0]]))
    assert violation.tolist() == [9.0 + 16.0, 0.0]


def test_a_sample_is_feasible_up_to_and_at_the_tolerance():
    x = torch.tensor([[0.5, 0.0], [0.25, 0.0], [0.5001, 0.0]])
    assert Pair(0.25).is_feasible(x).tolist() == [True, True, False]


def test_a_sample_that_is_not_finite_is_not_feasible():
    x = torch.tensor([[torch.nan, 0.0], [torch.inf, 0.0], [0.0, 0.0]])
    assert Pair(0.25).is_feasible(x).tolist() == [False, False, True]


def test_assessing_builds_no_graph():
    c, feasible = OnCircle(1e-3).assess(torch.ones(2, 2, requires_grad=True))
    assert not c.requires_grad
    assert feasible.dtype == torch.bool


def test_a_violation_can_be_differentiated():
    x = torch.tensor([[2.0, 0.0]], requires_grad=True)
    (g,) = torch.autograd.grad(OnCircle(1e-3).violation(x).sum(), x)
    assert g.tolist() == [[2 * 3.0 * 4.0, 0.0]]  # 2 r dr/dx


def test_a_constraint_without_a_closed_form_says_what_to_do_instead():
    with pytest.raises(NotImplementedError, match=r"OnCircle has no .*; project with a minimizer"):
        OnCircle(1e-3).projection(torch.ones(1, 2))


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


def test_the_gradient_in_units_follows_the_chain_rule():
    x = samples(3, 2).requires_grad_()
    ours = OnCircle(1e-3).in_units(MEAN, STD)
    (g,) = torch.autograd.grad(ours.residual(x).sum(), x)
    torch.testing.assert_close(g, 2 * (x.detach() * STD + MEAN) * STD)


def test_units_follow_the_dtype_of_the_samples():
    ours = OnCircle(1e-3).in_units(MEAN, STD)
    assert ours.residual(samples(3, 2).float()).dtype == torch.float32


@pytest.mark.parametrize("std", [0.0, -1.0, torch.tensor([1.0, 0.0])], ids=str)
def test_a_standard_deviation_that_is_not_positive_is_refused(std):
    with pytest.raises(ValueError, match=r"in_units\(std=\.\.\.\) must be positive"):
        OnCircle(1e-3).in_units(0.0, std)


def test_repr_names_the_constraint_and_its_units():
    assert repr(OnCircle(1e-3)) == "OnCircle(tolerance=0.001)"
    assert repr(OnCircle(1e-3).in_units(0.0, 1.0)) == "OnCircle(tolerance=0.001) in physical units"


def test_a_projection_survives_a_change_of_units():
    plane = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([3.0]).double(), 1e-12)
    stated = plane.in_units(1.5, 4.0)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nearest = stated.projection(x)
    assert stated.is_feasible(nearest).all()
    # the shortest way to a plane is along its normal
    move = nearest - x
    torch.testing.assert_close(move[:, 1], -2 * move[:, 0])


def test_elements_with_units_of_their_own_have_a_projection_if_the_constraint_is_linear():
    plane = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([3.0]).double(), 1e-20)
    stated = plane.in_units(0.0, torch.tensor([1.0, 2.0]))
    x = samples(5, 2)
    nearest = stated.projection(x)
    assert stated.is_feasible(nearest).all()
    # in units of the model the plane is x_1 - 4 x_2 = 3
    torch.testing.assert_close((nearest - x)[:, 1], -4 * (nearest - x)[:, 0])
    sphere = Energy((-1,), 1.0, tolerance=1e-6).in_units(0.0, torch.tensor([1.0, 2.0]))
    with pytest.raises(NotImplementedError, match="elements differ in their units; project with"):
        sphere.projection(x)


def test_a_standard_deviation_in_double_precision_leaves_samples_their_type():
    stated = Bounds(-1.0, 1.0, 1e-3).in_units([0.0], torch.tensor([2.0], dtype=torch.float64))
    assert stated.projection(samples(3, 2).float()).dtype == torch.float32


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
    with pytest.raises(NotImplementedError, match=r"2000 equations for 3000 elements.*minimizer"):
        Slope(1e-20, copies=2000).projection(samples(2, 3000))


def test_a_linear_constraint_that_contradicts_itself_is_refused():
    class Torn(Slope):
        def residual(self, x):
            return super().residual(x) - torch.tensor([1.0, -1.0]).to(x)

    message = r"no sample satisfies all its equations; .* violation is 2\."
    with pytest.raises(ConstraintError, match=message):
        Torn(0.5, copies=2).projection(samples(2, 3))
    assert Torn(2.5, copies=2).is_feasible(Torn(2.5, copies=2).projection(samples(2, 3))).all()
