"""Derivatives of values that follow from one noise level to the next, against closed forms."""

from functools import partial

import pytest
import torch

from feasibly.samplers.slopes import Common, Slopes, followed, spanned, whitened
from tests.samplers.conftest import normal

COV = torch.diag(torch.tensor([4.0, 1.0, 0.25, 0.01], dtype=torch.float64))


def covariance(C, level):
    """Of normal data with the covariance C given a state at a noise level."""
    return torch.linalg.inv(torch.linalg.inv(C) + torch.eye(len(C)).double() / level**2)


@pytest.mark.parametrize("level", [0.9, 0.01])
def test_along_principal_directions_of_normal_data_slopes_are_exact(level):
    """Also of other combinations of the same rows, in other units."""
    old = torch.eye(4).double()[[0, 2, 3]] * torch.tensor([[2.0], [1e-3], [50.0]]).double()
    before = Slopes(old[None], (old @ covariance(COV, 1.5))[None], 1.5)
    J = normal(3, 3) @ old
    found = followed(before, J[None], level)[0]
    torch.testing.assert_close(found, J @ covariance(COV, level), rtol=1e-6, atol=1e-9)


def test_along_principal_directions_slopes_are_exact_after_many_steps():
    old = torch.eye(4).double()[[1, 2]]
    now = Slopes(old[None], (old @ covariance(COV, 5.0))[None], 5.0)
    for k, level in enumerate((3.0, 1.0, 0.5, 0.1)):
        J = normal(2, 2, seed=k) @ old
        now = Slopes(J[None], followed(now, J[None], level), level)
    torch.testing.assert_close(now.VJ[0], J @ covariance(COV, 0.1), rtol=1e-6, atol=1e-9)


def test_variances_of_any_rows_are_too_large_and_never_too_small():
    old = normal(1, 3, 4)
    before = Slopes(old, old @ covariance(COV, 1.5), 1.5)
    S = (followed(before, old, 0.7) @ old.mT)[0]
    exact = (old @ covariance(COV, 0.7) @ old.mT)[0]
    gap = torch.linalg.eigvalsh((S + S.mT) / 2 - exact)
    assert gap.min() > -1e-9
    assert gap.max() > 1e-3, "they are too large"


@pytest.mark.parametrize("apart", [1.0, 1e-3, 3e-4, 0.0])
def test_rows_that_all_states_share_need_not_be_given_again(apart):
    """Also if they are nearly the same, where variances may be too large, and never too small."""
    one, other = normal(2, 4)
    old = torch.stack([one, one + apart * other])[None].expand(3, -1, -1)
    levels = torch.tensor([0.5, 2.0, 8.0]).double()
    before = Slopes(old, old @ torch.stack([covariance(COV, level) for level in levels]), 1.5)
    found = followed(before, None, 0.7)
    if apart == 1:
        torch.testing.assert_close(found, followed(before, old, 0.7))
    gamma = 1 / 0.7**2 - 1 / 1.5**2
    for S, V in zip(found @ old.mT, map(partial(covariance, COV), levels), strict=True):
        exact = old[0] @ torch.linalg.inv(torch.linalg.inv(V) + gamma * torch.eye(4)) @ old[0].T
        gap = torch.linalg.eigvalsh((S + S.mT) / 2 - exact)
        assert gap.min() > -1e-6 * exact.trace()


def test_a_row_that_is_repeated_changes_nothing():
    row, J = normal(1, 1, 4), normal(1, 1, 4, seed=1)
    one, four = (
        followed(Slopes(r, r @ covariance(COV, 2.0), 2.0), J, 0.5)
        for r in (row, row.repeat(1, 4, 1))
    )
    torch.testing.assert_close(one, four, rtol=1e-4, atol=1e-6)


def test_for_data_that_vary_alike_along_all_directions_slopes_are_exact_for_any_rows():
    C = 0.5 * torch.eye(4).double()
    old, J = normal(1, 2, 4), normal(1, 2, 4, seed=1)
    before = Slopes(old, old @ covariance(C, 2.0), 2.0)
    found = followed(before, J, 0.4)
    torch.testing.assert_close(found, J @ covariance(C, 0.4), rtol=1e-6, atol=1e-8)


def test_equal_flat_and_lost_rows_leave_other_states_as_they_are():
    old = normal(4, 2, 4)
    old[1, 1], old[2, 1], old[3, 0] = old[1, 0], 0.0, torch.nan
    before = Slopes(old, old @ covariance(COV, 2.0), 2.0)
    J = old.clone()
    found = followed(before, J, 1.0)
    alone = followed(Slopes(*(part[:1] for part in before[:2]), 2.0), J[:1], 1.0)
    torch.testing.assert_close(found[:1], alone)
    torch.testing.assert_close(found[1, 1], found[1, 0], rtol=1e-6, atol=1e-6)
    assert found[:3].isfinite().all()
    assert not found[2, 1].any()


def test_a_basis_spans_the_rows_and_leaves_out_those_that_say_nothing():
    two = normal(2, 5)
    rows = torch.cat([two, normal(4, 2, seed=1) @ two, torch.zeros(1, 5), 1e-5 * two[:1]])
    rows = torch.cat([rows, torch.full((1, 5), torch.nan)])
    basis = spanned(rows, 9)
    assert basis.shape == (2, 5)
    assert torch.equal(spanned(rows, 1), basis[:1])
    torch.testing.assert_close(basis @ basis.T, torch.eye(2).double())
    torch.testing.assert_close(two @ basis.T @ basis, two)


def test_products_are_those_of_the_state_whose_estimate_is_nearest():
    wide, narrow = COV, COV.flip(0) / 10
    basis = torch.eye(4).double()[:3]
    known = Common(
        torch.tensor([[0.0] * 4, [9.0] * 4]).double(), basis, basis @ torch.stack([wide, narrow])
    )
    J = normal(3, 2, 4) * torch.tensor([1.0, 1.0, 1.0, 0.0]).double()
    x_0 = torch.tensor([[1.0] * 4, [8.0] * 4, [-3.0] * 4])
    expected = torch.stack([J[0] @ wide, J[1] @ narrow, J[2] @ wide])
    torch.testing.assert_close(known.of(J, x_0), expected)
    # outside of the basis it is a variance, the mean of those that are known
    other = torch.eye(4).double()[3:].expand(3, 1, 4)
    found = known.of(other, x_0)[:, 0]
    spread = torch.stack([wide, narrow, wide]).diagonal(dim1=1, dim2=2)
    mean = spread[:, :3].mean(dim=1)
    torch.testing.assert_close(found, mean[:, None] * other[:, 0])


def test_in_the_basis_of_values_their_derivatives_are_orthonormal():
    J = normal(2, 3, 4) * torch.tensor([1e3, 1.0, 1e-2]).double()[:, None]
    frame = whitened(J, J @ COV)
    one = torch.eye(3).double().expand(2, 3, 3)
    torch.testing.assert_close(frame.basis @ J @ J.mT @ frame.basis.mT, one)
    torch.testing.assert_close(frame.covariance, frame.basis @ J @ COV @ J.mT @ frame.basis.mT)
    torch.testing.assert_close(2 * frame.log_volume, torch.logdet(J @ J.mT))
