r"""Proximal maps: :math:`\arg\min_z \|r(z)\|^2 + p \|z - x\|^2`."""

import pytest
import torch

from feasibly.minimizers import LBFGS, GaussNewton
from tests.tensors import normal

MINIMIZERS = {
    "gauss-newton": GaussNewton(steps=2, max_distance=None, damping=0.0),
    "gauss-newton by krylov": GaussNewton(
        steps=2, max_distance=None, damping=0.0, dense=0, krylov=12, rtol=1e-13
    ),
    "l-bfgs": LBFGS(steps=80, max_step=None),
}
every_minimizer = pytest.mark.parametrize("minimize", MINIMIZERS.values(), ids=MINIMIZERS)


def linear(A, y):
    return lambda z: (z.flatten(start_dim=1) @ A.T - y, z)


def proximal_map(A, y, x, p):
    """The closed form for A z = y."""
    gram = A @ A.T + p * torch.eye(len(A), dtype=torch.float64)
    return x - (torch.linalg.solve(gram, (x @ A.T - y).T).T) @ A


@every_minimizer
def test_linear_residuals_have_the_closed_form(minimize):
    for m, p in ((1, 1.0), (6, 1e-2), (6, 30.0)):
        A, y, x = normal(m, 12) / 2, normal(m, seed=1), normal(5, 3, 4, seed=2)
        found = minimize(linear(A, y), x, proximity=p)
        v = x.flatten(start_dim=1)
        expected = proximal_map(A, y, v, p)
        torch.testing.assert_close(found.x, expected.reshape(x.shape), rtol=0, atol=1e-6)
        torch.testing.assert_close(found.x_0, found.x)
        value = (expected @ A.T - y).square().sum(dim=1) + p * (expected - v).square().sum(dim=1)
        torch.testing.assert_close(found.value, value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("m", [1, 3, 12], ids=["one row", "dense", "krylov"])
def test_further_iterations_stay_at_the_proximal_map(m):
    """The residual is linearised about the iterate, the distance taken from the start: a second
    step that forgot where it started would go on to the constraint."""
    A, y, x = normal(m, 16) / 4, normal(m, seed=1), normal(4, 16, seed=2)
    iterates = []

    def recording(z):
        if z.requires_grad:
            iterates.append(z.detach().clone())
        return linear(A, y)(z)

    minimize = GaussNewton(steps=4, max_distance=None, damping=0.0, dense=8, krylov=20, rtol=1e-12)
    minimize(recording, x, proximity=0.7)
    assert len(iterates) == 4
    for iterate in iterates[1:]:
        torch.testing.assert_close(iterate, proximal_map(A, y, x, 0.7), rtol=0, atol=1e-9)


@every_minimizer
def test_members_that_leave_the_search_do_not_shift_the_starts_of_the_others(minimize):
    """One member reaches the threshold in the search, before the others."""
    A, y = normal(3, 10) / 2, normal(3, seed=1)
    x = normal(4, 10, seed=2)
    x[1] = x[1] - (x[1] @ A.T - y) @ torch.linalg.pinv(A).T + 1e-4 * normal(10, seed=3)
    value = (x[1] @ A.T - y).square().sum().item()
    together = minimize(linear(A, y), x, threshold=value / 2, proximity=0.01)
    others = [0, 2, 3]
    expected = proximal_map(A, y, x, 0.01)[others]
    torch.testing.assert_close(together.x[others], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("m", "dense"), [(1, 8), (4, 8), (4, 0)], ids=["row", "dense", "krylov"])
def test_gauss_newton_ends_at_a_stationary_point_of_a_nonlinear_problem(m, dense):
    A, x, p = normal(m, 6) / 2, normal(5, 6, seed=1), 0.3

    def residual(z):
        v = z @ A.T
        return v + torch.sin(v) / 4 - 0.5, z

    minimize = GaussNewton(
        steps=20, max_distance=None, damping=0.0, dense=dense, krylov=12, rtol=1e-13
    )
    found = minimize(residual, x, proximity=p)
    z = found.x.requires_grad_()
    value = residual(z)[0].square().sum(dim=1) + p * (z - x).square().sum(dim=1)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    # the objective is kept to rounding, 1e-16, so its gradient to the root of that
    assert gradient.abs().max() < 1e-6
    torch.testing.assert_close(found.value, value.detach())
    assert ((found.x - x).norm(dim=1) > 1e-3).all()


@every_minimizer
def test_the_threshold_is_one_for_the_whole_objective(minimize):
    """A member on the constraint but far from its start has not met it."""
    A, y, x = normal(2, 10) / 2, normal(2, seed=1), normal(3, 10, seed=2)
    least = minimize(linear(A, y), x, proximity=2.0).value
    expected = proximal_map(A, y, x, 2.0)
    found = minimize(linear(A, y), x, threshold=0.5 * least.min().item(), proximity=2.0)
    torch.testing.assert_close(found.x, expected, rtol=0, atol=1e-6)
