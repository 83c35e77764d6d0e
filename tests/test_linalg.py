import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.linalg import cg, eigh, extremes, gmres, least_squares, square_root
from tests.tensors import normal

check = settings(derandomize=True, deadline=None, max_examples=15)
both_solvers = pytest.mark.parametrize("solve", [cg, gmres], ids=["cg", "gmres"])


def spd(batch, m, seed=0):
    root = normal(batch, m, m, seed=seed)
    return root @ root.mT + m * torch.eye(m)


def regular(batch, m, seed=0):
    """Matrices that are far from symmetric, and from singular."""
    return normal(batch, m, m, seed=seed) / m**0.5 + 2 * torch.eye(m)


def exact(A, b):
    return torch.linalg.solve(A, b[..., None]).squeeze(-1)


def krylov(A, b, k):
    """An orthonormal basis of span(b, A b, ..., A^(k-1) b)."""
    powers = [b]
    for _ in range(k - 1):
        powers.append(A @ powers[-1])
    return torch.linalg.qr(torch.stack(powers, dim=1)).Q


class Operator:
    """Multiplication by one matrix a sample, which remembers what it was applied to."""

    def __init__(self, A):
        self.A, self.seen = A, []

    @property
    def calls(self):
        return len(self.seen)

    def __call__(self, v):
        self.seen.append(v.clone())
        return (self.A @ v[..., None]).squeeze(-1)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**16))
@check
def test_gmres_solves_systems_without_symmetry_in_as_many_iterations_as_unknowns(m, batch, seed):
    A, b = regular(batch, m, seed), normal(batch, m, seed=seed + 1)
    x = gmres(Operator(A), b, iterations=m, rtol=0.0).x
    torch.testing.assert_close(
        Operator(A)(x), b, rtol=0, atol=1e-9 * torch.linalg.cond(A).max().item()
    )


@both_solvers
def test_residual_meets_the_tolerance_and_a_looser_one_takes_fewer_applications(solve):
    A, b, calls = spd(5, 20), normal(5, 20, seed=1), []
    before = b.clone()
    for rtol in (1e-1, 1e-3, 1e-8):
        operator = Operator(A)
        x, weights = solve(operator, b, iterations=200, rtol=rtol)
        calls.append(operator.calls)
        assert weights.shape == (5, operator.calls)
        residual = (b - Operator(A)(x)).norm(dim=1)
        assert (residual <= 1.001 * rtol * b.norm(dim=1)).all()
    assert calls[0] < calls[1] < calls[2] < 200
    assert (residual > 0).all()
    assert torch.equal(b, before)


@both_solvers
def test_as_many_iterations_as_distinct_eigenvalues_are_enough(solve):
    for distinct in (1, 2, 3):
        eigenvalues = torch.tensor([1.0, 5.0, 40.0]).double()[torch.arange(12) % distinct]
        Q = torch.linalg.qr(normal(12, 12)).Q
        A, b = (Q * eigenvalues) @ Q.T, normal(1, 12, seed=1)
        operator = Operator(A[None])
        x = solve(operator, b, iterations=50, rtol=1e-10).x
        assert operator.calls == distinct
        torch.testing.assert_close(x[0], torch.linalg.solve(A, b[0]), rtol=1e-9, atol=1e-9)


def test_every_iterate_of_cg_is_the_best_of_its_krylov_space():
    for k in (1, 2, 3, 4):
        A, b = spd(1, 10)[0], normal(1, 10, seed=1)
        K = krylov(A, b[0], k)
        # the least error in the norm of A
        best = K @ torch.linalg.solve(K.T @ A @ K, K.T @ b[0])
        torch.testing.assert_close(cg(Operator(A[None]), b, k, rtol=0.0).x[0], best)


def test_every_iterate_of_gmres_has_the_least_residual_in_its_krylov_space():
    for k in (1, 2, 3, 4):
        A, b = regular(3, 10), normal(3, 10, seed=1)
        x = gmres(Operator(A), b, k, rtol=0.0).x
        for i in range(3):
            K = krylov(A[i], b[i], k)
            best = K @ torch.linalg.lstsq(A[i] @ K, b[i][:, None]).solution.squeeze(1)
            torch.testing.assert_close(x[i], best)


@both_solvers
@pytest.mark.parametrize("rtol", [0.0, 1e-2])
@pytest.mark.parametrize("iterations", [1, 3, 6, 9])
def test_the_solution_is_made_of_the_vectors_that_the_operator_was_applied_to(
    solve, rtol, iterations
):
    A, b = spd(4, 6, seed=2), normal(4, 6, seed=3)
    A[1] = 3 * torch.eye(6)  # done after one iteration: its later weights must be zero
    A[2] = torch.nan
    b[3] = 0
    operator = Operator(A)
    x, weights = solve(operator, b, iterations, rtol)
    assert weights.shape == (4, operator.calls)
    vectors = torch.stack(operator.seen, dim=1)
    torch.testing.assert_close(x, torch.einsum("bk,bkm->bm", weights, vectors))
    assert (x[[0, 1]] != 0).all()
    if rtol:  # else it goes on with what rounding has left
        assert (weights[1, 1:] == 0).all()
    # so that what A made of them is what it makes of x
    whole = [0, 1, 3]
    images = torch.stack([(A @ v[..., None]).squeeze(-1) for v in operator.seen], dim=1)
    torch.testing.assert_close(
        Operator(A[whole])(x[whole]), torch.einsum("bk,bkm->bm", weights, images)[whole]
    )


@both_solvers
def test_each_sample_stops_on_its_own(solve):
    A = spd(4, 15, seed=2)
    A[1] = 3 * torch.eye(15)  # done after one iteration, when the others are far from it
    b = normal(4, 15, seed=3)
    together = solve(Operator(A), b, iterations=60, rtol=1e-6).x
    for i in range(4):
        alone = solve(Operator(A[i : i + 1]), b[i : i + 1], iterations=60, rtol=1e-6).x
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sign", [-1.0, 0.0], ids=["negative", "zero"])
def test_a_direction_without_positive_curvature_stops_its_sample_only(sign):
    A, b = spd(3, 6), normal(3, 6, seed=1)
    A[1] = sign * torch.eye(6)
    x = cg(Operator(A), b, iterations=20, rtol=1e-12).x
    assert x.isfinite().all()
    assert (x[1] == 0).all()
    others = cg(Operator(A[[0, 2]]), b[[0, 2]], iterations=20, rtol=1e-12).x
    torch.testing.assert_close(x[[0, 2]], others, rtol=1e-12, atol=1e-14)


@both_solvers
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_sample_with_a_non_finite_operator_disturbs_no_other(solve, bad):
    A, b = spd(3, 6), normal(3, 6, seed=1)
    broken = A.clone()
    broken[1] = bad
    x, weights = solve(Operator(broken), b, iterations=20)
    assert x.isfinite().all()
    assert (weights[1] == 0).all()
    expected = solve(Operator(A[[0, 2]]), b[[0, 2]], iterations=20).x
    torch.testing.assert_close(x[[0, 2]], expected, rtol=1e-12, atol=1e-14)


@both_solvers
def test_an_operator_that_breaks_down_later_leaves_the_iterate_before(solve):
    A, b = spd(2, 6), normal(2, 6, seed=1)
    calls = 0

    def breaks(v):
        nonlocal calls
        calls += 1
        out = (A @ v[..., None]).squeeze(-1)
        if calls > 2:
            out[0] = torch.nan
        return out

    x = solve(breaks, b, iterations=20, rtol=1e-12).x
    torch.testing.assert_close(x[0], solve(Operator(A), b, 2, rtol=1e-12).x[0])
    torch.testing.assert_close(x[1], exact(A, b)[1])


SINGULAR = {
    "zero": torch.zeros(3, 3),
    "nilpotent": torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
    "projection": torch.diag(torch.tensor([1.0, 1.0, 0.0])),
}


@both_solvers
@pytest.mark.parametrize("A", SINGULAR.values(), ids=SINGULAR)
def test_an_inconsistent_singular_system_gives_finite_iterates(solve, A):
    b = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]).double()
    A = A.double().expand(3, 3, 3)
    for iterations in range(1, 6):
        x, weights = solve(Operator(A), b, iterations, rtol=0.0)
        assert x.isfinite().all()
        assert weights.isfinite().all()
        if solve is gmres:  # nothing is made worse
            assert ((b - Operator(A)(x)).norm(dim=1) <= b.norm(dim=1) + 1e-12).all()


@both_solvers
def test_a_zero_right_hand_side_among_others_has_the_zero_solution(solve):
    b = normal(3, 5)
    b[1] = 0
    x = solve(Operator(spd(3, 5)), b, iterations=20, rtol=0.0).x
    assert (x[1] == 0).all()
    assert x.isfinite().all()
    operator = Operator(spd(3, 5))
    assert solve(operator, 0 * b, iterations=10).weights.shape == (3, 0)
    assert operator.calls == 0


@both_solvers
def test_single_precision_stays_single_and_is_as_good_as_it_can_be(solve):
    A, b = spd(3, 10).float(), normal(3, 10).float()
    x, weights = solve(Operator(A), b, iterations=50, rtol=1e-6)
    assert x.dtype == weights.dtype == torch.float32
    torch.testing.assert_close(x, exact(A, b), rtol=0, atol=1e-5)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**16))
@check
def test_enough_iterations_give_the_exact_square_root(m, batch, seed):
    A, b = spd(batch, m, seed), normal(batch, m, seed=seed + 1)
    values, vectors = torch.linalg.eigh(A)
    root = (vectors * values.sqrt()[:, None]) @ vectors.mT
    expected = (root @ b[..., None]).squeeze(-1)
    operator = Operator(A)
    found = square_root(operator, b, m)
    assert operator.calls == m
    torch.testing.assert_close(found.x, expected)
    torch.testing.assert_close(found.largest, values[:, -1])


def test_a_square_root_ends_where_it_has_converged_for_every_sample():
    near = torch.linspace(1.0, 1.2, 40).double()
    far = torch.logspace(-3, 0, 40).double()
    b = normal(2, 40)
    A = Operator(torch.stack([near, near]).diag_embed())
    found = square_root(A, b, 40, rtol=1e-3).x
    assert A.calls < 8
    torch.testing.assert_close(found, near.sqrt() * b, rtol=1e-3, atol=1e-3)
    # the size of the operator does not matter
    large = Operator(1e4 * torch.stack([near, near]).diag_embed())
    torch.testing.assert_close(square_root(large, b, 40, rtol=1e-3).x, 100 * found)
    assert large.calls == A.calls
    # beside a sample that goes on, a member's product is the same, and that one's is right too
    B = Operator(torch.stack([near, far]).diag_embed())
    beside = square_root(B, b, 40, rtol=1e-3).x
    assert A.calls < B.calls < 40
    torch.testing.assert_close(beside[0], found[0], rtol=1e-12, atol=1e-12)
    expected = far.sqrt() * b[1]
    assert (beside[1] - expected).norm() < 0.02 * expected.norm()


def test_a_square_root_goes_on_while_it_has_found_negative_values_alone():
    A = torch.tensor([-5.0, -4.0, -3.0, 2.0, 1.0, 0.5]).double().diag()
    b = torch.ones(1, 6).double()
    whole, stopped = (square_root(Operator(A), b, 6, rtol=rtol) for rtol in (0.0, 1e-3))
    expected = torch.tensor([[0.0, 0.0, 0.0, 2.0, 1.0, 0.5]]).double().sqrt()
    torch.testing.assert_close(whole.x, expected)
    torch.testing.assert_close(stopped.x, expected)
    torch.testing.assert_close(stopped.largest, torch.tensor([2.0]).double())


def test_one_iteration_gives_the_square_root_of_rank_one_and_else_one_of_its_length():
    u = normal(6)
    A, b = 9 * torch.outer(u, u) / u.square().sum(), normal(3, 6)
    found = square_root(lambda v: v @ A, b, 1)
    torch.testing.assert_close(found.x, b @ A / 3)
    torch.testing.assert_close(found.largest, torch.full((3,), 9.0).double())
    A = spd(3, 6)
    product = (A @ b[..., None]).squeeze(2)
    found = square_root(Operator(A), b, 1).x
    torch.testing.assert_close(found.square().sum(dim=1), (product * b).sum(dim=1))
    torch.testing.assert_close(torch.cosine_similarity(found, product), torch.ones(3).double())
    zero = square_root(lambda v: v, torch.zeros(1, 6), 1)
    assert not zero.x.any()
    small = square_root(lambda v: v, torch.full((1, 6), 1e-30), 1).x  # whose square is no number
    torch.testing.assert_close(small, torch.full((1, 6), 1e-30), rtol=1e-6, atol=0.0)
    negative = square_root(lambda v: -v, b, 1)
    assert not negative.x.any()
    assert not negative.largest.any()


def test_a_square_root_is_each_sample_s_own_and_keeps_shape_and_type():
    A, b = spd(3, 4), normal(3, 2, 2).float()

    def root(rows):
        def apply(v):
            return (A[rows] @ v.flatten(1).double()[..., None]).reshape(v.shape).to(v)

        return square_root(apply, b[rows], 2).x

    together = root([0, 1, 2])
    assert (together.shape, together.dtype) == (b.shape, b.dtype)
    torch.testing.assert_close(together[1:2], root([1]))


def test_a_sample_that_is_not_finite_leaves_the_others_square_roots_alone():
    for iterations in (1, 2, 4):
        A, b = spd(3, 6), normal(3, 6)
        alone = square_root(Operator(A), b, iterations).x
        b[1] = torch.nan
        found = square_root(Operator(A), b, iterations).x
        assert found[1].isnan().all()
        torch.testing.assert_close(found[[0, 2]], alone[[0, 2]])


def test_eigenvalues_of_a_matrix_that_is_not_finite_are_nan_and_others_as_they_are():
    A = spd(3, 4)
    expected = torch.linalg.eigvalsh(A)
    A[1, 2, 3] = torch.inf
    values, vectors = eigh(A)
    assert values[1].isnan().all()
    assert vectors[1].isnan().all()
    torch.testing.assert_close(values[[0, 2]], expected[[0, 2]])
    values, vectors = eigh(torch.tensor([[[2.0]], [[math.inf]]]))  # matrices of one number
    assert (values[0].item(), vectors[0].item()) == (2.0, 1.0)
    assert values[1].isnan().all()
    assert vectors[1].isnan().all()


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**16))
@check
def test_least_squares_solve_exactly_where_the_operator_is_positive(m, batch, seed):
    A, b = spd(batch, m, seed), normal(batch, m, seed=seed + 1)
    found = least_squares(Operator(A), b, m, rtol=1e-12, floor=0.0)
    expected = torch.linalg.solve(A, b)
    torch.testing.assert_close(found.x, expected, rtol=1e-6, atol=1e-8)
    assert found.weights.shape[1] == m


def test_least_squares_bound_what_small_singular_values_make_long():
    U = torch.linalg.qr(normal(4, 4)).Q
    A = (U * torch.tensor([1.0, -0.5, 1e-3, -1e-3]).double()) @ U.T
    b = U.sum(dim=1)[None]  # one in every direction
    found = least_squares(lambda v: v @ A, b, 4, rtol=1e-12, floor=0.01).x
    expected = torch.tensor([[1.0, -2.0, 10.0, -10.0]]).double()
    torch.testing.assert_close(found @ U, expected)


def test_least_squares_take_the_least_eigenvalue_that_is_known_for_the_floor():
    U = torch.linalg.qr(normal(4, 4)).Q
    A = (U * torch.tensor([100.0, 1.0, 0.5, -3.0]).double()) @ U.T
    b = U.sum(dim=1)[None]
    found = least_squares(lambda v: v @ A, b, 4, rtol=1e-12, least=1.0).x
    torch.testing.assert_close(found @ U, torch.tensor([[0.01, 1.0, 0.5, -1 / 3]]).double())


@given(st.integers(1, 8), st.integers(1, 4), st.floats(0, 1), st.integers(0, 2**16))
@check
def test_least_squares_never_make_the_misfit_larger(m, iterations, floor, seed):
    """Of an operator that is neither symmetric nor positive."""
    A, b = normal(2, m, m, seed=seed), normal(2, m, seed=seed + 1)
    x = least_squares(Operator(A), b, iterations, floor=floor).x
    misfit = (Operator(A)(x) - b).norm(dim=1)
    assert (misfit <= b.norm(dim=1) * (1 + 1e-9)).all()


def test_a_singular_value_counts_as_no_less_than_the_antisymmetric_part_along_it():
    """Its antisymmetric part has the length 1 / 2 in a plane, and none along the third axis."""
    b = torch.ones(1, 3).double()
    weak = torch.tensor([[0.1, -1.0], [1e-6, 0.1]]).double()
    A = torch.block_diag(weak, torch.tensor([[0.05]]).double())
    x = least_squares(lambda v: v @ A.T, b, 3, rtol=1e-12, floor=0.0).x
    U, values, V = torch.linalg.svd(weak)
    bounded = torch.maximum(values.square(), torch.tensor(0.25).double())
    expected = V.T @ ((U.T @ b[0, :2]) * values / bounded)
    torch.testing.assert_close(x[0, :2], expected, rtol=1e-5, atol=1e-9)
    assert x[0, 2].item() == pytest.approx(20.0)


@pytest.mark.parametrize("tilt", [0.0, 1e-4])
def test_least_squares_go_on_where_a_direction_alone_lowers_nothing(tilt):
    """As of an operator with eigenvalues of both signs, and as much of b along each."""
    angle = torch.tensor(0.3).double()
    U = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).reshape(2, 2)
    A = (U * torch.tensor([1.0, -1.0]).double()) @ U.T
    b = (U @ torch.tensor([1.0, 1.0 + tilt]).double())[None]
    x = least_squares(lambda v: v @ A, b, 4).x
    torch.testing.assert_close(x @ A, b, rtol=1e-3, atol=1e-3)


def test_the_extremes_of_an_operator_are_found_in_as_many_iterations_as_it_has_values():
    U = torch.linalg.qr(normal(6, 6)).Q
    values = torch.tensor([[-2.0, -2, 1, 1, 7, 7], [0.5, 0.5, 1, 1, 3, 3]]).double()
    A = (U * values[:, None]) @ U.T
    least, most = extremes(Operator(A), normal(2, 6), 3)
    torch.testing.assert_close(torch.stack([least, most]), values[:, [0, -1]].T.contiguous())


@pytest.mark.parametrize("least", [None, 1e-3])
def test_least_squares_take_no_more_products_than_an_operator_of_low_rank_needs(least):
    U = torch.linalg.qr(normal(8, 2)).Q
    A, taken = (U * torch.tensor([4.0, 1.0]).double()) @ U.T, []

    def product(v):
        taken.append(v)
        return v @ A

    b = (U @ torch.ones(2).double())[None]
    found = least_squares(product, b, 8, least=least).x
    torch.testing.assert_close(found @ U, torch.tensor([[0.25, 1.0]]).double())
    assert len(taken) == 2


def test_least_squares_stop_alike_in_all_units():
    """A direction that would hardly change the misfit ends a space, whatever its units are."""
    A = normal(2, 6, 6)
    A, b = A @ A.mT + torch.eye(6).double(), normal(2, 6, seed=1)
    one, other = (
        least_squares(lambda v, c=c: c * (A @ v[..., None])[..., 0], b, 6, 1e-2)
        for c in (1.0, 1e6)
    )
    assert one.weights.shape == other.weights.shape
    torch.testing.assert_close(1e6 * other.x, one.x)
