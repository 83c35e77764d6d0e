"""Gauss-Newton steps, and the linear systems behind them."""

import math
from itertools import pairwise

import pytest
import torch

from feasibly.constraints import Linear
from feasibly.minimizers import GaussNewton
from feasibly.minimizers.gauss_newton import solved
from tests.tensors import double, normal


def undamped(steps=1, **arguments):
    return GaussNewton(steps=steps, max_distance=None, damping=0.0, **arguments)


def with_estimate(residual):
    return lambda x: (residual(x), x)


class Backward:
    """A residual that counts the vector-Jacobian products taken through it."""

    def __init__(self, residual):
        self.residual, self.products = residual, 0

    def __call__(self, x):
        inner = x
        if x.requires_grad:
            inner = x.view_as(x)
            inner.register_hook(self.count)
        return self.residual(inner), x

    def count(self, _):
        self.products += 1


KRYLOV = {"dense": 8, "krylov": 16, "rtol": 0.0}
"""Products are differences, so that twelve residuals take a few iterations more than twelve."""


@pytest.mark.parametrize("m", [1, 3, 12], ids=["one row", "dense", "krylov"])
def test_one_step_is_the_closed_form_projection_on_linear_constraints(m):
    for seed in range(3):
        linear = Linear(normal(m, 16, seed=seed), normal(m, seed=seed + 1), tolerance=1e-6)
        x = 3 * normal(4, 2, 8, seed=seed + 2)
        minimum = undamped(**KRYLOV)(with_estimate(linear.residual), x)
        torch.testing.assert_close(minimum.x, linear.projection(x), rtol=0, atol=1e-6)


def test_the_solution_of_a_nonlinear_constraint_is_nearest_to_first_order():
    def ellipse(x):
        return (x[:, 0] ** 2 / 4 + x[:, 1] ** 2 - 1)[:, None]

    angle = torch.linspace(0.3, 6, 9).double()
    point = torch.stack((2 * angle.cos(), angle.sin()), dim=1)
    normals = torch.stack((angle.cos() / 2, angle.sin()), dim=1)
    normals = normals / normals.norm(dim=1, keepdim=True)
    errors = []
    for distance in (0.1, 0.05, 0.025):
        # by construction `point` is the nearest point of the ellipse
        found = undamped(steps=8)(with_estimate(ellipse), point + distance * normals)
        assert found.value.max() < 1e-25
        errors.append((found.x - point).norm(dim=1).max().item())
    assert errors[0] < 0.1**2
    # quadratic in the distance: halving it divides the error by four
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("damping", [0.0, 2.0])
@pytest.mark.parametrize("m", [1, 3, 12], ids=["one row", "dense", "krylov"])
def test_a_step_is_the_damped_formula(m, damping):
    A, x = normal(m, 16) / 8, normal(4, 16, seed=1)

    def residual(x):
        return torch.tanh(x @ A.T) + 0.5

    # r is smooth, so that its Jacobian at each x is that of tanh times A
    r = residual(x)
    J = (1 - torch.tanh(x @ A.T) ** 2)[..., None] * A
    J_r = torch.einsum("bmd,bm->bd", J, r)
    scale = damping * J_r.square().sum(dim=1) / r.square().sum(dim=1)
    system = J @ J.mT + scale[:, None, None] * torch.eye(m)
    step = torch.einsum("bmd,bm->bd", J, torch.linalg.solve(system, r[..., None]).squeeze(-1))
    expected = x - step

    iterates = []

    def recording(x):
        iterates.append(x.detach())
        return residual(x), x

    GaussNewton(steps=1, max_distance=None, damping=damping, dense=8, krylov=30, rtol=1e-12)(
        recording, x
    )
    torch.testing.assert_close(iterates[-1], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dense", [8, 0], ids=["dense", "krylov"])
@pytest.mark.parametrize("damping", [0.0, 1e-6])
def test_dependent_rows_survive(dense, damping):
    A, x = normal(2, 6), normal(4, 6, seed=1)
    twice = torch.cat((A, A[:1], A.sum(dim=0, keepdim=True)))
    y = torch.stack((double(0.3), double(-1.0), double(0.3), double(-0.7)))
    expected = Linear(A, y[:2], tolerance=1e-6).projection(x)
    minimize = GaussNewton(
        steps=2, max_distance=None, damping=damping, dense=dense, krylov=8, rtol=1e-8
    )
    minimum = minimize(with_estimate(lambda x: x @ twice.T - y), x)
    torch.testing.assert_close(minimum.x, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dense", [8, 0], ids=["dense", "krylov"])
def test_contradictory_rows_give_the_least_squares_solution(dense):
    A, y = double([[1.0, 0.0], [1.0, 0.0]]), double([0.0, 1.0])
    minimize = GaussNewton(steps=4, max_distance=None, dense=dense)
    minimum = minimize(with_estimate(lambda x: x @ A.T - y), double([[4.0, 2.0]]))
    torch.testing.assert_close(minimum.x, double([[0.5, 2.0]]), rtol=0, atol=1e-4)
    torch.testing.assert_close(minimum.value, double([0.5]), rtol=0, atol=1e-6)


def test_a_row_without_a_gradient_leaves_the_others_to_be_solved():
    def residual(x):
        return torch.stack((x[:, 0] - 1, 0 * x[:, 1] + 3), dim=1)

    minimum = GaussNewton(steps=2, max_distance=None)(
        with_estimate(residual), double([[4.0, 2.0]])
    )
    torch.testing.assert_close(minimum.x, double([[1.0, 2.0]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("m", "products"), [(1, 1), (3, 3), (32, 32)], ids=["one row", "dense", "as dense as it gets"]
)
def test_an_iteration_costs_one_vector_jacobian_product_a_row(m, products):
    A = normal(m, 64)
    residual = Backward(lambda x: (x @ A.T).square() + 1)  # which has no zero
    GaussNewton(steps=3)(residual, normal(3, 64))
    assert residual.products == 3 * products


def test_a_krylov_iteration_costs_two_products_and_one_each_conjugate_gradient():
    A = normal(12, 16)
    residual = Backward(lambda x: (x @ A.T).square() + 1)
    GaussNewton(steps=3, dense=8, krylov=5, rtol=0.0)(residual, normal(2, 16))
    assert residual.products == 3 * (1 + 5 + 1)


def test_convergence_on_a_circle_is_quadratic():
    errors = []

    def circle(x):
        errors.append(x.detach().norm(dim=1).item() - 1)
        return (x.square().sum(dim=1) - 1)[:, None], x

    undamped(steps=6)(circle, 3 * double([[0.6, 0.8]]))
    for error, following in pairwise(errors):
        # Newton on radius^2 - 1 is Heron's iteration, with the error e^2 / 2 (1 + e)
        assert following == pytest.approx(error**2 / (2 * (1 + error)), abs=1e-14)
    assert abs(errors[5]) < 1e-9
    assert abs(errors[6]) < 1e-15


def test_a_member_can_leave_a_local_minimum():
    # |r| has a local minimum of 0.91 at 0.816, from which forced descent could not escape
    def residual(x):
        return x**3 - 2 * x + 2

    x = double([[0.85]])
    minimum = undamped(steps=60)(with_estimate(residual), x)
    assert minimum.value.item() < 1e-20
    assert minimum.x.item() == pytest.approx(-1.7692923542386314)


def test_single_precision_solves_an_ill_conditioned_system():
    # The Gram matrix has condition 1e6, which single precision could not factorise.
    A = torch.diag(torch.tensor([1.0, 1e-1, 1e-3])) @ torch.linalg.qr(normal(8, 3)).Q.T.float()
    linear = Linear(A, torch.tensor([1.0, 0.1, 1e-3]), tolerance=1e-6)
    x = normal(4, 8, seed=1).float()
    minimum = undamped(steps=2)(with_estimate(linear.residual), x)
    assert minimum.x.dtype == torch.float32
    torch.testing.assert_close(minimum.x, linear.projection(x), rtol=0, atol=1e-3)


def test_the_default_bound_on_the_distance_is_one_and_a_half_units():
    def residual(x):
        return (x[:, 0] - 100)[:, None]

    minimum = GaussNewton()(with_estimate(residual), torch.zeros(1, 4).double(), unit=2.0)
    assert minimum.x.norm().item() == pytest.approx(3.0)
    assert math.isclose(minimum.x[0, 0].item(), 3.0)


def systems(m, rank):
    J = torch.randn(5, rank, 3 * m, generator=torch.Generator().manual_seed(m)).double()
    mix = torch.randn(m, rank, generator=torch.Generator().manual_seed(1)).double()
    gram = (mix @ J) @ (mix @ J).mT
    return gram, gram.sum(dim=2)


@pytest.mark.parametrize("m", [4, 32])
@pytest.mark.parametrize("short", [0, 3])
def test_systems_are_solved_as_by_a_pseudo_inverse(m, short):
    gram, r = systems(m, m - short)
    damping = torch.full((5,), 0.3).double()
    whole = gram + 0.3 * torch.eye(m).double()
    for given, lambdas in ((gram, 0 * damping), (whole, damping)):
        found = solved(gram, lambdas, r, rounding=0.0)
        exact = (torch.linalg.pinv(given, hermitian=True) @ r[..., None])[..., 0]
        torch.testing.assert_close(found, exact)


def test_a_singular_system_is_solved_by_least_squares_and_disturbs_no_other():
    gram, r = systems(32, 32)
    gram[2, -1], gram[2, :, -1], r[2, -1] = 0.0, 0.0, 0.0  # a residual that nothing changes
    v = solved(gram, torch.zeros(5).double(), r, rounding=0.0)
    assert v.isfinite().all()
    torch.testing.assert_close((gram @ v[..., None])[..., 0], r)
    assert v[2, -1] == 0
    for i in (0, 1, 3, 4):
        torch.testing.assert_close(v[i], torch.ones_like(v[i]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("repeats", [1, 8])
def test_what_rounding_leaves_of_dependent_rows_moves_nothing(repeats):
    """A value and its square, by sensors that disagree: the rows are parallel but for rounding,
    and what cannot vanish of the residual would move samples by far."""
    row = torch.tensor([0.3, -0.7, 0.1, 0.9]) / 1.3

    def residual(x):
        v = (x * row).sum(dim=1)
        return torch.stack([v - 0.8, v**2 - 0.3] * repeats, dim=1)

    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    moved = GaussNewton(steps=50, max_distance=None)(with_estimate(residual), x).x - x
    across = moved - (moved @ row)[:, None] * row / row.square().sum()
    assert moved.norm(dim=1).max() > 1
    assert across.norm(dim=1).max() < 1e-3


@pytest.mark.parametrize("units", [[1.0, 1.0, 1.0], [1e6, 1.0, 1e-3], [1e-4, 1e4, 1.0]], ids=str)
def test_units_of_residuals_change_no_step(units):
    """Neither in single precision, nor where one depends on others."""

    def residual(x):
        gaps = torch.stack([x[:, 0] - 1, x[:, 1] - 2, x[:, 0] + x[:, 1] - 3], dim=1)
        return gaps * torch.tensor(units)

    move = GaussNewton(steps=4, max_distance=None)
    found = move(with_estimate(residual), torch.zeros(1, 3))
    torch.testing.assert_close(found.x, torch.tensor([[1.0, 2.0, 0.0]]), rtol=0, atol=1e-4)
