"""Sea-surface temperature: splits, the prior, the linear Gaussian reference, and the table."""

import pytest
import torch

from experiments.peers import Missing
from experiments.studies import downscaling
from experiments.tasks import sst


def months(first: float) -> torch.Tensor:
    """Temperatures with a cycle of a year, and one column of land."""
    t = 2 * torch.pi / 12 * torch.arange(54).double()
    cycle = first + t.sin() - 2 * t.cos()
    x = cycle[:, None, None] * torch.linspace(1, 2, 16).double()[:, None].expand(16, 432)
    x = x.clone()
    x[:, :, 33] = torch.nan
    return x


def test_an_annual_cycle_leaves_no_anomaly_and_held_out_months_do_not_change_it():
    x = months(300.0)
    assert sst.anomalies(x).nan_to_num().abs().max() < 1e-9
    warmer = x.clone()
    warmer[39:] += 1
    found = sst.anomalies(warmer)[:, :, 0]
    assert found[:39].abs().max() < 1e-9
    assert torch.allclose(found[39:], torch.ones(15, 16).double())


def test_windows_are_at_sea_and_of_their_months():
    x = months(300.0) + torch.randn(54, 16, 432, generator=torch.Generator().manual_seed(0))
    data = sst.Data(x)
    assert len(data.train) == 39 * (2 + 432 - 34 - 31)
    assert data.train.isfinite().all()
    assert data.train.std().item() == pytest.approx(1, abs=1e-5)
    there = sst.anomalies(x)[42 + 6, :, sst.PLACES[1] :][:, :32] / data.unit
    assert torch.allclose(data.held_out[6], there.float())


def test_coarse_means_are_those_of_fields_that_are_constant_over_blocks():
    y = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(sst.blocks(sst.spread(y)), y)
    x = torch.arange(512.0).reshape(1, 16, 32)
    assert sst.blocks(x)[0, 0, 1] == x[0, :4, 4:8].mean()


def test_shipped_prior_is_odd_and_nearly_linear():
    model = sst.prior()
    eye = model.axes.T @ model.axes
    assert (eye - torch.eye(len(eye))).abs().max() < 1e-5
    x = 3 * torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(0))
    for sigma in (0.01, 1.0, 100.0):
        level = torch.tensor(sigma)
        found = model.mean(x, level)
        assert torch.allclose(found, -model.mean(-x, level), atol=1e-5)
    # an untrained network leaves the linear denoiser, here of independent points of variance 4
    plain = sst.Prior()
    plain.std.fill_(2.0)
    assert torch.allclose(plain.mean(x, torch.tensor(1.0)), 0.8 * x, atol=1e-5)


def test_linear_gaussian_samples_keep_the_means_and_have_the_conditional_covariance():
    """Independent points of variance one keep 15/16 of it: of 512 x 2048 values, a mean square
    is off by 0.7 % with a probability below 1e-6."""
    y = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    x = downscaling.conditional(torch.eye(512).double(), y, 2048, torch.Generator().manual_seed(2))
    assert (sst.blocks(x) - y).abs().max() < 1e-10
    assert (x - sst.spread(y[None])).square().mean().item() == pytest.approx(15 / 16, rel=7e-3)


def test_rows_pair_fields_and_the_order_is_by_score():
    common = {"residual": 1e-7, "variance": 1.0, "mean_se": 1.0, "ensemble": 3}
    records = [
        common | {"label": label, "field": i, "crps": c, "ranks": [0.25] * 4}
        for label, scores in (("MMPS", (0.2, 0.4)), ("default", (0.1, 0.2)))
        for i, c in enumerate(scores)
    ]
    first, second = downscaling.rows(records)
    assert (first["label"], second["label"]) == ("default", "MMPS")
    assert second["apart"] == "+150.0 ± 50.0"
    assert second["outside"] == 1.0
    assert second["ratio"] == pytest.approx((4 / 3) ** 0.5)


def test_held_out_fields_are_twelve():
    try:
        data = sst.data()
    except Missing as missing:
        pytest.skip(str(missing))
    assert data.held_out.shape == (12, 16, 32)
    assert data.train.shape[1:] == sst.SHAPE
