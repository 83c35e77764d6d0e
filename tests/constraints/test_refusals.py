"""What no constraint takes: values that are none, axes in a wrong order, values of a batch."""

import math

import numpy as np
import pytest
import torch

from feasibly import Bounds, Inequality
from feasibly.constraints import (
    ClosedLoop,
    DivergenceFree,
    Energy,
    Histogram,
    Integral,
    Lengths,
    Mask,
    Neumann,
    Obstacles,
    Quantiles,
    Spectrum,
    burgers,
    heat,
    kuramoto_sivashinsky,
    vorticity,
)
from feasibly.constraints.operators import derivative
from feasibly.errors import ConstraintError

NAN = torch.tensor([0.5, math.nan])
X = torch.arange(24.0).reshape(2, 3, 4)
ONE = torch.arange(3.0)
HALF = torch.tensor([0.5])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bounds(math.nan, 1.0, 1e-6),
        lambda: Integral((-1,), math.nan, 1e-6),
        lambda: Integral((-1,), 1.0, 1e-6, weights=NAN),
        lambda: Energy((-1,), math.inf, 1e-6),
        lambda: Neumann(-1, 0.1, math.nan, 1e-6),
        lambda: Histogram(NAN, 1e-6),
        lambda: Quantiles(NAN, torch.tensor([0.0, 1.0]), 1e-6),
        lambda: Quantiles(torch.tensor([0.0, 1.0]), NAN, 1e-6),
        lambda: vorticity(1.0, (0.1, 0.1), forcing=math.nan),
    ],
)
def test_what_is_not_finite_is_refused(make):
    with pytest.raises(ValueError, match=r"finite|not a number|not .* number"):
        make()


def test_lists_and_arrays_are_taken_for_tensors():
    x, square = X[:, 0, :2], X[:, :, :2]
    pairs = [
        (Bounds([0.0, 1.0], [1.0, 2.0], 1e-6), Bounds(ONE[:2], ONE[:2] + 1, 1e-6), x),
        (Histogram([3.0, 1.0], 1e-6), Histogram(torch.tensor([3.0, 1.0]), 1e-6), x),
        (Quantiles([0.5], [0.1], 1e-6), Quantiles(HALF, torch.tensor([0.1]), 1e-6), x),
        (Mask([True, False], [2.0], 1e-6), Mask(ONE[:2] < 1, torch.tensor([2.0]), 1e-6), x),
        (Spectrum([2.0], 1, 1e-6), Spectrum(torch.tensor([2.0]), 1, 1e-6), x),
        (Integral((-1,), 1.0, 1e-6, [1.0, 2.0]), Integral((-1,), 1.0, 1e-6, ONE[:2] + 1), x),
        (Lengths([[0, 1]], [2.0], 1e-6), Lengths(torch.tensor([[0, 1]]), 2.0, 1e-6), square),
        (Obstacles([[0.0, 1.0]], [2.0], 1e-6), Obstacles(ONE[None, :2], 2.0, 1e-6), square),
        (Mask.initial([[0.0, 1.0]], 3, 1e-6), Mask.initial(ONE[None, :2], 3, 1e-6), square),
    ]
    mean, std = [1.0, 2.0], np.array([2.0, 3.0])
    for of_lists, of_tensors, x in pairs:
        expected = of_tensors.residual(x)
        torch.testing.assert_close(of_lists.residual(x), expected, msg=repr(of_lists))
        u = x * torch.tensor(std).to(x) + torch.tensor(mean)
        units = of_lists.in_units(mean, std).residual(x)
        torch.testing.assert_close(units, of_tensors.residual(u), msg=repr(of_lists))


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda h: Neumann(-1, h, 0.0, 1e-6),
        lambda h: heat(1.0, (h,)),
        lambda h: burgers(1.0, h),
        lambda h: kuramoto_sivashinsky(h),
        lambda h: vorticity(1.0, (0.1, h)),
        lambda h: DivergenceFree((0.1, h), 1e-6),
        lambda h: derivative(X, -1, h),
    ],
)
def test_distances_that_are_none_are_refused(make, spacing):
    with pytest.raises(ValueError, match=r"spacing=.*positive"):
        make(spacing)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: heat(1.0, (0.1,), s),
        lambda s: burgers(1.0, 0.1, s),
        lambda s: kuramoto_sivashinsky(0.1, s),
        lambda s: DivergenceFree((0.1, 0.1), 1e-6, s),
        lambda s: derivative(X, -1, 0.1, scheme=s),
    ],
)
def test_a_misspelt_scheme_is_refused(make):
    with pytest.raises(ValueError, match="'upwind'"):
        make("upwind")


@pytest.mark.parametrize("kind", [Integral, Energy])
@pytest.mark.parametrize("dims", [(-1, -2), (-1, -1), (0,), ()])
def test_axes_in_another_order_are_refused(kind, dims):
    with pytest.raises(ValueError, match="increasing order"):
        kind(dims, 1.0, 1e-6)


@pytest.mark.parametrize("kind", [Integral, Energy])
def test_what_is_conserved_needs_an_axis(kind):
    with pytest.raises(ConstraintError, match="nothing is left to be conserved"):
        kind((-2, -1), None, 1e-6).residual(X)


@pytest.mark.parametrize(
    "constraint",
    [
        Integral((-1,), torch.zeros(2, 3), 1e-6),
        Energy((-2, -1), torch.zeros(2), 1e-6),
        Neumann(-1, 0.1, torch.zeros(2, 2, 3), 1e-6),
        Bounds(torch.zeros(2, 3, 4), 1.0, 1e-6),
    ],
    ids=repr,
)
def test_values_of_a_batch_are_refused(constraint):
    with pytest.raises(ConstraintError, match="without a batch axis"):
        constraint.residual(X)


@pytest.mark.parametrize("g", [lambda x: x.sum(dim=0), lambda x: x.sum()])
def test_an_inequality_that_mixes_samples_is_refused(g):
    with pytest.raises(ConstraintError, match=r"Inequality\(g=...\) returned shape"):
        Inequality(g, 1e-6).is_feasible(X)


@pytest.mark.parametrize(
    "constraint",
    [
        Integral((-2, -1), 0.5, 1e-6),
        Energy((-2,), 0.5, 1e-6),
        Neumann(-2, 0.1, 0.0, 1e-6),
        Spectrum(torch.ones(1), 2, 1e-6),
        ClosedLoop(1e-6),
    ],
    ids=repr,
)
def test_axes_that_samples_do_not_have_are_refused(constraint):
    with pytest.raises(ConstraintError, match=r"needs samples with at least 2 axes, got .*5"):
        constraint.residual(torch.zeros(4, 5))


def test_geometry_that_does_not_fit_is_refused():
    with pytest.raises(ConstraintError, match="name point 5"):
        Lengths(torch.tensor([[0, 5]]), 1.0, 1e-6).residual(X)
    with pytest.raises(ConstraintError, match="2 coordinates, but points have 4"):
        Obstacles(torch.zeros(1, 2), 1.0, 1e-6).residual(X)
