import pytest
import torch

from feasibly.checks.inputs import check_constraint
from feasibly.constraints import Equality, Scalar
from feasibly.errors import ConstraintError


def double(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 4)], ids=str)
def test_an_equality_flattens_its_function(shape):
    values = torch.arange(5 * max(1, torch.Size(shape).numel())).double().reshape(5, *shape)
    r = Equality(lambda x: values * x[:1, :1].sum(), tolerance=1e-3).residual(torch.ones(5, 2))
    assert torch.equal(r, values.reshape(5, -1))


def test_the_tolerance_of_an_equality_is_on_the_sum_of_squares():
    constraint = Equality(lambda x: x - 1, tolerance=0.02 + 1e-12)
    assert constraint.is_feasible(double([[1.1, 1.1], [1.1, 1.11]])).tolist() == [True, False]


def test_the_violation_of_a_scalar_is_its_function():
    constraint = Scalar(lambda x: x.square().sum(dim=1), tolerance=1.0)
    x = double([[3.0, 4.0], [0.6, 0.0]])
    torch.testing.assert_close(constraint.violation(x), double([25.0, 0.36]))
    torch.testing.assert_close(constraint.residual(x), double([[5.0], [0.6]]))
    assert constraint.is_feasible(x).tolist() == [False, True]


def test_a_newton_step_on_the_residual_of_a_scalar_is_polyak_on_its_violation():
    x = double([[1.5, -0.5]]).requires_grad_()

    def c(x):
        return (x[:, 0] ** 2 + 3 * x[:, 1] ** 2 - 1) ** 2

    (g_c,) = torch.autograd.grad(c(x).sum(), x)
    r = Scalar(c, tolerance=1e-3).residual(x)
    (g_r,) = torch.autograd.grad(r.sum(), x)
    newton = r.detach() * g_r / g_r.square().sum()
    torch.testing.assert_close(newton, 2 * c(x).detach() * g_c / g_c.square().sum())


def test_the_gradient_of_a_scalar_at_an_exact_solution_is_zero():
    x = torch.zeros(2, 3).double().requires_grad_()
    r = Scalar(lambda x: x.square().sum(dim=1), tolerance=1e-3).residual(x)
    assert r.max() < 1e-100
    (g,) = torch.autograd.grad(r.sum(), x)
    assert torch.equal(g, torch.zeros(2, 3).double())


def test_a_negative_violation_within_rounding_counts_as_zero():
    constraint = Scalar(lambda x: x[:, 0], tolerance=1e-3)
    x = torch.tensor([[-1e-5], [4.0]], dtype=torch.float64, requires_grad=True)
    r = constraint.residual(x)
    torch.testing.assert_close(r[:, 0], torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert constraint.is_feasible(x).tolist() == [True, False]
    (g,) = torch.autograd.grad(r.sum(), x)
    assert g.tolist() == [[0.0], [0.25]]


def test_a_negative_violation_spoils_its_own_sample_only():
    constraint = Scalar(lambda x: x[:, 0], tolerance=1e-3)
    r = constraint.residual(torch.tensor([[-0.25], [4.0]]))
    assert r[:, 0].isnan().tolist() == [True, False]
    assert not constraint.is_feasible(torch.tensor([[-0.25]])).any()


def test_a_violation_that_is_negative_is_refused_before_sampling():
    constraint = Scalar(lambda x: x[:, 0], tolerance=1e-3)
    with pytest.raises(ConstraintError, match="without negative values, if it is a Scalar"):
        check_constraint(constraint, torch.tensor([[-0.25], [4.0]]))
