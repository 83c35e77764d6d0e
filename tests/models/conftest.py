"""Exact networks: what a perfectly trained one of any parametrisation would return for a known
mixture, from formulas of its own."""

import pytest
import torch
from torch import nn

from feasibly.oracles import GaussianMixture
from feasibly.schedules import VE

MU = torch.tensor([[1.2, 0.4], [-0.9, 0.8], [0.1, -1.1]])
COV = torch.tensor(
    [[[0.2, 0.1], [0.1, 0.3]], [[0.1, 0.0], [0.0, 0.4]], [[0.3, -0.1], [-0.1, 0.1]]]
)
WEIGHTS = torch.tensor([0.5, 0.3, 0.2])


@pytest.fixture
def mixture():
    """The exact denoiser of the mixture, under a schedule."""
    return lambda schedule: GaussianMixture(WEIGHTS, MU, COV, schedule)


@pytest.fixture
def data():
    """Samples of the mixture."""
    generator = torch.Generator().manual_seed(0)
    k = torch.multinomial(WEIGHTS, 512, replacement=True, generator=generator)
    z = torch.randn(512, 2, generator=generator, dtype=torch.float64)
    roots = torch.linalg.cholesky(COV.double())
    return (MU[k] + torch.einsum("bij,bj->bi", roots[k], z)).double()


class Exact(nn.Module):
    """The network that predicts `kind`, at what it is told, for states of scales that depend on
    what it is told: `scales` returns alpha, sigma and their derivatives."""

    def __init__(self, kind, scales):
        super().__init__()
        self.kind, self.scales = kind, scales
        self.mixture = GaussianMixture(WEIGHTS, MU, COV, VE())

    def forward(self, x, told):
        alpha, sigma, d_alpha, d_sigma = (s[:, None] for s in self.scales(told))
        x_0 = self.mixture.mean(x / alpha, sigma / alpha)
        noise = (x - alpha * x_0) / sigma
        rho = (alpha**2 + sigma**2).sqrt()
        return {
            "x0": x_0,
            "eps": noise,
            "v": (alpha * noise - sigma * x_0) / rho,
            "score": -noise / sigma,
            "velocity": d_alpha * x_0 + d_sigma * noise,
        }[self.kind]


@pytest.fixture
def exact():
    return Exact


@pytest.fixture
def gap(mixture):
    """The largest difference between a wrapped network and the exact posterior mean, in double
    precision, at all noise levels, for states of the process."""

    def measure(adapter, levels=17):
        oracle = mixture(adapter.schedule)
        generator = torch.Generator().manual_seed(0)
        worst = 0.0
        for t in torch.linspace(0, 1, levels, dtype=torch.float64):
            alpha, sigma = adapter.schedule(t)
            z = torch.randn(2, 64, 2, generator=generator, dtype=torch.float64)
            x_t = alpha * z[0] + sigma * z[1]
            error = adapter(x_t, t).mean - oracle(x_t, t).mean
            worst = max(worst, error.abs().max().item())
            rows = adapter(x_t, t.expand(64)).mean
            torch.testing.assert_close(rows, adapter(x_t, t).mean)
        return worst

    return measure


def vp(s, b_0=0.1, b_1=20.0):
    """VP at the process's own time."""
    log_alpha = -(s**2) * (b_1 - b_0) / 4 - s * b_0 / 2
    alpha = log_alpha.exp()
    sigma = (1 - alpha**2).sqrt()
    d_alpha = -(s * (b_1 - b_0) + b_0) / 2 * alpha
    return alpha, sigma, d_alpha, -alpha * d_alpha / sigma


def straight(s):
    """Noise at 0, data at 1."""
    one = torch.ones_like(s)
    return s, 1 - s, one, -one


def rectified(s):
    """Data at 0, noise at 1."""
    one = torch.ones_like(s)
    return 1 - s, s, -one, one


def unit(sigma):
    """Told sigma, with alpha = 1."""
    one, zero = torch.ones_like(sigma), torch.zeros_like(sigma)
    return one, sigma, zero, one


@pytest.fixture
def paths():
    return {"vp": vp, "straight": straight, "rectified": rectified, "unit": unit}
