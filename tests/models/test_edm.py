"""Denoisers of sigma, as those of EDM and k-diffusion.

The networks are stand-ins: EDM's code is no package, and k-diffusion depends on torchvision and on
dozens of other packages. Both are called as net(x, sigma)."""

import pytest
import torch

import feasibly
from feasibly.schedules import EDM, VP, Rectified


@pytest.mark.parametrize("schedule", [None, VP(), Rectified()], ids=repr)
def test_a_denoiser_of_sigma_serves_every_schedule(schedule, exact, paths, gap):
    adapter = feasibly.wrap(exact("x0", paths["unit"]), "edm", schedule)
    assert gap(adapter) < 1e-8


def test_sigma_is_one_a_sample_and_kept_in_the_range_of_the_network():
    seen = []

    class Net:
        sigma_min, sigma_max = 0.1, 10.0

        def __call__(self, x, sigma, class_labels=None):
            seen.append((sigma, class_labels))
            return x

    labels = torch.eye(3)
    adapter = feasibly.wrap(Net(), "edm", EDM(1e-3, 1e2), conditions={"class_labels": labels})
    x = torch.randn(3, 1, 4, 4)
    for t in (0.0, 1.0):
        adapter(x, torch.tensor(t))
    assert [sigma.tolist() for sigma, _ in seen] == [pytest.approx([0.1] * 3), [10.0] * 3]
    torch.testing.assert_close(seen[0][1], labels)


def test_the_schedule_is_edms_over_the_range_of_the_network():
    class Net:
        sigma_min, sigma_max = 0.0, float("inf")

        def __call__(self, x, sigma):
            return x

    assert vars(feasibly.wrap(Net(), "edm").schedule) == vars(EDM(0.002, 80.0))
    narrow = feasibly.wrap(Net(), "edm", sigma_range=(0.1, 10.0)).schedule
    assert vars(narrow) == vars(EDM(0.1, 10.0))
