"""Shared fixtures; everything runs on one thread and without a network."""

import os
import sys
from collections.abc import Callable, Iterator

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


@pytest.fixture
def module_of_a_user(tmp_path, monkeypatch) -> Iterator[Callable[[str], str]]:
    """Writes a module into the current folder of a user, and returns its name."""
    name = "a_module_of_the_user"

    def write(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    monkeypatch.chdir(tmp_path)
    # what a command adds to these is taken back after the test
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield write
    sys.modules.pop(name, None)
