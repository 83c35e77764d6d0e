"""Stations on a planet: the table of reports, and the table of scores."""

import numpy as np
import torch

from experiments.studies import stations


def test_reports_are_the_day_with_errors_of_the_stated_size():
    """Of 720 values or fewer chi-square a value is within 0.2 of one but once in 6000 days."""
    coarse = torch.randn(24, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    day = torch.nn.functional.interpolate(coarse, size=(32, 64), mode="bicubic")
    day = torch.tensor([6900.0, 22.0, 14.0])[:, None, None] * day
    table = stations.reports(day, 1)
    error = (torch.as_tensor(table.y) - table(day[None])[0]) / torch.as_tensor(table.errors)
    assert 600 < len(table) < 720
    assert abs(error.square().mean() - 1) < 0.2
    again = stations.reports(day, 1)
    np.testing.assert_array_equal(table.y, again.y)
