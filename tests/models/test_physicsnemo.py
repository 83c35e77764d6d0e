"""Denoisers of PhysicsNeMo.

The schedulers are stand-ins with its interface: the library depends on torchvision and
on dozens of other packages."""

import pytest
import torch

import feasibly
from feasibly.errors import DenoiserError


class EDMScheduler:
    """The interface of PhysicsNeMo's linear-Gaussian schedulers, with EDM's scales."""

    def alpha(self, t):
        return torch.ones_like(t)

    def sigma(self, t):
        return t

    def timesteps(self, n):
        low, high = 0.002 ** (1 / 7), 80.0 ** (1 / 7)
        times = (high + torch.arange(n, dtype=torch.float64) / (n - 1) * (low - high)) ** 7
        return torch.cat([times, torch.zeros(1, dtype=torch.float64)])


class VPScheduler:
    """The same with VP's."""

    def __init__(self, scales):
        self.scales = scales

    def alpha(self, t):
        return self.scales(t)[0]

    def sigma(self, t):
        return self.scales(t)[1]

    def timesteps(self, n):
        times = torch.linspace(1, 1e-3, n, dtype=torch.float64)
        return torch.cat([times, torch.zeros(1, dtype=torch.float64)])


@pytest.mark.parametrize("predicts", ["x0", "score", "eps"])
def test_predictors_give_the_posterior_mean(predicts, exact, paths, gap):
    net = exact(predicts, paths["unit"])
    adapter = feasibly.wrap(net, "physicsnemo", EDMScheduler(), predicts=predicts)
    assert gap(adapter) < 1e-8
    net = exact(predicts, paths["vp"])
    scheduler = VPScheduler(paths["vp"])
    assert gap(feasibly.wrap(net, "physicsnemo", scheduler, predicts=predicts)) < 1e-8


def test_the_schedulers_own_times_are_the_steps():
    adapter = feasibly.wrap(lambda x, s: x, "physicsnemo", EDMScheduler())
    own = EDMScheduler().timesteps(256)[:-1].flip(0)
    t = torch.linspace(0, 1, 256, dtype=torch.float64)
    torch.testing.assert_close(adapter.schedule(t)[1], own)
    assert "EDMScheduler(from 0.002 to 80)" in repr(adapter)


def test_other_schedulers_are_refused():
    with pytest.raises(DenoiserError, match=r"no alpha, sigma, timesteps.*kind='edm'"):
        feasibly.wrap(lambda x, s: x, "physicsnemo", object())
    student = type("StudentTEDMNoiseScheduler", (EDMScheduler,), {})()
    with pytest.raises(DenoiserError, match="Student-t noise"):
        feasibly.wrap(lambda x, s: x, "physicsnemo", student)
    with pytest.raises(DenoiserError, match="predicts must be one of"):
        feasibly.wrap(lambda x, s: x, "physicsnemo", EDMScheduler(), predicts="noise")
