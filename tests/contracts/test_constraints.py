"""What every constraint promises, whatever it constrains."""

import inspect
import pkgutil
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly import constraints
from feasibly.checks.inputs import check_constraint
from feasibly.constraints import (
    BlackBox,
    Bounds,
    ClosedLoop,
    Composite,
    Constraint,
    Decoded,
    DivergenceFree,
    Energy,
    Equality,
    Evolution,
    GaussianRandomField,
    Histogram,
    Inequality,
    Integral,
    Lengths,
    LevelSet,
    Linear,
    Mask,
    Neumann,
    Observation,
    Obstacles,
    Quantiles,
    Scalar,
    Spectrum,
    kuramoto_sivashinsky,
)

check = settings(derandomize=True, deadline=None, max_examples=25)

A = torch.tensor([[1.0, 2.0, 0.0, -1.0], [0.5, 0.0, 1.0, 1.0]])


def bounds(dtype):
    return Bounds(-0.5, 1.0, tolerance=1e-3), (3, 4)


def linear(dtype):
    return Linear(A.to(dtype), torch.tensor([1.0, -1.0], dtype=dtype), tolerance=1e-6), (4,)


def observation(dtype):
    return Observation(torch.sin, torch.full((2, 2), 0.3, dtype=dtype), tolerance=1e-3), (2, 2)


def composite(dtype):
    parts = [
        linear(dtype)[0],
        Bounds(-2.0, 2.0, tolerance=1e-2),
        LevelSet(lambda x: x[:, 0] * x[:, 1] - 0.1, tolerance=1e-2),
    ]
    return Composite(parts), (4,)


def decoded(dtype):
    law, _ = linear(dtype)
    return Decoded(law, lambda z: torch.tanh(torch.cat([z, z.square()], dim=1))), (2,)


def mask(dtype):
    return Mask(torch.tensor([[True, False, True], [False] * 3]), 0.3, tolerance=1e-6), (2, 3)


def obstacles(dtype):
    return Obstacles(torch.tensor([[0.1, 0.2], [1.0, 0.5]]), 0.7, tolerance=1e-3), (4, 2)


def lengths(dtype):
    pairs = torch.tensor([[0, 1], [1, 2]])
    return Lengths(pairs, torch.tensor([1.0, 0.5]), tolerance=1e-3), (2, 3, 2)


def quantiles(dtype):
    levels, values = torch.tensor([0.25, 0.5, 1.0]), torch.tensor([-0.5, 0.1, 1.0])
    return Quantiles(levels, values, tolerance=1e-3), (2, 3)


def spectrum(dtype):
    return Spectrum(torch.tensor([0.3, 0.1]), dims=2, tolerance=1e-3), (6, 4)


# For each class, a constraint and the shape of one sample.
TABLE = {
    BlackBox: lambda dtype: (BlackBox(lambda x: torch.sin(x[:, :2]), tolerance=1e-3), (3,)),
    Bounds: bounds,
    ClosedLoop: lambda dtype: (ClosedLoop(tolerance=1e-6), (4, 2)),
    Composite: composite,
    Decoded: decoded,
    DivergenceFree: lambda dtype: (DivergenceFree((0.5, 0.3), tolerance=1e-6), (2, 6, 5)),
    Energy: lambda dtype: (Energy((-2, -1), 0.5, tolerance=1e-6), (3, 4)),
    Equality: lambda dtype: (Equality(lambda x: x.square().sum(dim=1) - 1, 1e-4), (5,)),
    Evolution: lambda dtype: (Evolution(kuramoto_sivashinsky(1.0), 0.1, tolerance=1e-3), (3, 8)),
    Histogram: lambda dtype: (Histogram(torch.linspace(-1, 1, 6), tolerance=1e-6), (2, 3)),
    Inequality: lambda dtype: (Inequality(lambda x: x.cumsum(dim=1) - 1, 1e-3), (3,)),
    Integral: lambda dtype: (Integral((-1,), None, tolerance=1e-6), (3, 4)),
    Lengths: lengths,
    LevelSet: lambda dtype: (LevelSet(GaussianRandomField(seed=0)), (2,)),
    Linear: linear,
    Mask: mask,
    Neumann: lambda dtype: (Neumann(-1, 0.5, 0.2, tolerance=1e-3), (2, 5)),
    Observation: observation,
    Obstacles: obstacles,
    Quantiles: quantiles,
    Scalar: lambda dtype: (Scalar(lambda x: (x.sum(dim=1) - 1) ** 2, 1e-4), (3,)),
    Spectrum: spectrum,
}


def in_units(kind):
    def make(dtype):
        constraint, shape = kind(dtype)
        return constraint.in_units(0.3, 2.0), shape

    return make


KINDS = {kind.__name__: make for kind, make in TABLE.items()}
KINDS |= {f"{name} in units": in_units(make) for name, make in list(KINDS.items())}
kind_of_all = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


def samples(n, shape, dtype=torch.float64, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn((n, *shape), generator=generator, dtype=torch.float64)).to(dtype)


def found() -> set[type[Constraint]]:
    classes = set()
    for module in pkgutil.walk_packages(constraints.__path__, f"{constraints.__name__}."):
        for name, kind in inspect.getmembers(import_module(module.name), inspect.isclass):
            if (
                issubclass(kind, Constraint)
                and not inspect.isabstract(kind)
                and not name.startswith("_")
            ):
                classes.add(kind)
    return classes


def test_no_public_constraint_is_missing_from_the_table():
    assert found() == set(TABLE)


def test_every_public_constraint_is_exported():
    assert {kind.__name__ for kind in found()} <= set(constraints.__all__)


@kind_of_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_there_is_one_row_of_residuals_and_one_violation_a_sample(make, dtype):
    constraint, shape = make(dtype)
    x = samples(6, shape, dtype)
    r, c, feasible = constraint.residual(x), constraint.violation(x), constraint.is_feasible(x)
    assert r.ndim == 2
    assert r.shape[0] == 6
    assert c.shape == feasible.shape == (6,)
    assert r.dtype == c.dtype == dtype
    assert feasible.dtype == torch.bool


@kind_of_all
@given(seed=st.integers(0, 2**16), scale=st.floats(-3, 2).map(lambda e: 10**e))
@check
def test_a_violation_is_between_zero_and_the_squared_residual(make, seed, scale):
    constraint, shape = make(torch.float64)
    x = samples(8, shape, seed=seed, scale=scale)
    c, squares = constraint.violation(x), constraint.residual(x).square().sum(dim=1)
    assert (c >= 0).all()
    assert (c <= squares * (1 + 1e-12)).all()


@kind_of_all
@given(seed=st.integers(0, 2**16))
@check
def test_a_squared_residual_within_the_tolerance_means_feasible(make, seed):
    constraint, shape = make(torch.float64)
    # on a line from one sample to another, so that some are near the constraint
    ends = samples(2, shape, seed=seed)
    x = torch.lerp(
        ends[:1], ends[1:], torch.linspace(0, 1, 200).reshape(-1, *(1,) * len(shape)).double()
    )
    within = constraint.residual(x).square().sum(dim=1) <= constraint.tolerance
    assert constraint.is_feasible(x)[within].all()


@kind_of_all
def test_an_assessment_is_the_violation_and_a_verdict(make):
    constraint, shape = make(torch.float64)
    x = samples(50, shape)
    c, feasible = constraint.assess(x)
    torch.testing.assert_close(c, constraint.violation(x))
    assert torch.equal(feasible, constraint.is_feasible(x))
    assert feasible[c <= constraint.tolerance].all()
    assert not c.requires_grad


@kind_of_all
def test_the_residual_of_one_sample_ignores_the_others(make):
    constraint, shape = make(torch.float64)
    x = samples(5, shape)
    r, c, feasible = constraint.residual(x), *constraint.assess(x)
    for i in range(5):
        row = slice(i, i + 1)
        torch.testing.assert_close(constraint.residual(x[row]), r[row], rtol=1e-12, atol=1e-14)
        alone = constraint.assess(x[row])
        torch.testing.assert_close(alone[0], c[row], rtol=1e-12, atol=1e-14)
        assert torch.equal(alone[1], feasible[row])


@kind_of_all
def test_gradients_agree_with_finite_differences(make):
    constraint, shape = make(torch.float64)
    x = samples(3, shape, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(constraint.residual, x)


@kind_of_all
def test_forward_mode_agrees_with_reverse_mode(make):
    constraint, shape = make(torch.float64)
    x, tangent = samples(3, shape, seed=3), samples(3, shape, seed=4)
    r, pushed = torch.func.jvp(constraint.residual, (x,), (tangent,))
    x = x.requires_grad_()
    cotangent = samples(3, r.shape[1:], seed=5)
    (pulled,) = torch.autograd.grad(constraint.residual(x), x, cotangent)
    torch.testing.assert_close((pushed * cotangent).sum(), (tangent * pulled).sum())


@kind_of_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_samplers_accept_it(make, dtype):
    constraint, shape = make(dtype)
    x = samples(4, shape, dtype)
    torch.testing.assert_close(check_constraint(constraint, x), constraint.residual(x))


@kind_of_all
def test_samples_are_not_modified(make):
    constraint, shape = make(torch.float64)
    x = samples(4, shape)
    before = x.clone()
    constraint.residual(x)
    constraint.violation(x)
    constraint.assess(x)
    assert torch.equal(x, before)


@kind_of_all
def test_a_closed_form_projection_is_feasible_and_idempotent_or_refused(make):
    constraint, shape = make(torch.float64)
    x = samples(10, shape)
    # inside a change of units
    stated = constraint.constraint if hasattr(constraint, "std") else constraint
    several_units = torch.as_tensor(getattr(constraint, "std", 1.0)).numel() > 1
    if type(stated).projection is Constraint.projection or several_units:
        with pytest.raises(NotImplementedError, match="minimizer"):
            constraint.projection(x)
        return
    nearest = constraint.projection(x)
    assert nearest.shape == x.shape
    assert constraint.is_feasible(nearest).all()
    torch.testing.assert_close(constraint.projection(nearest), nearest)


@kind_of_all
def test_repr_names_the_class_and_its_tolerance(make):
    constraint, _ = make(torch.float64)
    assert "tolerance=" in repr(constraint)
    assert any(kind.__name__ in repr(constraint) for kind in TABLE)


@pytest.mark.parametrize(
    "make",
    [
        lambda tolerance: Bounds(0.0, 1.0, tolerance),
        lambda tolerance: Equality(torch.sin, tolerance),
        lambda tolerance: Inequality(torch.sin, tolerance),
        lambda tolerance: LevelSet(torch.sin, tolerance),
        lambda tolerance: Linear(A, torch.zeros(2), tolerance),
        lambda tolerance: Observation(torch.sin, torch.zeros(2), tolerance),
        lambda tolerance: Scalar(torch.sin, tolerance),
    ],
    ids=["Bounds", "Equality", "Inequality", "LevelSet", "Linear", "Observation", "Scalar"],
)
@pytest.mark.parametrize("tolerance", [0.0, -1e-3], ids=["zero", "negative"])
def test_a_tolerance_that_is_not_positive_is_refused(make, tolerance):
    with pytest.raises(ValueError, match=r"\w+\(tolerance=\.\.\.\) must be positive, got"):
        make(tolerance)
