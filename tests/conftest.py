"""Shared fixtures; everything runs on one thread and without a network."""

import os

import pytest
import torch

from feasibly.oracles import Checkerboard, Gaussian
from feasibly.schedules import LogLogit

torch.set_num_threads(int(os.environ.get("FEASIBLY_TEST_THREADS", "1")))


@pytest.fixture
def checkerboard() -> Checkerboard:
    return Checkerboard(4, LogLogit())


@pytest.fixture
def gaussian() -> Gaussian:
    """A correlated Gaussian in the plane with unit variances."""
    return Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), LogLogit())
