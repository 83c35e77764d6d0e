"""What no constraint takes: values that are none, axes in a wrong order, values of a batch."""

import math

import numpy as np
import pytest
import torch

from feasibly import (
    Bounds,
    Composite,
    EachMember,
    Equality,
    Inequality,
    Linear,
    Observation,
    members,
)
from feasibly.checks.inputs import check_constraint
from feasibly.constraints import (
    BlackBox,
    ClosedLoop,
    Decoded,
    DivergenceFree,
    Energy,
    Evolution,
    FrameDecoder,
    Histogram,
    Integral,
    Lengths,
    LevelSet,
    Mask,
    Neumann,
    Obstacles,
    Quantiles,
    Scalar,
    Spectrum,
    burgers,
    heat,
    kuramoto_sivashinsky,
    vorticity,
)
from feasibly.constraints.operators import derivative

NAN = torch.tensor([0.5, math.nan])
TRUE = torch.ones(2, dtype=torch.bool)
WAVES = torch.fft.rfft(torch.eye(6, dtype=torch.float64), dim=0)[1:3]
LINE = Linear([[1.0, 2.0]], [1.0], 1e-6)
BOTH = Bounds([0.5, -1.0], [0.5, 1.0], 1e-6)
ROW = torch.zeros(1)
FREE = (0.1, 0.1)


def waves(x):
    return torch.fft.rfft(x)[:, 1:3]


def frames(indices, channels=None):
    return FrameDecoder(lambda z: z, indices, channels)


MADE = {
    "finite|not a number|not .* number": [
        lambda: Bounds(math.nan, 1.0, 1e-6),
        lambda: Integral((-1,), math.nan, 1e-6),
        lambda: Integral((-1,), 1.0, 1e-6, weights=NAN),
        lambda: Energy((-1,), math.inf, 1e-6),
        lambda: Neumann(-1, 0.1, math.nan, 1e-6),
        lambda: Histogram(NAN, 1e-6),
        lambda: Quantiles(NAN, torch.tensor([0.0, 1.0]), 1e-6),
        lambda: Quantiles(torch.tensor([0.0, 1.0]), NAN, 1e-6),
        lambda: vorticity(1.0, FREE, forcing=math.nan),
        lambda: Mask(TRUE, math.nan, 1e-6),
        lambda: Observation(lambda x: x, NAN, tolerance=1.0),
        lambda: Linear([[math.nan, 2.0]], [1.0], 1e-6),
    ],
    "must be numbers": [
        lambda: Linear([[1.0, 2.0], [3.0]], [1.0, 2.0], 1e-6),
        lambda: Linear([[1.0, 2.0]], None, 1e-6),
        lambda: Linear([["a", "b"]], [1.0], 1e-6),
        lambda: BlackBox(print, 1e-6).residual(ROW[None]),
    ],
    r"Linear needs A of shape \(m, D\)": [
        lambda: Linear(torch.zeros(3), torch.zeros(3), 1e-6),
        lambda: Linear(torch.zeros(2, 3), torch.zeros(3), 1e-6),
        lambda: Linear(torch.zeros(2, 3), torch.zeros(2, 1), 1e-6),
    ],
    "must be one of": [
        lambda: heat(1.0, (0.1,), "upwind"),
        lambda: burgers(1.0, 0.1, "upwind"),
        lambda: kuramoto_sivashinsky(0.1, "upwind"),
        lambda: DivergenceFree(FREE, 1e-6, "upwind"),
        lambda: derivative(ROW, -1, 0.1, scheme="upwind"),
    ],
    "increasing order": [
        lambda: Integral((-1, -2), 1.0, 1e-6),
        lambda: Energy((-1, -1), 1.0, 1e-6),
        lambda: Integral((0,), 1.0, 1e-6),
        lambda: Energy((), 1.0, 1e-6),
    ],
    "booleans": [
        lambda: Mask(torch.ones(2), 0.0, 1e-6),
        lambda: Mask(torch.zeros(2, dtype=torch.bool), 0.0, 1e-6),
    ],
    "values where the mask is true|the mask is true, or": [
        lambda: Mask(torch.ones(3, 4, dtype=torch.bool), torch.zeros(3), 1e-9),
        lambda: Mask(torch.ones(3, 4, dtype=torch.bool), torch.zeros(1, 4), 1e-9),
        lambda: Mask(torch.ones(3, 4, dtype=torch.bool), torch.zeros(2, 3, 4), 1e-9),
    ],
    "positive": [
        lambda: Lengths([[0, 1]], 0.0, 1e-6),
        lambda: Obstacles(torch.zeros(1, 2), -1.0, 1e-6),
        lambda: Spectrum([1.0, 0.0], 1, 1e-6),
        lambda: Evolution(torch.sin, 0.0, 1e-6),
        lambda: Evolution(torch.sin, 0.1, 1e-6, theta=1.5),
        lambda: BlackBox(torch.sin, 1e-6, step=0.0),
        lambda: Composite([LINE, LINE], [1.0]),
        lambda: Composite([LINE, LINE], [1.0, 0.0]),
        lambda: Composite([LINE, LINE], [1.0, -2.0]),
    ],
    "must not be negative": [lambda: Energy((-1,), -1.0, 1e-6)],
    "must be negative": [lambda: Neumann(0, 0.1, 0.0, 1e-6)],
    "pairs of different points": [lambda: Lengths([[0, 0]], 1.0, 1e-6)],
    "centers of shape": [lambda: Obstacles(torch.zeros(2), 1.0, 1e-6)],
    "two or three": [lambda: DivergenceFree((1.0,), 1e-6)],
    "levels in": [lambda: Quantiles([0.5, 1.5], [0.0, 1.0], 1e-6)],
    "as many values": [lambda: Quantiles([0.5], [0.0, 1.0], 1e-6)],
    "must not decrease": [lambda: Quantiles([0.5, 0.2], [0.0, 1.0], 1e-6)],
    "above the upper bound": [lambda: Bounds([0.0, 2.0], [1.0, 1.0], 1e-6)],
    "finite anywhere": [lambda: Bounds(None, math.inf, 1e-6)],
    "at least one constraint": [lambda: Composite([]), lambda: Composite(LINE)],
    "Wrap a function with Equality or Inequality first": [lambda: Composite([torch.sin])],
    "takes a constraint": [lambda: Decoded(torch.sin, LINE)],
    "got .*function": [lambda: Decoded(frames, frames)],
    "got Linear and int": [lambda: Decoded(LINE, 3)],
    "got int": [lambda: Decoded(LINE, torch.sin, 3)],
    "at least one frame": [lambda: frames(())],
    "at least one channel": [lambda: frames((0,), [])],
    "frames=.*got 12": [lambda: frames(12)],
    "channels=.*got": [lambda: frames((0,), 1), lambda: frames((0,), ["u"])],
    "an equality": [lambda: EachMember(BOTH, torch.zeros(3, 1))],
    "a row of targets": [lambda: EachMember(LINE, 0.0)],
    "infinite values": [
        lambda: EachMember(LINE, [[torch.inf]]),
        lambda: EachMember(LINE, [[math.nan], [math.nan]]),
    ],
    "is complex": [
        lambda: Mask(TRUE, 1j, 1e-6),
        lambda: Bounds(0, 1j, 1e-6),
        lambda: Equality(waves, 1e-6).in_units(1j, 1),
    ],
    "standard deviation": [lambda: Linear(WAVES, [1j, 1], noise=torch.ones(2, 2))],
    "no x satisfies": [lambda: Linear([[1.0, 2.0]], [1 + 1j], 1e-6)],
    r"in_units\(std=\.\.\.\) must be positive": [
        lambda: LINE.in_units(0.0, 0.0),
        lambda: LINE.in_units(0.0, torch.tensor([1.0, -1.0])),
    ],
}


@pytest.mark.parametrize("word", MADE)
def test_what_makes_no_constraint_is_refused(word):
    for make in MADE[word]:
        with pytest.raises((ValueError, TypeError), match=word):
            make()


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.nan, math.inf])
def test_distances_that_are_none_are_refused(spacing):
    for make in (
        lambda h: Neumann(-1, h, 0.0, 1e-6),
        lambda h: heat(1.0, (h,)),
        lambda h: burgers(1.0, h),
        lambda h: kuramoto_sivashinsky(h),
        lambda h: vorticity(1.0, (0.1, h)),
        lambda h: DivergenceFree((0.1, h), 1e-6),
        lambda h: derivative(ROW, -1, h),
    ):
        with pytest.raises(ValueError, match=r"spacing=.*positive"):
            make(spacing)


X = torch.arange(24.0).reshape(2, 3, 4)
FLAT = torch.zeros(2, 5)
SIX = torch.ones(2, 6)
USED = {
    "nothing is left to be conserved": [
        (Integral((-2, -1), None, 1e-6), X),
        (Energy((-2, -1), None, 1e-6), X),
    ],
    "without a batch axis": [
        (Integral((-1,), torch.zeros(2, 3), 1e-6), X),
        (Energy((-2, -1), torch.zeros(2), 1e-6), X),
        (Neumann(-1, 0.1, torch.zeros(2, 2, 3), 1e-6), X),
        (Bounds(torch.zeros(2, 3, 4), 1.0, 1e-6), X),
    ],
    r"Inequality\(g=...\) returned shape": [
        (Inequality(lambda x: x.sum(dim=0), 1e-6), X),
        (Inequality(lambda x: x.sum(), 1e-6), X),
    ],
    "needs samples with at least 2 axes, got .*5": [
        (Integral((-2, -1), 0.5, 1e-6), FLAT),
        (Energy((-2,), 0.5, 1e-6), FLAT),
        (Neumann(-2, 0.1, 0.0, 1e-6), FLAT),
        (Spectrum(torch.ones(1), 2, 1e-6), FLAT),
        (ClosedLoop(1e-6), FLAT),
    ],
    "name point 5": [(Lengths([[0, 5]], 1.0, 1e-6), X)],
    "2 coordinates, but points have 4": [(Obstacles(torch.zeros(1, 2), 1.0, 1e-6), X)],
    "at least two frames": [(Evolution(torch.sin, 0.1, 1e-6), torch.zeros(2, 1, 4))],
    "2 components and 2 grid axes": [(DivergenceFree(FREE, 1e-6), torch.zeros(2, 3, 4, 4))],
    "a sample has 5 values, but y has 2": [(Histogram(torch.zeros(2), 1e-6), FLAT)],
    "5 shells are given": [(Spectrum(torch.ones(5), 1, 1e-6), SIX)],
    "raise limit=1": [(BlackBox(torch.sin, 1e-6, limit=1), FLAT)],
    r"shape \(B, m\), got \(2,\)": [(BlackBox(lambda x: x[:, 0], 1e-6), FLAT)],
    r"A\(x\) has shape \(2,\) for one sample, but y has": [
        (Observation(lambda x: x[:, :2], torch.zeros(shape), 1e-6), FLAT)
        for shape in ((1, 2), (3,), (), (5, 2))
    ],
    "no order": [
        (Inequality(waves, 1e-6), SIX),
        (Scalar(lambda x: waves(x)[:, 0], 1e-6), SIX),
        (LevelSet(lambda x: waves(x)[:, 0]), SIX),
    ],
    "y is real": [(Observation(waves, [1.0, 2.0], 1e-6), SIX)],
    "y is complex": [(Observation(lambda x: x[:, :2], [1j, 1.0], 1e-6), SIX)],
    "must return a tensor": [
        (Decoded(Equality(torch.sin, 1e-6), lambda z: 3), FLAT),
        (Equality(lambda x: [x.sum(dim=1)], 1e-6), FLAT),
        (Inequality(lambda x: (x[:, 0], x[:, 1]), 1e-6), FLAT),
        (Scalar(lambda x: None, 1e-6), FLAT),
        (Observation(lambda x: [x[:, :2]], [1.0, 2.0], 1e-6), FLAT),
    ],
    r"frames \[0, 5\] are requested": [
        (Decoded(Equality(torch.sin, 1e-6), frames((0, 5))), FLAT[..., None])
    ],
    r"channels \[0, 3\] are requested": [
        (Decoded(Equality(torch.sin, 1e-6), frames((0,), (0, 3))), FLAT[..., None])
    ],
    r"Scalar\(.* not finite": [(Scalar(lambda x: x[:, 0] - 0.25, tolerance=1e-3), FLAT)],
}


@pytest.mark.parametrize("word", USED)
def test_samples_that_do_not_fit_are_refused(word):
    for constraint, x in USED[word]:
        with pytest.raises(ValueError, match=word):
            check_constraint(constraint, x) if "Scalar" in word else constraint.residual(x)
    if word in ("nothing is left to be conserved", "without a batch axis"):
        for constraint, x in USED[word][:2]:  # a projection too
            with pytest.raises((ValueError, NotImplementedError), match=rf"{word}|minimizer"):
                constraint.projection(x)


def test_targets_of_each_sample_say_what_is_missing():
    stated = EachMember(Linear(torch.eye(2), [0.0, 0.0], 1e-6), torch.zeros(3, 2), repeats=2)
    short = EachMember(stated.constraint, torch.zeros(3, 3))
    for each, ids, words in (
        (stated, [6, 0], "samples 0 to 5, and none for sample 6"),
        (stated, [0, 1, 2], "batch of 3; state"),
        (short, [0], "has 3 values"),
    ):
        with members.calling(ids), pytest.raises(ValueError, match=words):
            each.residual(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="which samples of an ensemble these 2 samples are"):
        stated.residual(torch.zeros(2, 2))


ONE = torch.arange(3.0)
HALF = torch.tensor([0.5])


def test_lists_and_arrays_are_taken_for_tensors():
    x, square = X[:, 0, :2], X[:, :, :2]
    A, y = [[1.0, 2.0], [0.0, 1.0]], [1.0, 0.5]
    linear = Linear(torch.tensor(A), torch.tensor(y), 1e-6)
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
        (Linear(A, y, 1e-6), linear, x),
        (Linear(np.array(A), np.array(y), 1e-6), linear, x),
    ]
    mean, std = [1.0, 2.0], np.array([2.0, 3.0])
    for of_lists, of_tensors, x in pairs:
        expected = of_tensors.residual(x)
        torch.testing.assert_close(of_lists.residual(x), expected, msg=repr(of_lists))
        u = x * torch.tensor(std).to(x) + torch.tensor(mean)
        units = of_lists.in_units(mean, std).residual(x)
        torch.testing.assert_close(units, of_tensors.residual(u), msg=repr(of_lists))
