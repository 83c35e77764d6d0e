"""What every constraint promises, whatever it constrains."""

import inspect
import math
import pkgutil
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import combinations, product

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


def composite(**asked):
    parts = [
        Linear(A, [1.0, -1.0], **asked),
        Bounds(-2.0, 2.0, tolerance=1e-2),
        LevelSet(lambda x: x[:, 0] * x[:, 1] - 0.1, tolerance=1e-2),
    ]
    return Composite(parts), (4,)


def each_member(**asked):
    targets = torch.tensor([[1.0, -1.0], [0.3, 2.0]]).double()
    return EachMember(Linear(A, torch.zeros(2), **asked), targets), (4,)


def decoded(**asked):
    on = Linear(A, [1.0, -1.0], **asked)
    return Decoded(on, lambda z: torch.tanh(torch.cat([z, z.square()], dim=1))), (2,)


MASK = torch.tensor([[True, False, True], [False] * 3])
CENTERS = torch.tensor([[0.1, 0.2], [1.0, 0.5]])
FLOW = kuramoto_sivashinsky(1.0)

# For each class, a constraint with what is asked of feasible samples, and the shape of a sample.
TABLE = {
    BlackBox: lambda **asked: (BlackBox(lambda x: torch.sin(x[:, :2]), **asked), (3,)),
    Bounds: lambda **asked: (Bounds(-0.5, 1.0, **asked), (3, 4)),
    ClosedLoop: lambda **asked: (ClosedLoop(**asked), (4, 2)),
    Composite: composite,
    Decoded: decoded,
    DivergenceFree: lambda **asked: (DivergenceFree((0.5, 0.3), **asked), (2, 6, 5)),
    EachMember: each_member,
    Energy: lambda **asked: (Energy((-2, -1), 0.5, **asked), (3, 4)),
    Equality: lambda **asked: (Equality(lambda x: x.square().sum(dim=1) - 1, **asked), (5,)),
    Evolution: lambda **asked: (Evolution(FLOW, 0.1, **asked), (3, 8)),
    Histogram: lambda **asked: (Histogram(torch.linspace(-1, 1, 6), **asked), (2, 3)),
    Inequality: lambda **asked: (Inequality(lambda x: x.cumsum(dim=1) - 1, **asked), (3,)),
    Integral: lambda **asked: (Integral((-1,), None, **asked), (3, 4)),
    Lengths: lambda **asked: (Lengths([[0, 1], [1, 2]], [1.0, 0.5], **asked), (2, 3, 2)),
    LevelSet: lambda **asked: (LevelSet(GaussianRandomField(seed=0), **asked), (2,)),
    Linear: lambda **asked: (Linear(A, [1.0, -1.0], **asked), (4,)),
    Mask: lambda **asked: (Mask(MASK, 0.3, **asked), (2, 3)),
    Neumann: lambda **asked: (Neumann(-1, 0.5, 0.2, **asked), (2, 5)),
    Observation: lambda **asked: (
        # in double precision whatever the samples are in, as numbers are that a user gives
        Observation(torch.sin, torch.full((2, 2), 0.3).double(), **asked),
        (2, 2),
    ),
    Obstacles: lambda **asked: (Obstacles(CENTERS, 0.7, **asked), (4, 2)),
    Quantiles: lambda **asked: (Quantiles([0.25, 0.5, 1], [-0.5, 0.1, 1], **asked), (2, 3)),
    Scalar: lambda **asked: (Scalar(lambda x: (x.sum(dim=1) - 1) ** 2, **asked), (3,)),
    Spectrum: lambda **asked: (Spectrum([0.3, 0.1], 2, **asked), (6, 4)),
}
MADE_OF_OTHERS = (Composite, Decoded, EachMember)


def in_units(make):
    def stated():
        constraint, shape = make()
        return constraint.in_units(0.3, 2.0), shape

    return stated


KINDS = {kind.__name__: partial(make, tolerance=1e-3) for kind, make in TABLE.items()}
KINDS |= {f"{name} in units": in_units(make) for name, make in list(KINDS.items())}
WITH_ATOL = {
    f"{kind.__name__} with atol": partial(make, atol=0.03) for kind, make in TABLE.items()
}
WITH_ATOL |= {f"{name} in units": in_units(make) for name, make in list(WITH_ATOL.items())}
KINDS |= WITH_ATOL


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
        constraint, shape = make()
        x = samples(6, shape, dtype)
        r, c, feasible = constraint.residual(x), constraint.violation(x), constraint.is_feasible(x)
        assert r.ndim == 2
        assert r.shape[0] == 6
        assert c.shape == feasible.shape == (6,)
        assert r.dtype == c.dtype == dtype
        assert feasible.dtype == torch.bool


@of_every_kind
def test_a_violation_is_between_zero_and_the_squared_residual(make):
    constraint, shape = make()
    for seed in range(12):
        x = samples(8, shape, seed=seed, scale=10 ** (seed / 2 - 3.5))
        c, squares = constraint.violation(x), constraint.residual(x).square().sum(dim=1)
        assert (c >= 0).all()
        assert (c <= squares * (1 + 1e-12)).all()


def line(shape, seed, n=200):
    """Samples on a line from one to another, some of which are near a constraint."""
    ends = samples(2, shape, seed=seed)
    between = torch.linspace(0, 1, n, dtype=torch.float64).reshape(-1, *(1,) * len(shape))
    return torch.lerp(ends[:1], ends[1:], between)


@of_every_kind
def test_a_residual_at_which_minimizers_stop_means_feasible(make):
    constraint, shape = make()
    for seed in range(10):
        x = line(shape, seed)
        r, feasible = constraint.residual(x), constraint.is_feasible(x)
        assert feasible[r.square().sum(dim=1) <= constraint.tolerance].all()
        assert feasible[constraint.violation_of(r) <= constraint.tolerance].all()


def test_atol_bounds_each_residual_component_and_the_ratio_is_of_the_largest():
    for name, make in WITH_ATOL.items():
        constraint, shape = make()
        if any(name.startswith(kind.__name__) for kind in MADE_OF_OTHERS[:1]):
            continue  # it scales its parts
        for seed in range(4):
            x = line(shape, seed)
            largest = constraint.residual(x).abs().amax(dim=1)
            assert torch.equal(constraint.is_feasible(x), largest <= 0.03), name
            torch.testing.assert_close(constraint.ratio(x), largest / 0.03, rtol=1e-9, atol=1e-12)


@of_every_kind
def test_a_sample_is_feasible_where_the_ratio_to_what_was_asked_is_at_most_one(make):
    constraint, shape = make()
    x = torch.cat([line(shape, seed) for seed in range(4)])
    ratio, feasible = constraint.ratio(x), constraint.is_feasible(x)
    assert ratio.shape == (len(x),)
    assert torch.equal(ratio <= 1, feasible)


@of_every_kind
def test_an_assessment_is_the_violation_and_a_verdict(make):
    constraint, shape = make()
    x = samples(50, shape).requires_grad_()
    c, feasible = constraint.assess(x)
    torch.testing.assert_close(c, constraint.violation(x))
    assert torch.equal(feasible, constraint.is_feasible(x))
    assert feasible[c <= constraint.tolerance].all()
    assert not c.requires_grad


@of_every_kind
def test_the_residual_of_one_sample_ignores_the_others(make):
    constraint, shape = make()
    x = samples(5, shape)
    r, c, feasible = constraint.residual(x), *constraint.assess(x)
    for i in range(5):
        row = slice(i, i + 1)
        torch.testing.assert_close(constraint.residual(x[row]), r[row], rtol=1e-12, atol=1e-14)
        alone = constraint.assess(x[row])
        torch.testing.assert_close(alone[0], c[row], rtol=1e-12, atol=1e-14)
        assert torch.equal(alone[1], feasible[row])


@pytest.mark.parametrize("kind", TABLE)
def test_gradients_agree_with_finite_differences(kind):
    constraint, shape = TABLE[kind](tolerance=1e-3)
    x = samples(2, shape, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(constraint.residual, x)


@of_every_kind
def test_the_samplers_accept_it(make):
    for dtype in (torch.float32, torch.float64):
        constraint, shape = make()
        x = samples(4, shape, dtype)
        torch.testing.assert_close(check_constraint(constraint, x), constraint.residual(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@of_every_kind
def test_residuals_and_projections_on_a_gpu_are_those_of_the_cpu(make):
    constraint, shape = make()
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
    constraint, shape = make()
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
    constraint, shape = make()
    x, y = samples(20, shape), samples(20, shape, seed=1)
    bend = constraint.residual(0.3 * x + 0.7 * y)
    bend = bend - 0.3 * constraint.residual(x) - 0.7 * constraint.residual(y)
    assert constraint.linear == (bend.abs().max() <= 1e-12 * constraint.residual(x).abs().max())


@of_every_kind
def test_random_samples_meet_a_constraint_only_if_it_has_no_equalities(make):
    constraint, shape = make()
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
    constraint, shape = make()
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
    constraint, shape = make()
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
SHAPES = [(5,), (1,), (1, 4), (4, 3, 2), (2, 4, 5), (2, 3, 1), (3, 2, 4, 3)]


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
    constraint, _ = make()
    assert ("atol=0.03" if constraint.atol == 0.03 else "tolerance=") in repr(constraint)
    assert any(kind.__name__ in repr(constraint) for kind in TABLE)


@pytest.mark.parametrize("kind", [kind for kind in TABLE if kind not in MADE_OF_OTHERS])
def test_one_positive_number_says_what_is_feasible(kind):
    make = TABLE[kind]
    for word, value in product(("tolerance", "atol"), (0.0, -1e-3, math.nan)):
        with pytest.raises(
            ValueError, match=rf"{kind.__name__}\({word}=\.\.\.\) must be positive"
        ):
            make(**{word: value})
    with pytest.raises(ValueError, match=r"bounds each component; got both: 0\.5 and 0\.1"):
        make(tolerance=0.5, atol=0.1)
    if kind is not LevelSet:  # whose default is the paper's
        with pytest.raises(ValueError, match="needs a tolerance"):
            make()
