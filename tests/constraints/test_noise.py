"""Observations with errors: their units, what of them is exact, and what is no noise."""

import math

import pytest
import torch

from feasibly import members
from feasibly.checks import diagnose
from feasibly.constraints import (
    Bounds,
    Composite,
    Decoded,
    EachMember,
    Equality,
    Linear,
    Observation,
    through,
)
from feasibly.oracles import Gaussian
from feasibly.randomness import MemberNoise
from feasibly.samplers import METHODS
from feasibly.schedules import LogLogit
from tests.helpers import on
from tests.tensors import double, normal

A, Y = normal(5, 8), normal(5, seed=1)
B = normal(5, 3, seed=2)
STDS = double([0.5, 2.0, 1.0, 0.1, 3.0])
# covariances, the scales of whose values differ by six orders of magnitude
SCALES = double([1e-3, 1.0, 1e3, 2.0, 0.1])
FULL = (B @ B.T + 0.5 * torch.eye(5).double()) * SCALES * SCALES[:, None]
SINGULAR = (B @ B.T) * SCALES * SCALES[:, None]
R = {
    "one": (0.3, 0.09 * torch.eye(5).double()),
    "each": (STDS, STDS.square().diag()),
    "covariance": (FULL, FULL),
    "singular": (SINGULAR, SINGULAR),
    "some exact": (STDS * (STDS < 1), (STDS * (STDS < 1)).square().diag()),
}


def made(name):
    rank = int(torch.linalg.matrix_rank(R[name][1] / SCALES / SCALES[:, None]))
    return Linear(A, Y, None if rank == 5 else 1e-6, noise=R[name][0])


@pytest.mark.parametrize("name", R)
def test_errors_of_the_residual_have_variance_one_and_are_independent(name):
    constraint, covariance = made(name), R[name][1]
    W = torch.autograd.functional.jacobian(
        lambda x: constraint.noisy.residual(x[None])[0], torch.zeros(8).double()
    ) @ torch.linalg.pinv(A)
    units = SCALES if covariance.count_nonzero() > 5 else torch.ones(5).double()
    # in units in which rounding counts alike for all values
    seen = (W * units) @ (covariance / units / units[:, None]) @ (W * units).T
    torch.testing.assert_close(seen, torch.eye(len(W)).double(), atol=1e-9, rtol=0)
    if constraint.exact is None:
        return
    exact = torch.autograd.functional.jacobian(
        lambda x: constraint.exact.residual(x[None])[0], torch.zeros(8).double()
    ) @ torch.linalg.pinv(A)
    assert len(exact) + len(W) == 5
    size = (exact * units).norm(dim=1)
    held = (exact * units) @ (covariance / units / units[:, None]) @ (exact * units).T
    assert (held.diagonal() / size.square()).abs().max() < 1e-12
    # together they say all that the values say
    assert torch.linalg.matrix_rank(torch.cat([exact, W]) * units) == 5


@pytest.mark.parametrize(("m", "rank"), [(6, 2), (40, 10), (200, 60)])
@pytest.mark.parametrize("units", [1e-6, 1.0])
def test_a_covariance_in_single_precision_has_as_many_exact_combinations_as_it_lacks_rank(
    m, rank, units
):
    # double precision finds the rounding of single precision: no eigenvalue is zero
    factor = units * normal(m, rank, seed=m).float()
    noise = Observation(lambda x: x, torch.zeros(m), 1e-6, noise=factor @ factor.T).noise
    assert (noise.exact, noise.count) == (m - rank, rank)


def test_a_covariance_in_single_precision_is_not_taken_for_singular_where_it_is_not():
    m = 600
    t = torch.linspace(0, 1, m).double()
    smooth = (-(t - t[:, None]).abs() / 0.5).exp()  # eigenvalues from 400 down to 1.7e-3
    noise = Observation(lambda x: x, torch.zeros(m), noise=smooth.float()).noise
    assert noise.exact == 0


def test_a_singular_covariance_of_whole_numbers_has_exact_combinations():
    noise = Observation(lambda x: x, torch.zeros(3), 1e-6, noise=torch.ones(3, 3).int()).noise
    assert (noise.exact, noise.count) == (2, 1)


def test_one_observed_number_has_its_variance_as_a_matrix_and_its_deviation_otherwise():
    x = double([[3.0]])
    for y, noise in [(1.0, [[4.0]]), (1.0, 2.0), ([1.0], [2.0]), ([1.0], [[4.0]])]:
        shaped = (lambda x: x[:, 0]) if isinstance(y, float) else (lambda x: x)
        assert Observation(shaped, y, noise=noise).residual(x).item() == 1.0
    assert Observation(lambda x: x[..., None], [[1.0]], noise=[[2.0]]).residual(x).item() == 1.0


def test_what_holds_exactly_alone_decides_what_is_feasible():
    exact = Linear([[1.0, 0.0]], [1.0], tolerance=0.25)
    noisy = Linear([[0.0, 1.0]], [0.0], noise=0.1)
    both = Linear([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0], 0.25, noise=[0.0, 0.1])
    x = double([[1.0, 50.0], [1.4, 0.0], [1.6, 0.0]])
    violation, feasible = double([0.0, 0.16, 0.36]), torch.tensor([True, True, False])
    for constraint in (both, Composite([noisy, exact], weights=[7.0, 1.0])):
        c, good = constraint.assess(x)
        torch.testing.assert_close(c, violation)
        assert torch.equal(good, feasible)
        assert constraint.tolerance == constraint.exact.tolerance == 0.25
        torch.testing.assert_close(constraint.exact.violation(x), violation)
        torch.testing.assert_close(constraint.equalities.violation(x), violation)
        torch.testing.assert_close(constraint.noisy.residual(x), 10 * x[:, 1:])
        assert constraint.noisy.exact is None
        assert constraint.exact.noisy is None
        assert constraint.noisy.is_feasible(1e9 * x).all()
    c, good = Composite([noisy, noisy]).assess(x)
    assert good.all()
    assert not c.any()
    assert Composite([exact, exact]).noisy is None
    assert noisy.exact is None
    assert noisy.equalities is None
    assert noisy.is_feasible(x).all()


def test_a_composite_with_noise_keeps_its_parts_their_weights_and_its_inequalities():
    exact, noisy = Linear([[2.0, 0.0]], [0.0], 1e-6), Linear([[0.0, 1.0]], [0.0], noise=0.5)
    bounds = Bounds(-1.0, 1.0, 1e-6)
    whole = Composite([noisy, bounds, exact], weights=[5.0, 3.0, 4.0])
    assert list(whole.parts) == [noisy, bounds, exact]
    x = double([[0.5, 1.5]])
    g = whole.intervals(x)
    # equalities with the root of their weight, inequalities, then errors in their own units
    assert g.values.tolist() == [[2.0, 0.5, 1.5, 3.0]]
    assert g.lower.tolist() == [[0.0, -1.0, -1.0, 0.0]]
    assert g.upper.tolist() == [[0.0, 1.0, 1.0, 0.0]]
    assert g.variance.tolist() == [[0.0, 0.0, 0.0, 1.0]]
    assert whole.exact.weights == [3.0, 4.0]
    assert whole.exact.violation(x).tolist() == [3 * 0.25 + 4 * 1.0]
    assert whole.violation(x).tolist() == whole.exact.violation(x).tolist()


def wrapped(name, constraint):
    if name == "units":
        return constraint.in_units(0.5, 2.0)
    if name == "units of each":
        return constraint.in_units(normal(8, seed=3), STDS[0] + torch.arange(8))
    return Decoded(constraint, torch.sin)


@pytest.mark.parametrize("name", ["units", "units of each", "decoded"])
def test_units_and_decoders_keep_apart_what_is_exact_and_what_has_errors(name):
    plain, x = made("some exact"), normal(4, 8, seed=5)
    constraint = wrapped(name, plain)
    moved = {
        "units": 2 * x + 0.5,
        "units of each": x * (STDS[0] + torch.arange(8)) + normal(8, seed=3),
        "decoded": torch.sin(x),
    }[name]
    for part in ("exact", "noisy", "equalities"):
        expected = getattr(plain, part).residual(moved)
        torch.testing.assert_close(getattr(constraint, part).residual(x), expected)
    assert torch.equal(constraint.assess(x)[0], plain.assess(moved)[0])
    assert wrapped(name, made("one")).exact is None
    assert wrapped(name, Linear(A, Y, 1e3)).noisy is None


def test_members_may_have_observations_of_their_own():
    whole = EachMember(Linear(A, torch.zeros(5), noise=0.5), torch.stack([Y, -Y]) / 0.5)
    assert whole.exact is None
    x = normal(3, 8, seed=6)
    with members.calling([1, 0, 1]):
        # targets are in units of the errors, as residuals are
        expected = (x @ A.T - torch.stack([-Y, Y, -Y])) / 0.5
        torch.testing.assert_close(whole.noisy.residual(x), expected)
        assert whole.is_feasible(x).all()
        assert not whole.violation(x).any()


@pytest.mark.parametrize("name", R)
def test_errors_of_a_statement_through_truths_have_variance_one_and_exact_values_none(name):
    truths = normal(800, 8, seed=7)
    constraint = wrapped("decoded", made(name))
    stated = through(constraint, truths, repeats=2)
    with members.calling(range(0, 1600, 2)):
        errors = stated.noisy.residual(truths)
        if constraint.exact is not None:
            assert not stated.exact.residual(truths).any()
            assert stated.is_feasible(truths).all()
    with members.calling(range(1, 1601, 2)):  # who share a truth share its errors
        assert torch.equal(stated.noisy.residual(truths), errors)
    # each covariance has a standard error of at most sqrt(2 / 800) = 0.05, of the diagonal: one
    # of at most 15 is beyond 5 of them in fewer than 1 in 50,000 sets of errors, of which these
    # are one that does not change
    gap = (errors.T @ errors) / 800 - torch.eye(errors.shape[1]).double()
    assert gap.abs().max() < 0.25
    assert errors.mean(dim=0).abs().max() < 5 / math.sqrt(800)


def test_no_two_errors_of_a_statement_are_the_same_nor_those_of_another_seed_or_of_a_member():
    noisy, truths = Linear(A, Y, noise=1.0), normal(50, 8)
    nested = Composite([Composite([noisy, noisy]), noisy, Composite([noisy])])
    found = []
    for seed in (0, 1):
        stated = through(nested, truths, seed=seed)
        with members.calling(range(50)):
            found += [part.residual(truths) for part in stated.parts]
            assert torch.equal(
                found[-1], through(nested, truths, seed=seed).parts[-1].residual(truths)
            )
    noise = MemberNoise(0, range(50), (50, 5), dtype=torch.float64)()
    found += noise.unbind()
    flat = torch.stack([part.flatten() for part in found])
    # 250 numbers each: a correlation has a standard error of 0.063, and of the 1653 the largest
    # is beyond 0.4, 6.3 of them, in 1 in 2 million sets
    assert (torch.corrcoef(flat) - torch.eye(len(flat)).double()).abs().max() < 0.4


def test_nothing_suggests_a_tolerance_where_nothing_is_exact():
    model = Gaussian(torch.zeros(8), torch.eye(8), LogLogit())
    found = diagnose(model, made("one"), normal(64, 8).float())
    assert found.suggested_tolerance is None
    assert found.projected is None
    assert found.ok
    # and what is exact is reached, whatever the errors
    mixed = Composite([Linear(A[:1], Y[:1], 1e-6), Linear(A[1:], 100 * Y[1:], noise=1e-3)])
    assert diagnose(model, mixed, normal(64, 8).float()).projected == 8


THREE, UNIT = [0.0, 1.0, 2.0], torch.eye(3).double()


def observed(noise, tolerance=None, y=THREE):
    return lambda: Observation(lambda x: x, y, tolerance, noise=noise)


def rows(A, y, noise, tolerance=None):
    return lambda: Linear(A, y, tolerance, noise=noise)


def changed(i, j, value):
    R = UNIT.clone()
    R[i, j] = value
    return R


WRONG = {
    "a negative deviation": (observed(-1.0), "must not be negative.*Got -1"),
    "NaN": (observed(math.nan), r"values that are not finite \(1 of 1\)"),
    "infinite": (observed([1.0, math.inf, 1.0]), r"values that are not finite \(1 of 3\)"),
    "complex": (observed(torch.tensor(1j)), "real numbers, got tensor"),
    "too few": (observed([1.0, 1.0]), "shape"),
    "a row": (observed([[1.0, 1.0, 1.0]]), "shape"),
    "another size": (observed(torch.eye(4)), "shape"),
    "not symmetric": (observed(changed(0, 1, 0.5)), "must be symmetric"),
    "a negative variance": (observed(changed(1, 1, -1.0)), "no negative variance"),
    "indefinite": (observed(UNIT + changed(0, 1, 3).triu(1) + changed(0, 1, 3).triu(1).T), "-2"),
    "correlated with what has no error": (
        observed(changed(0, 0, 0.0) + changed(0, 1, 0.1).triu(1) + changed(0, 1, 0.1).triu(1).T),
        "in some direction its variance is negative",
    ),
    "a tolerance beside it": (observed(1.0, 1e-3), "all values have noise"),
    "neither": (observed(None), "needs a tolerance"),
    "a deviation of zero": (observed([0.0, 1.0, 1.0]), "1 of 3 .*tolerance"),
    "singular": (observed(torch.ones(3, 3)), "2 of 3 .*tolerance"),
    "a tolerance of zero": (observed([0.0, 1.0, 1.0], 0.0), "must be positive, got 0"),
    "no values": (observed(1.0, None, []), "has no values"),
    "values that are missing": (observed(1.0, None, [0.0, math.nan, 1.0]), r"y=.* not finite"),
    "exact rows that contradict": (
        rows([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], [0.0, 1.0, 5.0], [0.0, 0.0, 1.0], 1e-6),
        r"no x satisfies .* smallest \|A x - y\|\^2 is 0.5",
    ),
    "exact combinations that contradict": (
        rows([[1.0, 0.0], [1.0, 0.0]], [0.0, 1.0], torch.ones(2, 2), 1e-6),
        r"no x satisfies .* smallest \|A x - y\|\^2 is 0.5",
    ),
    "one of both kinds for each member": (
        lambda: EachMember(made("some exact"), torch.zeros(2, 5)),
        "an equality, or an observation whose values all have noise",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_noise_is_refused_with_what_is_wrong(name):
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=message) as error:
        make()
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 300


@pytest.mark.parametrize(
    "make",
    [
        lambda: made("one"),
        lambda: made("some exact"),
        lambda: made("one").in_units(0.0, 2.0),
        lambda: made("one").in_units(0.0, torch.arange(1, 9)),
        lambda: Composite([Linear(A[:1], Y[:1], 1e-6), Linear(A[1:], Y[1:], noise=1.0)]),
        lambda: EachMember(made("one"), torch.zeros(1, 5)),
        lambda: made("some exact").noisy,
    ],
)
def test_no_closed_form_projects_on_what_has_errors(make):
    with pytest.raises(
        NotImplementedError, match="not expected to meet a noisy measurement exactly"
    ):
        make().projection(normal(1, 8))


def test_what_is_exact_beside_errors_still_has_a_closed_form():
    constraint, x = made("some exact"), normal(3, 8, seed=8)
    moved = constraint.exact.projection(x)
    assert constraint.exact.violation(moved).max() < 1e-20
    places = STDS >= 1
    expected = Linear(A[places], Y[places], 1e-6).projection(x)
    torch.testing.assert_close(moved, expected)


TAKE = {"calibrated", "smc", "mmps", "dps"}
REPORT = {"ancestral", "predictor-corrector"}  # these enforce nothing


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_would_ignore_errors_refuses_them_by_name(name, mixed):
    model = Gaussian(torch.zeros(8), torch.eye(8), LogLogit())
    noisy = made("one")
    constraint = Composite([noisy, Equality(lambda x: x[:, 0], 1e-6)]) if mixed else noisy
    kind = METHODS[name]
    if name in TAKE | REPORT:
        on(kind(), model, constraint, (8,))
        return
    name = kind.__name__.removeprefix("Tuned")  # whose kernel is PPR
    with pytest.raises(ValueError, match=rf"{name} takes exact .*'mmps' and 'dps' take"):
        on(kind(), model, constraint, (8,))


def test_a_covariance_that_is_symmetric_but_for_rounding_is_taken():
    R = torch.eye(3)
    R[0, 1] = 1e-8  # and 0 across the diagonal
    assert Observation(lambda x: x, torch.zeros(3), noise=R).noise.exact == 0


def test_what_contradicts_within_errors_is_no_contradiction():
    rows([[1.0, 0.0], [1.0, 0.0]], [0.0, 1.0], [0.0, 1.0], 1e-6)()
    rows([[1.0, 0.0], [1.0, 0.0]], [0.0, 1.0], 0.1)()


@pytest.mark.parametrize("std", [0.0, [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]])
def test_noise_of_zero_is_an_exact_constraint(std):
    A, y = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]]), torch.tensor([0.5, -0.2])
    exact, zero = Linear(A, y, atol=0.01), Linear(A, y, atol=0.01, noise=std)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert zero.noisy is None
    assert zero.inequalities is None
    assert repr(zero) == repr(exact)
    for one, other in zip(zero.intervals(x), exact.intervals(x), strict=True):
        torch.testing.assert_close(one, other)
