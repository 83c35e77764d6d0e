"""Members that share weights are the same, whoever samples which of them."""

import os
import threading
from dataclasses import replace

import pytest
import torch

from feasibly.ensemble import Store, estimate
from feasibly.minimizers import GaussNewton
from feasibly.samplers import SMC
from tests.ensemble.conftest import Disturbed, circle, draw, values
from tests.helpers import on

pytestmark = pytest.mark.filterwarnings(
    "ignore::feasibly.errors.CalibrationWarning", "ignore::feasibly.errors.InfeasibleWarning"
)


def shared(path, n=10, **options):
    law, minimize = circle(1e-10), GaussNewton(steps=2)
    kernel = on(SMC(steps=4, error=9.0, minimize=minimize), Disturbed(), law)
    rest = {"population": 4, "dtype": torch.float64, "attempts": 2, "batch_size": 20} | options
    return draw(path, kernel=kernel, n=n, **rest)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store of which nothing is missing; tests leave it so."""
    return shared(tmp_path_factory.mktemp("populations") / "whole")


def forget(path, some):
    for i in some:
        os.remove(Store(path).records / f"{i}.json")


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_a_store_that_goes_on_has_the_same_members(whole):
    """Some are infeasible at first, and are drawn again with those that were."""
    expected = values(whole.store.path)
    assert whole.infeasible, "else there is one attempt"
    for some, size in ([1, 5, 9], 13), (range(3, 7), 20):
        forget(whole.store.path, some)
        shared(whole.store.path, batch_size=size)
        same(values(whole.store.path), expected)


@pytest.mark.slow
def test_a_store_that_grows_keeps_its_populations(path):
    first = values(shared(path, n=6).store.path)
    grown = shared(path)
    assert grown.store.manifest.populations() == [range(4), range(4, 6), range(6, 8), range(8, 10)]
    expected = values(path)
    same(expected[:6], first)
    forget(path, [3, 4, 7, 9])
    shared(path)
    same(values(path), expected)


@pytest.mark.slow
def test_two_processes_sample_populations_whole(tmp_path, whole):
    expected = values(whole.store.path)
    both = [
        threading.Thread(target=shared, args=(tmp_path / "two",), kwargs={"rank": k, "workers": 2})
        for k in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    same(values(tmp_path / "two"), expected)


def test_a_store_warns_of_the_weights_of_its_populations(whole):
    for known, words in (
        ({"pareto_k": 0.1, "ess": 4.0}, None),
        ({"pareto_k": 0.9, "ess": 4.0}, "Therefore 10 of 10 samples"),
        ({"pareto_k": 0.1, "ess": 1.0}, "size is 3 for 10 samples"),
    ):
        records = [replace(r, **known) for r in whole.records]
        told = [one for one in replace(whole, records=records).doubts() if "weight" in one]
        assert [words in one for one in told] == [True] * (words is not None)


@pytest.mark.slow
def test_a_larger_population_takes_more():
    kernel = on(SMC(steps=4, error=9.0, minimize=GaussNewton(1)), Disturbed(), circle())
    small, large = (estimate(kernel, population=n).fixed for n in (25, 100))
    assert large == pytest.approx(4 * small, rel=0.01)
