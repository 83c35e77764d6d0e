"""What tests of samplers share: problems with closed forms, and noise of a seed."""

import pytest
import torch

from feasibly.constraints import GaussianRandomField, LevelSet, Linear
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.schedules import Cosine, LogLogit, Rectified

T, S = torch.tensor([0.6, 0.5], dtype=torch.float64)
LINE = Linear(torch.tensor([[1.0, -2.0]]).double(), torch.tensor([0.3]).double(), tolerance=1e-6)
CURVE = LevelSet(GaussianRandomField(3))
COV = torch.tensor([[1.0, 0.6], [0.6, 1.0]]).double()
STEP = GaussNewton(steps=1, damping=0.0, max_distance=None)
"""One iteration, which is exact for a linear constraint."""

SCHEDULES = pytest.mark.parametrize("schedule", [LogLogit(), Cosine(), Rectified()], ids=repr)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plane(m, D, tolerance=1e-6):
    return Linear(normal(m, D), normal(m, seed=1), tolerance)


def covariance(D):
    half = normal(D, D, seed=2)
    return half @ half.T / D + torch.eye(D).double() / 5


def correlated(schedule, D):
    return Gaussian(normal(D, seed=3), covariance(D), schedule)


def times(steps):
    return torch.linspace(1, 0, steps + 1, dtype=torch.float64)


def given(noise):
    """Noise that is used up row by row."""
    rows = iter(noise)
    return lambda like: next(rows)


def denoised(prior, x, t):
    """The clean estimate of states of a Gaussian prior, and its derivative."""
    alpha, sigma = prior.schedule(t)
    cov = prior.vectors * prior.values @ prior.vectors.T
    gain = cov @ torch.linalg.inv(cov + (sigma / alpha) ** 2 * torch.eye(len(cov)).double())
    return prior.mu + (x / alpha - prior.mu) @ gain.T, gain / alpha
