"""Modes of torch that a caller is in change neither samples nor their feasibility."""

from contextlib import contextmanager, nullcontext
from functools import cache

import pytest
import torch
from torch import nn

import feasibly
from experiments import zoo
from feasibly import CalibratedPPR, TunedPPR
from feasibly.constraints import Linear
from feasibly.errors import ConstraintError, DenoiserError
from feasibly.schedules import VP


@contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES = {
    "none": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_default_dtype": default_dtype,
    "use_deterministic_algorithms": deterministic,
}
SHAPE, MEMBERS = zoo.SHAPE, 8
METHODS = {"ppr": TunedPPR(steps=4), "calibrated": CalibratedPPR(steps=8)}
A, Y = zoo.ROWS[:10].float(), (zoo.ROWS[:10] @ zoo.TRUTH).float()


@cache
def sampled(method, mode):
    denoiser = zoo.denoiser("TransformerEncoder")
    with MODES[mode]():
        constraint = Linear(A.clone(), Y.clone(), tolerance=1e-6)  # made in the mode too
        return feasibly.sample(denoiser, constraint, MEMBERS, SHAPE, method=METHODS[method])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("mode", "method"),
    [
        ("no_grad", "ppr"),
        ("inference_mode", "calibrated"),
        ("inference_mode", "ppr"),
        ("set_default_dtype", "calibrated"),
        ("use_deterministic_algorithms", "ppr"),
    ],
)
def test_samples_are_the_same(mode, method):
    expected, result = sampled(method, "none"), sampled(method, mode)
    assert not result.samples.is_inference()
    assert result.samples.dtype == torch.float32
    assert result.feasible.all()
    torch.testing.assert_close(result.samples, expected.samples)


class Watched(nn.Module):
    """A network that remembers the dtype in which it multiplies."""

    schedule = VP()

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 4).requires_grad_(False), set()

    def forward(self, x_t, t):
        alpha_t, sigma_t = self.schedule(t)
        h = self.layer(x_t)
        self.seen.add(h.dtype)
        return alpha_t / (alpha_t**2 + sigma_t**2) * x_t + 0 * h


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_autocast_is_of_the_network_alone():
    """The residual of 8 numbers in half precision would be wrong by 1e-2."""
    torch.manual_seed(0)
    network = Watched()
    constraint = Linear(torch.randn(2, 4), torch.tensor([0.3, -0.2]), tolerance=1e-8)
    with torch.autocast("cpu", torch.bfloat16):
        result = feasibly.sample(network, constraint, 8, (4,), method="calibrated")
        check = feasibly.check(network, constraint, (4,), data=torch.randn(64, 4))
        inside = torch.is_autocast_enabled("cpu")
    assert network.seen == {torch.bfloat16}
    assert inside
    assert check.diagnosis.violation is not None
    assert constraint.is_feasible(result.samples).all()


def test_weights_of_inference_mode_are_refused_with_the_cause():
    with torch.inference_mode():
        net = zoo.plain()
    with pytest.raises(
        DenoiserError, match=r"weights of Valid were created under torch.inference_m"
    ):
        feasibly.wrap(net, "eps", VP())


def test_a_residual_of_inference_mode_is_refused_with_the_cause():
    with torch.inference_mode():
        weights = torch.ones(64, 1)
    constraint = feasibly.Equality(lambda x: x.flatten(1) @ weights, tolerance=1e-6)
    with pytest.raises(ConstraintError, match=r"made under torch.inference_mode\(\)"):
        feasibly.sample(zoo.denoiser("convolution"), constraint, 2, SHAPE)


def test_conditions_of_inference_mode_are_taken():
    class Conditional(nn.Module):
        def forward(self, x, t, weight):
            return x * weight[:, :, None, None]

    with torch.inference_mode():
        denoiser = feasibly.wrap(
            Conditional(), "x0", VP(), conditions={"weight": torch.full((1, 4), 0.5)}
        )
    x = torch.ones(2, *SHAPE, requires_grad=True)
    (g,) = torch.autograd.grad(denoiser(x, torch.tensor(0.5)).mean.sum(), x)
    assert (g == 0.5).all()
