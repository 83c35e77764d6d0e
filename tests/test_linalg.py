import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feasibly.linalg import cg

check = settings(derandomize=True, deadline=None, max_examples=30)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spd(batch, m, seed=0):
    root = normal(batch, m, m, seed=seed)
    return root @ root.mT + m * torch.eye(m)


class Operator:
    """Multiplication by one matrix a sample, which counts its applications."""

    def __init__(self, A):
        self.A, self.calls = A, 0

    def __call__(self, v):
        self.calls += 1
        return (self.A @ v[..., None]).squeeze(-1)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**16))
@check
def test_enough_iterations_solve_exactly(m, batch, seed):
    A, b = spd(batch, m, seed), normal(batch, m, seed=seed + 1)
    x = cg(Operator(A), b, iterations=2 * m, rtol=1e-13)
    torch.testing.assert_close(
        x, torch.linalg.solve(A, b[..., None]).squeeze(-1), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("rtol", [1e-1, 1e-3, 1e-8])
def test_residual_meets_the_tolerance(rtol):
    A, b = spd(5, 20), normal(5, 20, seed=1)
    x = cg(Operator(A), b, iterations=200, rtol=rtol)
    residual = (b - Operator(A)(x)).norm(dim=1)
    assert (residual <= 1.001 * rtol * b.norm(dim=1)).all()


def test_a_looser_tolerance_takes_fewer_applications():
    calls = []
    for rtol in (1e-1, 1e-4, 1e-10):
        operator = Operator(spd(3, 20))
        cg(operator, normal(3, 20), iterations=200, rtol=rtol)
        calls.append(operator.calls)
    assert calls[0] < calls[1] < calls[2] < 200


def test_each_iteration_applies_the_operator_once():
    operator = Operator(spd(3, 20))
    cg(operator, normal(3, 20), iterations=4, rtol=0.0)
    assert operator.calls == 4


@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_as_many_iterations_as_distinct_eigenvalues_are_enough(distinct):
    eigenvalues = torch.tensor([1.0, 5.0, 40.0]).double()[torch.arange(12) % distinct]
    Q = torch.linalg.qr(normal(12, 12)).Q
    A, b = (Q * eigenvalues) @ Q.T, normal(1, 12, seed=1)
    operator = Operator(A[None])
    x = cg(operator, b, iterations=50, rtol=1e-10)
    assert operator.calls == distinct
    torch.testing.assert_close(x[0], torch.linalg.solve(A, b[0]), rtol=1e-9, atol=1e-9)


def test_every_iterate_is_the_best_of_its_krylov_space():
    A, b = spd(1, 10)[0], normal(1, 10, seed=1)
    for k in (1, 2, 3, 4):
        powers = [b[0]]
        for _ in range(k - 1):
            powers.append(A @ powers[-1])
        K = torch.linalg.qr(torch.stack(powers, dim=1)).Q
        # the least error in the norm of A, over span(b, A b, ..., A^(k-1) b)
        best = K @ torch.linalg.solve(K.T @ A @ K, K.T @ b[0])
        torch.testing.assert_close(cg(Operator(A[None]), b, k, rtol=0.0)[0], best)


def test_each_sample_stops_on_its_own():
    A = spd(4, 15, seed=2)
    A[1] = 3 * torch.eye(15)  # done after one iteration, when the others are far from it
    b = normal(4, 15, seed=3)
    together = cg(Operator(A), b, iterations=60, rtol=1e-6)
    for i in range(4):
        alone = cg(Operator(A[i : i + 1]), b[i : i + 1], iterations=60, rtol=1e-6)
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-12, atol=1e-14)


def test_a_sample_that_has_met_its_tolerance_keeps_its_iterate():
    A, b = spd(2, 15), normal(2, 15, seed=1)
    A[0] = torch.diag(torch.linspace(1, 2, 15)).double()
    loose = cg(Operator(A[:1]), b[:1], iterations=60, rtol=1e-2)
    # more accuracy was possible: the sample stopped although its batch went on
    residual = (b[:1] - Operator(A[:1])(loose)).norm() / b[0].norm()
    assert 1e-6 < residual <= 1e-2
    torch.testing.assert_close(cg(Operator(A), b, iterations=60, rtol=1e-2)[:1], loose)


@pytest.mark.parametrize("sign", [-1.0, 0.0], ids=["negative", "zero"])
def test_a_direction_without_positive_curvature_stops_its_sample_only(sign):
    A, b = spd(3, 6), normal(3, 6, seed=1)
    A[1] = sign * torch.eye(6)
    x = cg(Operator(A), b, iterations=20, rtol=1e-12)
    assert x.isfinite().all()
    assert (x[1] == 0).all()
    others = cg(Operator(A[[0, 2]]), b[[0, 2]], iterations=20, rtol=1e-12)
    torch.testing.assert_close(x[[0, 2]], others, rtol=1e-12, atol=1e-14)


def test_an_indefinite_system_gives_finite_iterates():
    A = torch.diag_embed(torch.linspace(-1, 3, 12).double()).expand(5, 12, 12)
    for iterations in range(1, 15):
        assert cg(Operator(A), normal(5, 12), iterations, rtol=0.0).isfinite().all()


def test_a_sample_with_a_non_finite_operator_disturbs_no_other():
    A, b = spd(3, 6), normal(3, 6, seed=1)
    broken = A.clone()
    broken[1] = torch.nan
    x = cg(Operator(broken), b, iterations=20)
    assert x.isfinite().all()
    expected = cg(Operator(A[[0, 2]]), b[[0, 2]], iterations=20)
    torch.testing.assert_close(x[[0, 2]], expected, rtol=1e-12, atol=1e-14)


def test_a_singular_but_consistent_system_is_solved():
    J = normal(3, 8, seed=1)
    A = (J.T @ J)[None]  # rank three
    b = Operator(A)(normal(1, 8))
    x = cg(Operator(A), b, iterations=30, rtol=1e-10)
    torch.testing.assert_close(Operator(A)(x), b, rtol=0, atol=1e-7)


def test_a_zero_right_hand_side_costs_nothing():
    operator = Operator(spd(2, 5))
    x = cg(operator, torch.zeros(2, 5).double(), iterations=10)
    assert torch.equal(x, torch.zeros(2, 5).double())
    assert operator.calls == 0


def test_a_zero_right_hand_side_among_others_has_the_zero_solution():
    b = normal(3, 5)
    b[1] = 0
    x = cg(Operator(spd(3, 5)), b, iterations=20, rtol=0.0)
    assert (x[1] == 0).all()
    assert x.isfinite().all()


def test_single_precision_stays_single_and_is_as_good_as_it_can_be():
    A, b = spd(3, 10).float(), normal(3, 10).float()
    x = cg(Operator(A), b, iterations=50, rtol=1e-6)
    assert x.dtype == torch.float32
    torch.testing.assert_close(
        x, torch.linalg.solve(A, b[..., None]).squeeze(-1), rtol=0, atol=1e-5
    )


def test_the_right_hand_side_is_not_modified():
    b = normal(2, 5)
    before = b.clone()
    cg(Operator(spd(2, 5)), b, iterations=5)
    assert torch.equal(b, before)
