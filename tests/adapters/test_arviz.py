"""Results and stores as ArviZ reads them."""

from dataclasses import replace

import pytest
import torch

import feasibly
from feasibly import ensemble
from feasibly.result import Weights

pytest.importorskip("arviz_base", reason="arviz is not installed")
pytest.importorskip("arviz_stats", reason="arviz is not installed")

import arviz_stats
import xarray

from feasibly.adapters.arviz import to_arviz


@pytest.fixture
def result(gaussian):
    total = feasibly.Linear(torch.ones(1, 2), [2.0], atol=1e-4)
    return feasibly.sample(gaussian, total, 400, (2,), seed=1)


def test_arviz_summarizes_the_conditional_of_a_normal(result):
    """Given x_1 + x_2 = 2, each is normal with mean 1 and variance 0.2. False-alarm rate of the
    five-sigma limits: below 1e-5."""
    table = arviz_stats.summary(to_arviz(result), round_to="none")
    assert table.index.tolist() == ["x[0]", "x[1]"]
    assert (table["mean"] - 1).abs().max() < 5 * (0.2 / 400) ** 0.5
    assert (table["sd"] / 0.2**0.5 - 1).abs().max() < 5 / 800**0.5
    assert (table["ess_bulk"] > 200).all()  # independent, so about 400


def test_it_has_what_is_known_of_each_sample_and_of_the_weights(result):
    weights = Weights(list(range(400)), 2, pareto_k=0.3, ess=250.0, log_evidence=-1.0, error=0.1)
    samples = result.samples.clone()
    samples[3, 1] = torch.nan
    made = to_arviz(replace(result, samples=samples, populations=[weights]), "u", ["axis"])
    assert made["posterior"]["u"].dims == ("chain", "draw", "axis")
    assert made["posterior"].draw.values.tolist() == [i for i in range(400) if i != 3]
    assert (made["posterior"].attrs["ess"], made["posterior"].attrs["pareto_k"]) == (250.0, 0.3)
    assert made["sample_stats"]["feasible"].all()
    found = made["sample_stats"]["violation"].sel(chain=0, draw=7).item()
    assert found == pytest.approx(result.violation[7].item())


def test_a_store_is_read_without_what_is_not_finished(gaussian, tmp_path):
    pytest.importorskip("zarr", reason="zarr is not installed")
    plan = feasibly.plan(gaussian, None, (2,), method=feasibly.Ancestral(steps=4))
    ensemble.run(plan, tmp_path / "run.zarr", 6, progress=False)
    stored = xarray.open_zarr(tmp_path / "run.zarr").load()
    made = to_arviz(stored.assign(finished=stored["member"] < 4))
    assert made["posterior"].draw.values.tolist() == [0, 1, 2, 3]
    assert made["posterior"]["x"].values[0].tolist() == stored["samples"].values[:4].tolist()
    assert made["sample_stats"]["forward"].sizes == {"chain": 1, "draw": 4}


def test_mistakes_are_explained(result):
    with pytest.raises(ValueError, match="by `member`"):
        to_arviz(xarray.Dataset({"samples": ("draw", [1.0])}))
    with pytest.raises(ValueError, match="none of the samples"):
        to_arviz(replace(result, samples=torch.full((400, 2), torch.nan)))
