"""Denoisers of azula.

azula depends on torchvision, which this project does not install; the tests against the library
itself run where it is installed by --no-deps, as `.ci/run` does."""

import pytest
import torch

import feasibly
from feasibly.errors import DenoiserError
from feasibly.oracles import Gaussian
from feasibly.schedules import VP
from tests.helpers import on, sampled


def test_a_denoiser_of_the_same_form_is_taken_as_it_is():
    oracle = Gaussian(torch.ones(2), torch.eye(2), VP())
    adapter = feasibly.wrap(oracle)
    x, t = torch.randn(4, 2), torch.tensor(0.3)
    torch.testing.assert_close(adapter(x, t).mean, oracle(x, t).mean, rtol=0, atol=0)
    assert adapter.schedule is oracle.schedule


def test_conditions_reach_it_by_member():
    class Labelled:
        schedule = VP()

        def __call__(self, x_t, t, label):
            return label[:, None].expand_as(x_t).to(x_t)

    adapter = feasibly.wrap(Labelled(), "azula", conditions={"label": torch.arange(4)})
    drawn = sampled(on(feasibly.Ancestral(steps=4), adapter), [3, 1], (2,)).samples
    torch.testing.assert_close(drawn, torch.tensor([[3.0, 3.0], [1.0, 1.0]]))


def test_mistakes_are_explained():
    with pytest.raises(DenoiserError, match="no attribute `schedule`"):
        feasibly.wrap(lambda x, t: x, "azula")
    with pytest.raises(DenoiserError, match="has a schedule"):
        feasibly.wrap(Gaussian(torch.ones(2), torch.eye(2), VP()), "azula", VP())


def test_a_network_behind_azulas_preconditioning():
    denoise = pytest.importorskip("azula.denoise", reason="azula is not installed")
    noise = pytest.importorskip("azula.noise")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x, t, label):
            return self.layer(x) + label[:, None]

    theirs = denoise.KarrasDenoiser(Net(), noise.VPSchedule())
    labels = torch.tensor([0.5, 1.0])
    adapter = feasibly.wrap(theirs, conditions={"label": labels})
    x, t = torch.randn(2, 2), torch.tensor(0.4)
    torch.testing.assert_close(adapter(x, t).mean, theirs(x, t, label=labels).mean)
    assert not any(p.requires_grad for p in adapter.parameters())
