"""A kernel that takes milliseconds, and ways to disturb it."""

import multiprocessing
import os
from dataclasses import replace

import pytest
import torch

from feasibly import PPR, ensemble, members
from feasibly.constraints import Equality
from feasibly.minimizers import GaussNewton
from feasibly.oracles import Gaussian
from feasibly.policy import Plan
from feasibly.schedules import LogLogit
from tests.helpers import on, sampled

MEMBERS = 8
DRY, PLAIN = 22, 4
"""The calls of the network before a run: its dry run, gradient test and probe; and those before a
run of a method that takes no gradient, whose network's is not tested."""


class Disturbed:
    """The exact network of standard normal data, which first calls `fault(call, rows)`, with the
    number of the call, from 1 on, and the members in it; the dry run is not counted.

    What the fault returns, if not None, is added."""

    def __init__(self, fault=None, dry=DRY):
        self.oracle = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
        self.schedule = self.oracle.schedule
        self.fault = fault
        self.calls = -dry

    def __call__(self, x_t, t):
        self.calls += 1
        if self.fault is not None and self.calls > 0:
            made = self.fault(self.calls, members.current().tolist())
            if made is not None:
                return self.oracle(x_t, t).mean + made
        return self.oracle(x_t, t)


def off_circle(x):
    return x.square().sum(dim=1) - 1


def circle(tolerance=1e-6):
    return Equality(off_circle, tolerance)


SEARCH = {"steps": 4, "repeats": 1, "sigma_max": 0.75}


def toy(fault=None):
    return on(PPR(minimize=GaussNewton(6), **SEARCH), Disturbed(fault), circle())


def draw(
    path, fault=None, kernel=None, n=MEMBERS, attempts=4, monitor=None, dtype=None, **options
):
    """Samples the toy's members into a store, in batches of 2 if nothing else is said."""
    kernel = kernel or toy(fault)
    kernel = replace(kernel, problem=kernel.problem.but(dtype=dtype or torch.float32))
    plan = Plan((kernel,) * attempts, monitor=monitor)
    return ensemble.run(plan, path, n, **({"seed": 3, "batch_size": 2} | options))


def same(a, b):
    """Whether samples are those of another run, up to rounding."""
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def values(path):
    """All members of a store, as its user reads them."""
    xarray = pytest.importorskip("xarray")
    return torch.from_numpy(xarray.open_zarr(path)["samples"].values)


@pytest.fixture(scope="session")
def undisturbed():
    """The members that every run must end with."""
    return sampled(toy(), MEMBERS, (2,), seed=3, attempts=4).samples


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("zarr")
    return tmp_path / "run.zarr"


@pytest.fixture
def start():
    """Starts a function in a process of its own, without importing torch again; what still runs
    at the end of the test is killed."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    context = multiprocessing.get_context("fork")
    started = []

    def begin(function, *arguments, **options):
        process = context.Process(target=function, args=arguments, kwargs=options)
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()
