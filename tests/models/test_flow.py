"""Velocities, in the call orders of torchcfm and of Meta's flow_matching.

torchcfm depends on torchvision, which this project does not install: the networks here are
stand-ins in its call order, and the test against the library itself runs where it is installed by
--no-deps, as `.ci/run` does. flow_matching is for non-commercial use only: no test installs it."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import feasibly
from feasibly.errors import DenoiserError
from feasibly.schedules import Flow


class TimeFirst(nn.Module):
    """The call order of torchcfm."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, t, x):
        assert t.shape == x.shape[:1]
        return self.net(x, t)


def circle(s):
    half = math.pi / 2
    sin, cos = torch.sin(half * s), torch.cos(half * s)
    return sin, cos, half * cos, -half * sin


def noisy(B, A, s, sigma):
    """A path A data + B noise + sigma more, of which A' data + B' noise is regressed. Of the sum
    S z of both noises, with S^2 = B^2 + sigma^2, the first in the mean is B noise = B^2 / S z."""
    (a, d_a), (b, d_b) = A, B
    S = (b**2 + sigma**2).sqrt()
    return a, S, d_a, d_b * b / S


def noisy_lines(s, sigma=0.2):
    one = torch.ones_like(s)
    return noisy((1 - s, -one), (s, one), s, sigma)


def noisy_circle(s, sigma=0.2):
    sin, cos, d_sin, d_cos = circle(s)
    return noisy((cos, d_cos), (sin, d_sin), s, sigma)


def target(s, sigma=0.1):
    one = torch.ones_like(s)
    return s, 1 - (1 - sigma) * s, one, -(1 - sigma) * one


def matcher(name, sigma=0.0):
    """An object of torchcfm, of which the name of the class and sigma count."""
    return type(f"{name}ConditionalFlowMatcher", (), {"sigma": sigma})()


class MetaScheduler:
    """A scheduler of Meta's flow_matching."""

    def __call__(self, t):
        sin, cos, d_sin, d_cos = circle(t)
        return SimpleNamespace(alpha_t=sin, sigma_t=cos, d_alpha_t=d_sin, d_sigma_t=d_cos)


CIRCLE = Flow(lambda s: circle(s)[0], lambda s: circle(s)[1])
PATHS = {
    "default": (None, None),
    "Flow": (CIRCLE, circle),
    "Meta scheduler": (MetaScheduler(), circle),
    "Meta path": (SimpleNamespace(scheduler=MetaScheduler()), circle),
    "I-CFM": (matcher(""), None),
    "target": (matcher("Target", 0.1), target),
    "VP-CFM": (matcher("VariancePreserving"), circle),
    "I-CFM with noise": (matcher("", 0.2), noisy_lines),
    "VP-CFM with noise": (matcher("VariancePreserving", 0.2), noisy_circle),
}


CASES = [("torchcfm", path) for path in PATHS]
CASES += [("flow_matching", path) for path in ("default", "Flow", "Meta path")]


@pytest.mark.parametrize(("kind", "path"), CASES)
def test_every_path_and_call_order_gives_the_posterior_mean(kind, path, exact, paths, gap):
    schedule, scales = PATHS[path]
    net = exact("velocity", scales or paths["straight"])
    net = TimeFirst(net) if kind == "torchcfm" else net
    assert gap(feasibly.wrap(net, kind, schedule)) < 1e-8


def test_noise_of_a_matcher_beside_that_of_its_path_is_accounted_for():
    """The regression itself, for Gaussian data: data - noise on s data + (1 - s) noise + more."""
    variance, s, sigma = 0.7, 0.6, 0.2
    total = s**2 * variance + (1 - s) ** 2 + sigma**2

    def net(told, x):
        return x * (s * variance - (1 - s)) / total

    adapter = feasibly.wrap(net, "torchcfm", matcher("", sigma))
    x = torch.randn(8, 2, dtype=torch.float64)
    t = torch.tensor((0.999 - s) / 0.998, dtype=torch.float64)  # where Flow is told s
    torch.testing.assert_close(adapter(x, t).mean, x * s * variance / total)


def test_optimal_transport_is_warned_of():
    with pytest.warns(UserWarning, match="not a posterior mean") as caught:
        feasibly.wrap(nn.Identity(), "torchcfm", matcher("ExactOptimalTransport"))
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="not a posterior mean"):
        feasibly.wrap(nn.Identity(), "torchcfm", coupling="ot")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feasibly.wrap(nn.Identity(), "torchcfm", coupling="independent")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "gp"}, "white Gaussian noise.*Whiten"),
        ({"coupling": "some"}, "'independent' or 'ot', got 'some'"),
        ({"schedule": matcher("SchrodingerBridge", 1.0)}, "bridges between pairs"),
        ({"schedule": object()}, "not a known path"),
    ],
)
def test_what_cannot_be_sampled_is_refused_with_the_reason(options, message):
    with pytest.raises(DenoiserError, match=message):
        feasibly.wrap(nn.Identity(), "torchcfm", **options)
