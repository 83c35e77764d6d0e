"""What the demos show is the truth, samples, and their mean and spread, and not something else."""

from types import SimpleNamespace

import torch
from torch.testing import assert_close

from feasibly.cli.demo_parts import at_stations, finite, levels, panels
from feasibly.figures import SPREAD


def test_panels_are_the_truth_a_sample_of_each_and_the_firsts_mean_and_spread():
    truth, ours = (
        torch.zeros(2, 2),
        torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[3.0, 2.0], [1.0, 0.0]]]),
    )
    found = panels(truth, {"ours": ours, "theirs": 5 + ours})
    assert list(found) == [
        "truth",
        "ours, sample 0",
        "ours, mean of 2",
        SPREAD,
        "theirs, sample 0",
    ]
    assert_close(found["ours, mean of 2"], torch.full((2, 2), 2.0))
    assert_close(found[SPREAD], torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    assert_close(found["theirs, sample 0"], 5 + ours[0])


def test_a_row_has_what_a_station_observed_and_the_mean_and_range_of_the_samples():
    values = {"ours": torch.tensor([[1.0, 0.0], [3.0, 6.0]])}
    rows = at_stations(["a", "b"], torch.tensor([1.0, 2.0]), values)
    assert rows == [
        {"station": "a", "observed": "1.00", "ours": "2.00 (1.00 to 3.00)"},
        {"station": "b", "observed": "2.00", "ours": "3.00 (0.00 to 6.00)"},
    ]


def test_a_slider_goes_from_the_first_level_to_the_last():
    estimates = {10.0**-k: torch.full((1,), float(k)) for k in range(20)}
    shown = {}
    report = SimpleNamespace(slider=lambda figures, caption: shown.update(figures))
    levels(report, estimates, lambda x: x.item())
    assert list(shown.values()) == sorted(shown.values())
    assert len(shown) == 8
    assert shown["noise level 1"] == 0
    assert shown["noise level 1e-19"] == 19


def test_methods_without_a_finite_sample_are_left_out():
    none, one = torch.tensor([False, False]), torch.tensor([False, True])
    x = torch.arange(2.0)[:, None]
    results = {k: SimpleNamespace(samples=x, finite=f) for k, f in {"a": none, "b": one}.items()}
    assert list(finite(results)) == ["b"]
    assert_close(finite(results)["b"], torch.ones(1, 1))
