"""The linear systems of Gauss-Newton."""

import torch

from feasibly.minimizers.gauss_newton import SMALL, solved


def systems(m, rank):
    J = torch.randn(5, rank, 3 * m, generator=torch.Generator().manual_seed(m)).double()
    mix = torch.randn(m, rank, generator=torch.Generator().manual_seed(1)).double()
    gram = (mix @ J) @ (mix @ J).mT
    return gram, gram @ torch.ones(5, m, 1).double()


def test_a_factorisation_solves_what_a_pseudo_inverse_does():
    gram, r = systems(4 * SMALL, 4 * SMALL)
    torch.testing.assert_close(solved(gram, r), torch.linalg.pinv(gram, hermitian=True) @ r)


def test_a_singular_system_is_solved_by_least_squares_and_disturbs_no_other():
    gram, r = systems(4 * SMALL, 4 * SMALL)
    gram[2, -1], gram[2, :, -1], r[2, -1] = 0.0, 0.0, 0.0  # a residual that nothing changes
    v = solved(gram, r)
    assert v.isfinite().all()
    torch.testing.assert_close(gram @ v, r)
    assert v[2, -1] == 0
    for i in (0, 1, 3, 4):
        torch.testing.assert_close(v[i], torch.ones_like(v[i]), rtol=1e-6, atol=1e-6)
