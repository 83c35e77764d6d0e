import math

import torch

from feasibly.constraints import Equality, Linear, log_volume


def test_of_a_linear_residual_it_is_the_volume_of_its_matrix():
    A = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    constraint = Linear(A, torch.zeros(3, dtype=torch.float64), tolerance=1e-6)
    found = log_volume(constraint, torch.randn(4, 7, dtype=torch.float64))
    torch.testing.assert_close(found, (torch.logdet(A @ A.T) / 2).expand(4))


def test_it_is_each_sample_s_own_and_counts_how_steep_the_residual_is():
    steep = Equality(lambda x: (3 * x[:, :1]).exp() * (x.norm(dim=1, keepdim=True) - 1), 1e-6)
    angle = torch.tensor([0.0, 1.0, 2.5])
    x = torch.stack((angle.cos(), angle.sin()), dim=1)
    torch.testing.assert_close(log_volume(steep, x), 3 * x[:, 0], atol=1e-5, rtol=0)


def test_fields_are_taken_as_vectors():
    constraint = Equality(lambda x: x.sum(dim=(1, 2))[:, None], 1e-6)
    found = log_volume(constraint, torch.zeros(2, 3, 4))
    torch.testing.assert_close(found, torch.full((2,), math.log(12) / 2))


def test_more_residuals_than_elements_have_no_volume():
    constraint = Equality(lambda x: torch.cat((x, x.sum(dim=1, keepdim=True)), dim=1), 1e-6)
    assert log_volume(constraint, torch.ones(2, 3)).tolist() == [-math.inf, -math.inf]


def test_a_sample_that_is_not_finite_has_no_volume_and_leaves_others_theirs():
    constraint = Equality(lambda x: (2 * x[:, :1]).exp(), 1e-6)
    found = log_volume(constraint, torch.tensor([[0.0, 1.0], [torch.nan, 0.0], [0.5, 0.0]]))
    assert found[1].isnan()
    torch.testing.assert_close(found[[0, 2]], torch.tensor([math.log(2), math.log(2) + 1]))
