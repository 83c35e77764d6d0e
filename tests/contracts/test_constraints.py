"""What every constraint promises, whatever it constrains."""

import inspect
import math
import pkgutil
from contextlib import suppress
from importlib import import_module
from itertools import combinations

import pytest
import torch

from feasibly import constraints, members
from feasibly.checks.inputs import check_constraint
from feasibly.constraints import (
    BlackBox,
    Bounds,
    ClosedLoop,
    Composite,
    Constraint,
    Decoded,
    DivergenceFree,
    EachMember,
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

A = torch.tensor([[1.0, 2.0, 0.0, -1.0], [0.5, 0.0, 1.0, 1.0]])


def bounds(dtype):
    return Bounds(-0.5, 1.0, tolerance=1e-3), (3, 4)


def linear(dtype):
    return Linear(A, torch.tensor([1.0, -1.0]).double(), tolerance=1e-6), (4,)


def observation(dtype):
    # in double precision whatever the samples are in, as numbers are that a user gives
    return Observation(torch.sin, torch.full((2, 2), 0.3).double(), tolerance=1e-3), (2, 2)


def composite(dtype):
    parts = [
        linear(dtype)[0],
        Bounds(-2.0, 2.0, tolerance=1e-2),
        LevelSet(lambda x: x[:, 0] * x[:, 1] - 0.1, tolerance=1e-2),
    ]
    return Composite(parts), (4,)


def decoded(dtype):
    constraint, _ = linear(dtype)
    return Decoded(constraint, lambda z: torch.tanh(torch.cat([z, z.square()], dim=1))), (2,)


def each_member(dtype):
    targets = torch.tensor([[1.0, -1.0], [0.3, 2.0]]).double()
    return EachMember(Linear(A, torch.zeros(2), tolerance=1e-6), targets), (4,)


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
    EachMember: each_member,
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


def in_units(make):
    def stated(dtype):
        constraint, shape = make(dtype)
        return constraint.in_units(0.3, 2.0), shape

    return stated


KINDS = {kind.__name__: make for kind, make in TABLE.items()}
KINDS |= {f"{name} in units": in_units(make) for name, make in list(KINDS.items())}


def of_every_kind(test):
    """Makes one test of a loop over all kinds, which names every kind that fails."""

    def loop():
        failed = {}
        for name, make in KINDS.items():
            try:
                test(make)
            except Exception as error:
                failed[name] = error
        if failed:
            first = next(iter(failed.values()))
            raise AssertionError(f"fails for {len(failed)} kinds: {list(failed)}") from first

    loop.__name__ = test.__name__
    return loop


@pytest.fixture(autouse=True)
def of_one_member():
    """Whose target all samples have, where each member has its own."""
    with members.calling([1]):
        yield


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


@of_every_kind
def test_there_is_one_row_of_residuals_and_one_violation_a_sample(make):
    for dtype in (torch.float32, torch.float64):
        constraint, shape = make(dtype)
        x = samples(6, shape, dtype)
        r, c, feasible = constraint.residual(x), constraint.violation(x), constraint.is_feasible(x)
        assert r.ndim == 2
        assert r.shape[0] == 6
        assert c.shape == feasible.shape == (6,)
        assert r.dtype == c.dtype == dtype
        assert feasible.dtype == torch.bool


@of_every_kind
def test_a_violation_is_between_zero_and_the_squared_residual(make):
    constraint, shape = make(torch.float64)
    for seed in range(12):
        x = samples(8, shape, seed=seed, scale=10 ** (seed / 2 - 3.5))
        c, squares = constraint.violation(x), constraint.residual(x).square().sum(dim=1)
        assert (c >= 0).all()
        assert (c <= squares * (1 + 1e-12)).all()


@of_every_kind
def test_a_squared_residual_within_the_tolerance_means_feasible(make):
    constraint, shape = make(torch.float64)
    for seed in range(10):
        # on a line from one sample to another, so that some are near the constraint
        ends = samples(2, shape, seed=seed)
        x = torch.lerp(
            ends[:1], ends[1:], torch.linspace(0, 1, 200).reshape(-1, *(1,) * len(shape)).double()
        )
        within = constraint.residual(x).square().sum(dim=1) <= constraint.tolerance
        assert constraint.is_feasible(x)[within].all()


@of_every_kind
def test_an_assessment_is_the_violation_and_a_verdict(make):
    constraint, shape = make(torch.float64)
    x = samples(50, shape)
    c, feasible = constraint.assess(x)
    torch.testing.assert_close(c, constraint.violation(x))
    assert torch.equal(feasible, constraint.is_feasible(x))
    assert feasible[c <= constraint.tolerance].all()
    assert not c.requires_grad


@of_every_kind
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


@of_every_kind
def test_gradients_agree_with_finite_differences(make):
    constraint, shape = make(torch.float64)
    x = samples(3, shape, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(constraint.residual, x)


@of_every_kind
def test_the_samplers_accept_it(make):
    for dtype in (torch.float32, torch.float64):
        constraint, shape = make(dtype)
        x = samples(4, shape, dtype)
        torch.testing.assert_close(check_constraint(constraint, x), constraint.residual(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@of_every_kind
def test_residuals_and_projections_on_a_gpu_are_those_of_the_cpu(make):
    constraint, shape = make(torch.float64)
    x = samples(4, shape)
    with members.calling([1], "cuda"):
        r, c, feasible = check_constraint(constraint, x.cuda()), *constraint.assess(x.cuda())
        assert r.is_cuda
        assert c.is_cuda
        near = inside = None
        if constraint.inequalities is not None:
            inside = constraint.inequalities(x.cuda()).inside
        with suppress(NotImplementedError):
            near = constraint.projection(x.cuda())
    torch.testing.assert_close(r.cpu(), constraint.residual(x))
    torch.testing.assert_close(c.cpu(), constraint.violation(x))
    assert torch.equal(feasible.cpu(), constraint.is_feasible(x))
    if inside is not None:
        assert torch.equal(inside.cpu(), constraint.inequalities(x).inside)
    if near is not None:
        torch.testing.assert_close(near.cpu(), constraint.projection(x))


@of_every_kind
def test_samples_are_not_modified(make):
    constraint, shape = make(torch.float64)
    x = samples(4, shape)
    before = x.clone()
    constraint.residual(x)
    constraint.violation(x)
    constraint.assess(x)
    with suppress(NotImplementedError):
        constraint.projection(x)
    assert torch.equal(x, before)


@of_every_kind
def test_a_constraint_is_linear_if_and_only_if_it_says_so(make):
    constraint, shape = make(torch.float64)
    x, y = samples(20, shape), samples(20, shape, seed=1)
    bend = constraint.residual(0.3 * x + 0.7 * y)
    bend = bend - 0.3 * constraint.residual(x) - 0.7 * constraint.residual(y)
    assert constraint.linear == (bend.abs().max() <= 1e-12 * constraint.residual(x).abs().max())


@of_every_kind
def test_random_samples_meet_a_constraint_only_if_it_has_no_equalities(make):
    constraint, shape = make(torch.float64)
    x = torch.cat((samples(300, shape, scale=0.3), samples(300, shape, scale=3.0)))
    met = (constraint.residual(x) == 0).all(dim=1)
    if constraint.equalities is None:
        assert met.any()
        return
    r = constraint.equalities.residual(x)
    assert (r != 0).any(dim=1).all()
    whole = constraint.residual(x).square().sum(dim=1)
    assert (r.square().sum(dim=1) <= whole * (1 + 1e-12)).all()


@of_every_kind
def test_equalities_and_inequalities_together_are_the_constraint(make):
    constraint, shape = make(torch.float64)
    x = torch.cat((samples(300, shape, scale=0.3), samples(300, shape, scale=3.0)))
    met = torch.ones(len(x), dtype=torch.bool)
    if constraint.equalities is not None:
        met = (constraint.equalities.residual(x) == 0).all(dim=1)
    if constraint.inequalities is not None:
        g = constraint.inequalities(x)
        assert g.values.shape == g.lower.shape == g.upper.shape
        met &= g.inside.all(dim=1)
    assert torch.equal(met, (constraint.residual(x) == 0).all(dim=1))


@of_every_kind
def test_a_projection_is_the_nearest_feasible_point_or_a_minimizer_is_advised(make):
    constraint, shape = make(torch.float64)
    try:
        check_projection(constraint, shape)
    except NotImplementedError as error:
        assert "project with a minimizer" in str(error)  # noqa: PT017 (either way is right)


def check_projection(constraint, shape):
    """The projection is feasible and repeatable, and no other feasible point is nearer."""
    x = samples(5, shape)
    nearest = constraint.projection(x)
    assert nearest.shape == x.shape
    assert nearest.dtype == x.dtype
    assert constraint.is_feasible(nearest).all()
    torch.testing.assert_close(constraint.projection(nearest), nearest)
    least = (nearest - x).flatten(start_dim=1).norm(dim=1)
    # Points close by decide whether the move is at right angles to the feasible set: half of the
    # directions lead to a nearer point if it is not. Points far off are for sets that bend.
    for seed, distance in enumerate((1e-3,) * 20 + (0.1, 1.0, 10.0) * 3):
        other = constraint.projection(nearest + samples(5, shape, seed=100 + seed, scale=distance))
        assert ((other - x).flatten(start_dim=1).norm(dim=1) >= least * (1 - 1e-9) - 1e-9).all()
    assert constraint.projection(x.float()).dtype == torch.float32


def with_a_projection(shape):
    """Yields all that has a closed form for samples of this shape, with names."""
    y, other = samples(1, shape, seed=7)[0], samples(1, shape, seed=8)[0]
    yield "mask", Mask(other > 0, y, 1e-18)
    yield "histogram", Histogram(y, 1e-18)
    yield "bounds", Bounds(y - 0.5, y + 0.5, 1e-18)
    yield "lower bound", Bounds(y.flatten()[: shape[-1]], math.inf, 1e-18)
    yield "fixed by bounds", Bounds(y, torch.where(other > 0, y, math.inf), 1e-18).equalities
    A = samples(min(2, y.numel()), (y.numel(),), seed=9)
    yield "linear", Linear(A, A @ y.flatten(), 1e-18)
    for k in range(1, len(shape) + 1):
        for dims in combinations(range(-len(shape), 0), k):
            sums = y.sum(dim=dims)
            weights = samples(1, [shape[dim] for dim in dims], seed=10)[0].abs() + 0.1
            for name, w in (("mean", None), ("sum", weights)):
                yield f"{name} over {dims}", Integral(dims, sums, 1e-18, weights=w)
                if sums.ndim:
                    yield f"conserved {name} over {dims}", Integral(dims, None, 1e-18, weights=w)
            yield f"energy over {dims}", Energy(dims, sums.abs(), 1e-18)
    if len(shape) > 1:
        yield "closed loop", ClosedLoop(1e-18)
        start = Mask.initial(y[:1], shape[0], 1e-18)
        for dims in combinations(range(1 - len(shape), 0), len(shape) - 1):
            conserved = Integral(dims, None, 1e-18)
            yield "initial condition and conserved mean", Composite([start, conserved])
            units = conserved.in_units(other, y.abs() + 0.5)
            yield "the same, each element in its own units", Composite([start, units])
            known = Integral(dims, y[0].mean(), 1e-18)  # the first frame is stated twice
            yield "initial condition and known mean", Composite([start, known])
            yield "parts in parts", Composite([Composite([start, known]), ClosedLoop(1e-18)])
    if shape[-1] > 2:
        yield "slope", Neumann(-1, 0.5, 0.2, 1e-18)
    for d in (1, 2, 3):
        if len(shape) >= d and min(shape[-d:]) > 3:
            yield f"spectrum in {d}-d", Spectrum([0.3, 0.1], d, 1e-18)
        if len(shape) > d > 1 and shape[-d - 1] == d:
            for scheme in ("spectral", "periodic", "open"):
                if scheme != "open" or min(shape[-d:]) > 3:
                    free = DivergenceFree((0.5, 0.3, 0.2)[:d], 1e-16, scheme)
                    yield f"divergence in {d}-d, {scheme}", free


# of one axis, of one element, with frames first, of vectors on even and odd grids
SHAPES = [(5,), (1,), (1, 4), (3, 4), (4, 3, 2), (2, 4, 5), (2, 3, 1), (3, 2, 4, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_closed_form_is_nearest_for_samples_of_any_shape(shape):
    failed = {}
    for name, constraint in with_a_projection(shape):
        one = torch.tensor([2.0], dtype=torch.float64)
        for stated in (constraint, constraint.in_units(0.3, one)):
            try:
                check_projection(stated, shape)
            except Exception as error:
                failed[name] = error
    if failed:
        raise AssertionError(f"{list(failed)}") from next(iter(failed.values()))


@of_every_kind
def test_repr_names_the_class_and_its_tolerance(make):
    constraint, _ = make(torch.float64)
    assert "tolerance=" in repr(constraint)
    assert any(kind.__name__ in repr(constraint) for kind in TABLE)


@pytest.mark.parametrize("tolerance", [0.0, -1e-3, math.nan], ids=str)
def test_a_tolerance_that_is_not_positive_is_refused(tolerance):
    for make in (
        lambda: Bounds(0.0, 1.0, tolerance),
        lambda: Equality(torch.sin, tolerance),
        lambda: Inequality(torch.sin, tolerance),
        lambda: Integral((-1,), 0.0, tolerance),
        lambda: LevelSet(torch.sin, tolerance),
        lambda: Linear(A, torch.zeros(2), tolerance),
        lambda: Mask(torch.tensor([True]), 0.0, tolerance),
        lambda: Observation(torch.sin, torch.zeros(2), tolerance),
        lambda: Scalar(torch.sin, tolerance),
    ):
        with pytest.raises(ValueError, match=r"\w+\(tolerance=\.\.\.\) must be positive, got"):
            make()
