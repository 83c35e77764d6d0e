"""Stations on a planet: the table of reports, and the table of scores."""

import numpy as np
import torch

from experiments.records import DEFAULT
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


def score(label, day, crps):
    hours = [crps] * 24
    scores = {"crps": [hours] * 3, "variance": [[16.0] * 24] * 3, "mean_se": [[17.0] * 24] * 3}
    row = {"observed": "stations", "label": label, "day": day, "evaluations": 10.0}
    return row | scores | {"chi_square": [1.0, 2.0]}


def test_rows_compare_the_same_days_and_tell_the_default_s_others_apart():
    records = [score(DEFAULT, 0, 1.0), score(DEFAULT, 1, 3.0), score("DPS", 0, 2.0)]
    rows = stations.rows(records)
    assert [row["label"] for row in rows] == [DEFAULT, "DPS", f"{DEFAULT}, 2 days"]
    assert [row["z"] for row in rows] == [1.0, 2.0, 2.0]
    assert {row["ratio"] for row in rows} == {"1.00, 1.00"}
    assert {row["chi_square"] for row in rows} == {1.5}
