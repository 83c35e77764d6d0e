"""`atol` bounds one residual component where `tolerance` bounds the sum of squares."""

import math

import pytest
import torch

import feasibly
from feasibly import members
from feasibly.constraints import (
    Bounds,
    Composite,
    Decoded,
    DivergenceFree,
    EachMember,
    Equality,
    Evolution,
    Inequality,
    LevelSet,
    Linear,
    Mask,
    Observation,
    heat,
    through,
)
from feasibly.minimizers import SGD
from feasibly.oracles import Gaussian
from feasibly.samplers import PPR
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled
from tests.tensors import double


def values(i, **asked):
    """Elements i of a sample are zero."""
    return Equality(lambda x: x[:, i], **asked)


X = double([[0.5, 0.5, 0.0], [0.501, 0.0, 0.0], [0.1, 0.2, -0.5], [math.nan, 0.0, 0.0]])
BOTH = slice(0, 2)


def test_each_component_counts_alone_and_the_ratio_is_that_of_the_largest():
    each, summed = values(BOTH, atol=0.5), values(BOTH, tolerance=0.25)
    assert each.tolerance == summed.tolerance == 0.25
    assert each.is_feasible(X).tolist() == [True, False, True, False]
    assert summed.is_feasible(X).tolist() == [False, False, True, False]
    torch.testing.assert_close(each.violation(X)[:3], double([0.25, 0.501**2, 0.04]))
    torch.testing.assert_close(each.ratio(X)[:3], double([1.0, 1.002, 0.4]))
    torch.testing.assert_close(summed.ratio(X)[:3], double([2**0.5, 1.002, 0.2**0.5]))
    assert each.ratio(X)[3].isnan()


def test_it_is_shown_as_it_was_asked_for():
    assert repr(values(0, atol=0.25)) == "Equality(atol=0.25)"
    assert repr(values(0, tolerance=0.25)) == "Equality(tolerance=0.25)"
    noisy = Observation(lambda x: x, double([0.0] * 3), atol=0.25, noise=[0.0, 1.0, 1.0])
    assert "atol=0.25" in repr(noisy)


def test_a_search_stops_by_the_largest_component_and_inside_of_what_was_asked():
    """Each step halves a residual of 100 ones, which has the norm 10."""
    for asked, halvings in (({"atol": 1e-2}, 7), ({"tolerance": 1e-4}, 10)):
        constraint, seen = Equality(lambda x: x, **asked), []

        def residual(x, constraint=constraint, seen=seen):
            seen.append(x)
            return constraint.residual(x), x

        start, goal = torch.ones(1, 100).double(), constraint.tolerance
        SGD(steps=20, lr=0.25)(residual, start, goal, violation=constraint.violation_of)
        assert len(seen) == halvings + 1
        assert constraint.is_feasible(seen[-1]).all()
        assert not constraint.is_feasible(seen[-2]).any()
        # the plain rule, by the sum of squares, is inside of both
        near = SGD(steps=20, lr=0.25)(residual, start, goal).x
        assert constraint.is_feasible(near).all()


def test_every_part_of_a_composite_keeps_what_was_asked_of_it():
    parts = [values(slice(0, 1), atol=0.5), values(slice(1, 3), tolerance=0.25)]
    x = double([[0.5, 0.3, 0.4], [0.5, 0.4, 0.4], [0.51, 0.0, 0.0]])
    for whole in (
        Composite(parts),
        Composite([Composite(parts[:1]), parts[1]]),
        Composite(parts, weights=[3.0, 0.1]),
        Decoded(Composite(parts), lambda z: z),
        Composite(parts).in_units(0.0, 1.0),
    ):
        assert whole.is_feasible(x).tolist() == [True, False, False]
        torch.testing.assert_close(whole.ratio(x), double([1.0, 1.28**0.5, 1.02]))


@pytest.mark.parametrize("weights", [None, [1.0, 7.0]])
def test_a_composite_whose_parts_all_bound_components_stops_by_its_largest_one(weights):
    whole = Composite([values(0, atol=0.5), values(slice(1, 3), atol=0.1)], weights)
    x = 0.6 * torch.rand((500, 3), generator=torch.Generator().manual_seed(0)).double()
    within = whole.violation_of(whole.residual(x)) <= whole.tolerance
    assert whole.is_feasible(x)[within].all()
    if weights is None:  # each part is in its own units
        assert torch.equal(within, whole.is_feasible(x))
        assert within.any()
        each = EachMember(Decoded(whole, lambda z: z), torch.zeros(1, 3))
        with members.calling([0]):
            assert torch.equal(each.is_feasible(x), within)


def test_statements_through_truths_bound_each_component_of_equalities_and_inequalities():
    bounds = Bounds(double([0.0, -1.0, -1.0]), double([0.0, 1.0, 1.0]), atol=0.1)
    truth = double([[0.3, 0.0, 0.0]])
    stated = through(bounds, truth)
    with members.calling([0]):
        moves = double([[0.1, 1.1, -1.1], [0.11, 0.0, 0.0], [0.0, 1.11, 0.0]])
        moved = torch.cat([truth[:, :1] + moves[:, :1], moves[:, 1:]], dim=1)
        assert stated.is_feasible(moved - 1e-12 * moved.sign()).tolist() == [True, False, False]


def test_of_an_observation_with_noise_it_bounds_what_is_exact():
    x = double([[0.1, 0.1, 9.0], [0.11, 0.0, 0.0]])
    for A in (Observation(lambda x: x, [0.0] * 3, atol=0.1, noise=[0.0, 0.0, 1.0]),):
        assert A.is_feasible(x).tolist() == [True, False]
        assert A.exact.is_feasible(x).tolist() == [True, False]
        assert A.noisy.is_feasible(x).all()
        torch.testing.assert_close(A.ratio(x), double([1.0, 1.1]))
    noisy = Observation(lambda x: x, [0.0] * 3, noise=1.0)
    assert not noisy.ratio(x).any()
    with pytest.raises(ValueError, match="all values have noise"):
        Observation(lambda x: x, [0.0] * 3, atol=0.1, noise=1.0)


def test_equations_on_a_grid_bound_the_value_at_each_point():
    x = torch.randn((2, 2, 4, 6), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for make in (
        lambda **asked: DivergenceFree((0.5, 0.3), **asked),
        lambda **asked: Evolution(heat(0.1, (0.5, 0.3)), 0.1, **asked),
    ):
        each, mean = make(atol=2.0), make(tolerance=4.0)
        m = each.residual(x).shape[1]
        torch.testing.assert_close(each.residual(x), math.sqrt(m) * mean.residual(x))
        torch.testing.assert_close(mean.violation(x), each.residual(x).square().mean(dim=1))


def test_a_level_set_is_bounded_in_its_own_units():
    level = LevelSet(lambda x: x[:, 0], atol=2.0)
    assert level.violation(double([[3.0]])).item() == 9.0


def test_rows_that_contradict_each_other_are_refused_if_one_misses_by_more():
    A, y = double([[1.0, 0.0], [1.0, 0.0]]), double([0.0, 1.0])  # which miss by 1/2 each
    Linear(A, y, atol=0.501)
    with pytest.raises(ValueError, match=r"no x satisfies .* atol=0.499"):
        Linear(A, y, atol=0.499)


def test_projections_through_a_denoiser_end_within_it():
    prior = Gaussian(torch.zeros(6), torch.eye(6), LogLogit())
    curve = Equality(lambda x: torch.sin(x[:, :4]) - 0.2, atol=1e-3)
    known = Mask(torch.arange(6) < 2, 0.3, atol=1e-4)
    for constraint in (curve, Composite([known, Inequality(torch.neg, atol=1e-2)])):
        found = sampled(on(PPR(steps=16), prior, constraint), 16, (6,), dtype=torch.float64)
        assert found.feasible.all()
        assert constraint.ratio(found.samples).max() <= 1
    assert (found.samples[:, :2] - 0.3).abs().max() <= 1e-4
    assert found.samples.min() >= -1e-2


def test_a_result_has_the_ratio_of_the_largest_part():
    parts = [Equality(lambda x: x[:, 0], atol=1e-3), Equality(lambda x: x[:, 1] - 0.5, 1e-8)]
    both = Composite(parts)
    prior = Gaussian(torch.zeros(3), torch.eye(3), LogLogit())
    result = feasibly.sample(prior, both, 32, (3,), monitor=False)
    torch.testing.assert_close(result.ratio, both.ratio(result.samples))
    assert (result.ratio[result.feasible] <= 1).all()
