"""feasibly where azula's code takes a sampler."""

from types import SimpleNamespace

import pytest
import torch

import feasibly
from feasibly.adapters import azula as adapter
from feasibly.schedules import VP

azula = pytest.importorskip("azula.sample", reason="azula is not installed", exc_type=ImportError)
denoise = pytest.importorskip("azula.denoise")
noise = pytest.importorskip("azula.noise")

MU = torch.tensor([1.0, -0.5], dtype=torch.float64)
COV = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=torch.float64)
A, Y = torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.tensor([1.5], dtype=torch.float64)


class Labelled(torch.nn.Module):
    """A backbone with a condition, as in azula's own test of its samplers."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 5)

    def forward(self, x, t, label=None):
        assert label == "cat"
        return self.layer(x)


@pytest.fixture
def denoiser():
    """azula's exact denoiser of a Gaussian."""
    covariance = pytest.importorskip("azula.linalg.covariance")
    values, vectors = torch.linalg.eigh(COV)
    full = covariance.FullCovariance(vectors, values)
    return denoise.GaussianDenoiser(MU, full, noise.VPSchedule())


def test_azulas_own_loop_over_samplers():
    """The body of azula's `test_samplers`, with a label."""
    theirs = denoise.KarrasDenoiser(Labelled(), noise.VPSchedule())
    zero_sum = feasibly.Linear(torch.ones(1, 5), torch.zeros(1), 1e-8)
    samplers = [
        azula.DDIMSampler(theirs, steps=8, silent=True),
        adapter.Sampler(theirs, zero_sum, silent=True),
    ]
    for sampler in samplers:
        x_1 = sampler.init((16, 5))
        x_0 = sampler(x_1, label="cat")
        assert x_1.shape == x_0.shape == (16, 5)
        assert torch.isfinite(x_1).all()
        assert torch.isfinite(x_0).all()
    assert zero_sum.is_feasible(x_0).all()


def test_init_draws_what_azula_draws(denoiser):
    ours, theirs = adapter.Sampler(denoiser, None), azula.DDPMSampler(denoiser)
    for given in ({}, {"mean": MU, "var": COV.diag(), "dtype": torch.float64}):
        torch.manual_seed(0)
        drawn = ours.init((3, 2), **given)
        torch.manual_seed(0)
        torch.testing.assert_close(drawn, theirs.init((3, 2), **given), rtol=0, atol=0)


def test_samples_have_the_exact_conditional(denoiser):
    """False-alarm rate below 1e-5: two statistics at 5 standard errors."""
    sampler = adapter.Sampler(denoiser, feasibly.Linear(A, Y, 1e-10), silent=True)
    torch.manual_seed(0)
    x = sampler(sampler.init((1024, 2), dtype=torch.float64))
    assert x.dtype == torch.float64
    torch.testing.assert_close(x @ A.T, Y.expand(1024, 1), rtol=0, atol=1e-5)
    K = COV @ A.T / (A @ COV @ A.T)
    mean, cov = MU + K @ (Y - A @ MU), COV - K @ A @ COV
    along = torch.tensor([2.0, -1.0], dtype=torch.float64)  # the free direction
    std = (along @ cov @ along).sqrt()
    z = (x - mean) @ along / std
    assert abs(z.mean()) < 5 / 32
    assert abs(z.square().mean() - 1) < 5 * (2 / 1024) ** 0.5


def test_torchs_seed_and_not_the_state_determines_samples(denoiser):
    sampler = adapter.Sampler(denoiser, feasibly.Linear(A, Y, 1e-10), silent=True)
    x_1 = torch.zeros(4, 2, dtype=torch.float64)
    torch.manual_seed(3)
    first, second = sampler(x_1), sampler(x_1)
    torch.manual_seed(3)
    assert torch.equal(sampler(x_1 + 7), first)
    assert not torch.equal(first, second)
    assert sampler.result.feasible.all()


def test_a_condition_has_the_rows_of_the_states():
    class Known:
        schedule = VP()

        def __call__(self, x_t, t, centre):
            return SimpleNamespace(mean=centre.expand_as(x_t))

    sampler = adapter.Sampler(Known(), None, silent=True)
    centre = torch.tensor([[0.0, 1.0], [5.0, -5.0]])
    torch.testing.assert_close(sampler(sampler.init((2, 2)), centre=centre), centre)
    with pytest.raises(ValueError, match=r"condition centre has 3 rows for 2 samples"):
        sampler(torch.zeros(2, 2), centre=torch.zeros(3, 2))


def test_what_azulas_samplers_can_and_this_one_cannot(denoiser):
    sampler = adapter.Sampler(denoiser, None)
    with pytest.raises(ValueError, match=r"batch axis.*x\[None\]"):
        sampler(sampler.init((2,)))
    with pytest.raises(NotImplementedError, match="no step from t to s"):
        sampler.step(torch.zeros(1, 2), torch.tensor(1.0), torch.tensor(0.5))
