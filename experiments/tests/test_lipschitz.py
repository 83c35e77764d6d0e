import pytest
import torch

from experiments.studies.lipschitz import levels, local_lipschitz
from feasibly.constraints import Linear
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.schedules import VP

EXACT = GaussNewton(damping=0.0, max_distance=None)
KEYS = {"sigma", "alpha", "max", "q50", "q90", "q99", "contractive"}


def slanted(y=0.3):
    A = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    return Linear(A, torch.tensor([y], dtype=torch.float64), tolerance=1e-20)


def test_the_signal_scale_is_that_of_the_schedule():
    r"""With x_t = alpha x_0 + noise the factor is v alpha / (v alpha^2 + sigma^2), which can be
    above one for v > 1; times alpha it cannot."""
    v = 4.0
    oracle = Gaussian(torch.zeros(2), v * torch.eye(2), VP())
    rows = levels(oracle, slanted(), EXACT, members=8, steps=16)
    factors = [v * row["alpha"] / (v * row["alpha"] ** 2 + row["sigma"] ** 2) for row in rows]
    assert [row["max"] for row in rows] == pytest.approx(factors, rel=1e-5)
    assert max(factors) > 1.1
    assert all(row["contractive"] == 1 for row in rows)


def test_the_jacobian_is_that_of_the_map_for_every_state():
    M = torch.tensor([[1.0, 3.0], [-2.0, 0.5]], dtype=torch.float64)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    L = local_lipschitz(lambda x: (x @ M.T).sin(), x, 1e-5)
    J = (x @ M.T).cos()[:, :, None] * M
    torch.testing.assert_close(L, torch.linalg.svdvals(J)[:, 0], rtol=1e-8, atol=0)
    torch.testing.assert_close(local_lipschitz(torch.clone, x, 1e-5), torch.ones_like(x[:, 0]))


def test_a_state_whose_difference_is_not_finite_is_no_contraction_and_spoils_no_other():
    x = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    L = local_lipschitz(lambda x: x.sqrt() * 0 + x, x, 1e-5)
    assert L[0].item() == pytest.approx(1)
    assert L[1].item() == 1e300
