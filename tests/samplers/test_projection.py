"""Projections without the network, in closed form or by a minimizer."""

from dataclasses import dataclass

import pytest
import torch

from feasibly.constraints import Composite, Energy, Equality, Integral, Linear, Mask
from feasibly.minimizers import LBFGS, GaussNewton, Minimizer
from feasibly.oracles import Gaussian
from feasibly.samplers import HDC
from feasibly.samplers.projection import closed_form, project
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled
from tests.samplers.conftest import normal

A = torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64)
PLANE = Linear(A, [0.5], tolerance=1e-12)
SPHERE = Energy((-1,), 0.5, tolerance=1e-12)
CURVED = Equality(lambda x: x.square().sum(dim=1) - 1, tolerance=1e-12)


@dataclass(frozen=True)
class Forbidden(Minimizer):
    """A minimizer that is never to be asked."""

    def search(self, search, cap, state):
        raise AssertionError("the minimizer was asked")


@pytest.mark.parametrize(
    "constraint",
    [PLANE, SPHERE, Composite([PLANE, Integral((-1,), 0.0, 1e-12)])],
    ids=["linear", "sphere", "several"],
)
def test_a_closed_form_takes_the_place_of_a_search(constraint):
    x = normal(4, 3)
    assert torch.equal(project(constraint, x, Forbidden()), constraint.projection(x))


def test_without_a_closed_form_the_minimizer_searches():
    x = normal(4, 3)
    assert closed_form(CURVED, x) is None
    with pytest.raises(AssertionError, match="was asked"):
        project(CURVED, x, Forbidden())
    assert CURVED.is_feasible(project(CURVED, x, LBFGS(32), 1e-13)).all()


def test_with_a_proximity_the_minimizer_searches():
    x = normal(4, 3)
    with pytest.raises(AssertionError, match="was asked"):
        project(PLANE, x, Forbidden(), proximity=1.0)
    # argmin |A z - y|^2 + |z - x|^2 goes a share |A|^2 / (1 + |A|^2) of the way to the plane
    found = project(PLANE, x, GaussNewton(4, max_distance=None), proximity=1.0)
    torch.testing.assert_close(found, x + 6 / 7 * (PLANE.projection(x) - x), rtol=0, atol=1e-6)


def test_one_iteration_is_a_step_and_no_projection_unless_the_constraint_is_linear():
    x, step = normal(4, 3), GaussNewton(1, max_distance=None, damping=0.0)
    x = 4 * x / x.norm(dim=1, keepdim=True)  # from outside, where a step cannot go too far
    moved = project(SPHERE, x, step)
    r = SPHERE.residual(x)
    torch.testing.assert_close(moved, x - r * x / 3 / (x / 3).square().sum(dim=1, keepdim=True))
    torch.testing.assert_close(project(PLANE, x, step), PLANE.projection(x))


def test_a_sample_within_the_threshold_stays_where_it_is():
    x = PLANE.projection(normal(4, 3)) + torch.tensor([[0.0], [1e-5], [1e-5], [1e-2]]).double()
    found = project(PLANE, x, Forbidden(), threshold=1e-8)
    assert torch.equal(found[:3], x[:3])
    torch.testing.assert_close(found[3], PLANE.projection(x)[3])


def test_a_sample_without_a_nearest_point_stays_where_it_is():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    found = project(SPHERE, x, Forbidden())
    assert found[0].tolist() == [0.0, 0.0]
    torch.testing.assert_close(found[1], x[1] / 5 * 2**0.5)


def test_hard_data_consistency_does_not_search_on_a_linear_constraint():
    prior = Gaussian(torch.zeros(3), torch.eye(3), LogLogit())
    known = Mask([True, False, False], 0.7, tolerance=1e-12)
    for constraint in (Linear(A, [0.5], tolerance=1e-8), Composite([known])):
        result = sampled(on(HDC(steps=8, minimize=Forbidden()), prior, constraint), 8, (3,))
        assert result.feasible.all()
