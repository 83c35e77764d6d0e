"""Derivatives that are missing: networks, and residuals that are flat or jump."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import feasibly
from feasibly import Decoded, Equality, Linear, Observation, priors
from feasibly.checks import check_constraint, diagnose
from feasibly.checks.derivatives import check_gradient, roughness
from feasibly.constraints import BlackBox, Bounds, Composite, Inequality, Quantiles, Scalar
from feasibly.denoisers import Karras
from feasibly.errors import CalibrationWarning, ConstraintError, DenoiserError
from feasibly.oracles import Checkerboard, Empirical, Gaussian
from feasibly.samplers import CPS, SMC, PostHoc
from feasibly.schedules import EDM, VP, LogLogit
from tests.helpers import on, sampled

D = 4
ROOT = torch.randn(D, D, generator=torch.Generator().manual_seed(0)) / D**0.5
EXACT = Gaussian(torch.zeros(D), ROOT @ ROOT.T, VP())
KNOWN = Linear(torch.eye(D)[:1], [0.5], tolerance=1e-6)
Z = torch.randn(2, D, generator=torch.Generator().manual_seed(1))
X = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))


def noise(x, t):
    """What an exact network predicts, of states of its own schedule."""
    alpha, sigma = (scale[:, None] for scale in VP()(t))
    return (x - alpha * EXACT.mean(x / alpha, sigma / alpha)) / sigma


def velocity(x, t):
    """The same for the variance-preserving velocity."""
    alpha, sigma = (scale[:, None] for scale in VP()(t))
    eps = noise(x, t)
    return alpha * eps - sigma * (x - sigma * eps) / alpha


@torch.no_grad()
def no_grad(x, t):
    return noise(x, t)


def numpy(x, t):
    return torch.from_numpy(np.asarray(noise(x.detach(), t)))


def of_a_channel(x, t):
    return noise(torch.cat([x[:, :1].detach(), x[:, 1:]], dim=1), t)


def self_conditioned(x, t):
    """The estimate that is fed back counts: the output depends on x through it too."""
    return noise(x - noise(x, t).detach() / 2, t)


class Branches(nn.Module):
    def forward(self, x, t):
        one = noise(x, t) / 2
        return one + one.detach()


def straight_through(x, t):
    y = noise(x, t)
    return (8 * y).round() / 8 + (y / 4 - (y / 4).detach())


DETACHED = {
    "no_grad": (no_grad, "eps"),
    "detach": (lambda x, t: noise(x.detach(), t), "eps"),
    "data": (lambda x, t: noise(x.data, t), "eps"),
    "numpy": (numpy, "eps"),
    "a velocity": (lambda x, t: velocity(x.detach(), t), "v"),
    "a score": (lambda x, t: -no_grad(x, t) / VP()(t)[1][:, None], "score"),
    "a channel": (of_a_channel, "eps"),
    "a branch": (Branches(), "eps"),
    "self-conditioning": (self_conditioned, "eps"),
    "quantised": (lambda x, t: (8 * noise(x, t)).round() / 8, "eps"),
    "straight through": (straight_through, "eps"),
}


@pytest.mark.parametrize(("net", "kind"), DETACHED.values(), ids=DETACHED)
def test_a_network_that_is_detached_in_part_is_refused(net, kind):
    denoiser = feasibly.wrap(net, kind, VP())
    for seed in range(4):
        z = torch.randn(2, D, generator=torch.Generator().manual_seed(seed))
        with pytest.raises(DenoiserError, match=r"computed without gradients\. Remove tor"):
            check_gradient(denoiser, z)


def mlp(act, dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, D))
    return Karras(Cast(net.to(dtype), dtype).requires_grad_(False), LogLogit())


class Cast(nn.Module):
    def __init__(self, net, dtype):
        super().__init__()
        self.net, self.dtype = net, dtype

    def forward(self, x, label):
        return self.net(x.to(self.dtype)).to(x.dtype)


RIGHT = {
    "exact": EXACT,
    "time detached": feasibly.wrap(lambda x, t: noise(x, t.detach().clone()), "eps", VP()),
    "velocity": feasibly.wrap(velocity, "v", VP()),
    "kinks": mlp(nn.ReLU),
    "half precision": mlp(nn.SiLU, torch.bfloat16),
    "half precision with kinks": mlp(nn.ReLU, torch.float16),
    "few points": Empirical(torch.randn(8, D, generator=torch.Generator().manual_seed(0)), EDM()),
    "large data": Empirical(1e3 * torch.eye(D), EDM(sigma_max=1e5)),
    "small data": Gaussian(torch.full((D,), 0.5), 1e-4 * torch.eye(D), EDM()),
    "a constant": Empirical(torch.ones(1, D), EDM()),
}


@pytest.mark.parametrize("denoiser", RIGHT.values(), ids=RIGHT)
def test_a_right_gradient_is_not_refused(denoiser):
    for seed in range(8):
        z = torch.randn(2, D, generator=torch.Generator().manual_seed(seed))
        check_gradient(denoiser, z)


@pytest.mark.parametrize("name", ["banana", "checkerboard"])
def test_priors_are_not_refused_and_are_if_their_backbone_is_detached(name):
    prior = priors.load(name)
    check_gradient(prior, Z[:, :2])
    check_gradient(Checkerboard(4, LogLogit()), Z[:, :2])
    backbone = prior.backbone
    prior.backbone = Cast(nn.Identity(), torch.float32)
    prior.backbone.forward = torch.no_grad()(lambda x, label: backbone(x, label))
    with pytest.raises(DenoiserError, match="not the derivative"):
        check_gradient(prior, Z[:, :2])


def test_it_is_refused_wherever_it_would_be_used():
    denoiser = feasibly.wrap(no_grad, "eps", VP())
    data = torch.randn(256, D, generator=torch.Generator().manual_seed(2)) @ ROOT.T
    for use in (
        lambda: feasibly.plan(denoiser, KNOWN, (D,)),
        lambda: feasibly.sample(denoiser, KNOWN, 4, (D,), method="ppr"),
        lambda: sampled(on(feasibly.CalibratedPPR(), denoiser, KNOWN), 4, (D,)),
        lambda: feasibly.wrap(no_grad, "eps", VP(), data=data),
        lambda: feasibly.audit(denoiser, KNOWN, (D,)),
    ):
        with pytest.raises(DenoiserError, match="computed without gradients"):
            use()
    assert "computed without gradients" in diagnose(denoiser, None, data).gradient
    found = feasibly.check(denoiser, KNOWN, data=data)
    assert not found.ok
    assert str(found).count("computed without gradients") == 1
    assert "Fit for use" not in str(found)


@pytest.mark.parametrize("method", [PostHoc(steps=4), CPS(steps=4), "auto"])
def test_what_takes_no_gradient_samples_it(method):
    denoiser = feasibly.wrap(no_grad, "eps", VP())
    constraint = None if method == "auto" else KNOWN
    found = feasibly.sample(denoiser, constraint, 4, (D,), method=method, monitor=False)
    assert found.finite.all()


def test_a_network_that_fails_at_another_noise_level_is_left_to_the_run():
    def net(x, t):
        if t[0] > 0.7:
            raise IndexError("index 999 is out of bounds")
        return noise(x, t)

    check_gradient(feasibly.wrap(net, "eps", VP()), Z)


def equal(function):
    return Equality(function, 1e-6)


DETACHED_RESIDUALS = {
    "a factor": equal(lambda x: x[:, :1] * x[:, 1:2].detach() - 0.3),
    "beside another": equal(lambda x: torch.stack([x[:, 0], x[:, 0] * x[:, 1].data], 1) - 0.3),
    "a decoder": Decoded(equal(lambda y: y - 0.1), lambda z: z + z.sin().detach()),
}


@pytest.mark.parametrize("law", DETACHED_RESIDUALS.values(), ids=DETACHED_RESIDUALS)
def test_a_residual_that_is_detached_in_part_is_refused(law):
    with pytest.raises(ConstraintError, match="gradient of the residual is not its derivative"):
        check_constraint(law, X[:2])


def angle(x):
    return torch.atan2(x[:, 1:2], x[:, :1])


def wrapped(r):
    return torch.atan2(r.sin(), r.cos())


SMOOTH = {
    "max": equal(lambda x: x.amax(1) - 1),
    "median": equal(lambda x: x.median(1).values - 0.2),
    "range": equal(lambda x: x.amax(1) - x.amin(1) - 2),
    "entropy": equal(lambda x: (x.softmax(1) * x.log_softmax(1)).sum(1) + 1.5),
    "L1": equal(lambda x: x.abs().sum(1) - 5),
    "abs": equal(lambda x: x[:, :1].abs() - 1),
    "sorted": equal(lambda x: x.sort(1).values[:, 2:4]),
    "quantiles": Quantiles(torch.tensor([0.2, 0.5]), torch.tensor([-1.0, 0.0]), 1e-6),
    "a wrapped angle": equal(lambda x: wrapped(angle(x) - 3)),
    "many wrapped": equal(lambda x: wrapped(x - 3)),
    "a remainder far from its jump": equal(lambda x: x[:, :1] % 1 - 0.5),
    "a sensor seen where it does not saturate": Observation(
        lambda x: x[:, :1].clamp(max=1), [0.3], noise=0.05
    ),
    "softplus": Observation(lambda x: nn.functional.softplus(x[:, :1]), [0.1], noise=0.1),
    "tanh": Observation(lambda x: x[:, :1].tanh(), [0.9], noise=0.1),
    "a mask with noise": Observation(
        lambda x: x * torch.tensor([1.0, 0, 1, 0, 0, 0]), torch.zeros(6), noise=0.1
    ),
    "a staircase of another program": BlackBox(lambda x: x.round() - 1, 1e-6, step=2.0),
    "an inequality": Inequality(lambda x: x[:, :1], 1e-6),
    "bounds beside an equality": Composite(
        [equal(lambda x: x[:, 0] - 1), Bounds(-2.0, 2.0, 1e-6)]
    ),
    "a penalty of an inequality for another program": BlackBox(
        lambda x: x[:, :1].relu(), 1e-6, inequality=True
    ),
    "an exact mask": Observation(
        lambda x: x * torch.tensor([1.0, 0, 1, 0, 0, 0]), torch.zeros(6), 1e-6
    ),
    "a square": equal(lambda x: (x[:, 0] - 1).square()),
    "rectified values": equal(lambda x: x.relu().sum(dim=1) - 1),
}


@pytest.mark.parametrize("law", SMOOTH.values(), ids=SMOOTH)
def test_what_samplers_can_follow_is_not_warned_of(law):
    for k in range(0, 64, 2):
        check_constraint(law, X[k : k + 2])
    assert list(roughness(law, X)) == []


FLAT = {
    "saturating": Observation(lambda x: x[:, :1].clamp(max=1), [1.0], noise=0.1),
    "within its noise": Observation(lambda x: x[:, :1].clamp(max=1), [0.9], noise=0.1),
    "one of many": Observation(lambda x: x.clamp(max=1), [0.2, 1, 0, 0, 0, 0], noise=0.1),
    "relu": Observation(lambda x: x[:, :2].relu(), [0.05, 0.4], noise=0.1),
    "exact": equal(lambda x: x[:, :1].clamp(max=1) - 1),
    "rounded beside another": equal(lambda x: torch.stack([x[:, 0], x[:, 1].round()], 1)),
    "a penalty": equal(lambda x: (x[:, 0] + x[:, 1]).relu()),
    "a penalty of two sides": equal(lambda x: x - x.clamp(-0.5, 0.5)),
    "a squared penalty": Scalar(lambda x: x[:, 0].relu().square(), 1e-6),
    "a penalty beside an equality": Composite(
        [equal(lambda x: x[:, 2] - 0.5), equal(lambda x: x[:, 0].relu())]
    ),
    "a penalty in units": equal(lambda x: x[:, 0].relu()).in_units(0.1, 2.0),
    "a penalty of another program": BlackBox(lambda x: (x[:, :1] - 1).relu().numpy(), 1e-6),
}


@pytest.mark.parametrize("law", FLAT.values(), ids=FLAT)
def test_a_residual_that_is_flat_where_samples_may_be_is_warned_of(law):
    (said,) = (said for said in roughness(law, X) if "flat" in said)
    assert ("softplus or tanh" in said) == (law.noisy is not None)
    assert "means x >= 1" in said


def test_samples_that_meet_an_equality_are_no_flat_place():
    """Its residual is zero there, and its gradient is not."""
    at = X.clone()
    at[:32, 0] = 0.25
    line = equal(lambda x: x[:, :1] - 0.25)
    assert line.is_feasible(at).sum() >= 32
    assert list(roughness(line, at)) == []


def test_a_residual_that_is_flat_everywhere_is_refused():
    step = equal(lambda x: (x[:, 1:2] > 0).to(x) - 0.5 + 0 * x[:, :1])
    with pytest.raises(ConstraintError, match=r"zero at all of them\. Comparisons"):
        list(roughness(Composite([equal(lambda x: x[:, :1] - 0.3), step]), X))


JUMPS = {
    "an angle near its cut": equal(lambda x: angle(x) - 3),
    "with noise": Observation(angle, [-3.0], noise=0.1),
    "a remainder": equal(lambda x: x[:, :1] % 1 - 0.02),
    "one of many": equal(lambda x: torch.stack([x[:, 0] % 1 - 0.02, x[:, 1]], 1)),
    "straight-through rounding": equal(lambda x: x[:, :1] + (x.round() - x)[:, :1].detach()),
    "a choice by index": equal(
        lambda x: x[:, :3].gather(1, x[:, 3:].argmax(1, keepdim=True)) - 0.3
    ),
}


@pytest.mark.parametrize("law", JUMPS.values(), ids=JUMPS)
def test_a_residual_that_jumps_close_to_zero_is_warned_of(law):
    (said,) = roughness(law, X)
    assert "jumps from" in said
    assert "atan2(sin(r), cos(r))" in said


@pytest.mark.parametrize("allowed", [0.5, 2.0])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_jump_matters_if_it_is_larger_than_what_is_allowed(allowed, noisy):
    """A residual of a few rounding errors has only jumps, and samples meet it anyway."""
    remainder = lambda x: x[:, :1] % 1  # noqa: E731
    if noisy:
        law = Observation(remainder, [0.02], noise=allowed)
    else:
        law = Equality(lambda x: remainder(x) - 0.02, atol=allowed)
    assert len(list(roughness(law, X))) == (allowed < 1)


@pytest.mark.parametrize(
    "law", [FLAT["exact"], JUMPS["an angle near its cut"]], ids=["flat", "jump"]
)
def test_sample_plan_and_check_say_the_same(law, monkeypatch):
    prior = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
    monkeypatch.setattr("feasibly.fitness.estimate", lambda *_, **__: None)
    (said,) = (s for s in feasibly.plan(prior, law, (2,)).remarks if "flat" in s or "jumps" in s)
    assert said in feasibly.check(prior, law, (2,)).sentences
    with pytest.warns(CalibrationWarning):
        assert said in feasibly.sample(prior, law, 4, (2,), method=SMC(steps=4)).warnings


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_gradient(EXACT, Z)
        check_constraint(SMOOTH["max"], X)
        list(roughness(SMOOTH["max"], X))
    assert torch.equal(torch.get_rng_state(), before)
