"""Bad input: each is refused with one sentence that says what, where, what to do."""

import warnings

import numpy as np
import pytest
import torch

import feasibly
from feasibly import PPR, Equality, Inequality, Observation, priors
from feasibly.constraints import GaussianRandomField, LevelSet
from feasibly.errors import ConstraintError, DenoiserError, InfeasibleWarning, SamplingError
from feasibly.minimizers import LBFGS, SGD
from feasibly.samplers import DPS, PostHoc
from tests.helpers import on, sampled

GOOD = LevelSet(GaussianRandomField(0))


def refused(error, words, denoiser, constraint, **options):
    with pytest.raises(error, match=words) as caught:
        sampled(on(PPR(steps=4), denoiser, constraint), 2, (2,), **options)
    message = str(caught.value)
    assert "\n" not in message
    assert 40 < len(message) < 400


class Wrapped(torch.nn.Module):
    def __init__(self, denoiser, change):
        super().__init__()
        self.denoiser, self.change, self.schedule = denoiser, change, denoiser.schedule

    def forward(self, x_t, t):
        return self.change(self.denoiser(x_t, t).mean, t)


class Wrong(feasibly.Constraint):
    def __init__(self, function):
        super().__init__(1e-6)
        self.function = function

    def residual(self, x):
        return self.function(x)


def equality(function):
    return Equality(function, tolerance=1e-6)


def seen(function, y):
    return Observation(function, y, tolerance=1e-6)


DOUBLE, ELSEWHERE = torch.ones(2, 1, dtype=torch.float64), torch.zeros(2, device="meta")
CONSTRAINTS = {
    "reduced batch": (Wrong(lambda x: x.sum(dim=0)[None]), "must have shape"),
    "no axis": (Wrong(lambda x: x[:, 0]), "reduce over"),
    "three axes": (Wrong(lambda x: x[:, None]), "must have shape"),
    "number": (Wrong(lambda x: 1.0), "must have shape"),
    "batch of values": (seen(lambda x: x[:, :1], torch.zeros(2, 1)), "without a batch axis"),
    "mixed": (equality(lambda x: x - x.mean(dim=0)), "other samples in its batch"),
    "not a number": (equality(lambda x: (-1 - x.square()).log()), "not finite"),
    "detach": (equality(lambda x: x.detach()), "not depend differentiably"),
    "numpy": (
        equality(lambda x: torch.from_numpy(np.sin(x.detach().numpy()))),
        "not depend differentiably",
    ),
    "comparison": (equality(lambda x: (x > 0).to(x)), "not depend differentiably"),
    "infinite gradient": (
        equality(lambda x: (x - x.detach()).square().sum(dim=1).sqrt() + 1),
        "square root",
    ),
    "double": (seen(lambda x: x.double(), torch.zeros(2).double()), "float64 .*float32"),
    "matrix of doubles": (equality(lambda x: x @ DOUBLE), "dtype"),
    "another device": (equality(lambda x: x - ELSEWHERE), "meta"),
}


@pytest.mark.parametrize(("constraint", "words"), CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_a_constraint_that_cannot_be_used(constraint, words, gaussian):
    refused(ConstraintError, words, gaussian, constraint)


def broken(x, t):
    raise IndexError("index 1000 is out of bounds")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, t: x.sum(dim=1), "shape of x_t"),
        (lambda x, t: x.tolist(), "as a tensor"),
        (broken, "index 1000.*Check `shape`"),
    ],
    ids=["shape", "no tensor", "raises"],
)
def test_a_denoiser_that_cannot_be_used(change, words, gaussian):
    refused(DenoiserError, words, Wrapped(gaussian, change), GOOD)


def test_sample_of_wrong_shape(gaussian):
    with pytest.raises(DenoiserError, match="Check `shape`"):
        sampled(on(PPR(), gaussian, GOOD), 2, (3,))


def test_infeasible_constraint(gaussian):
    nowhere = Equality(lambda x: x.square().sum(dim=1) + 1, tolerance=1e-6)
    words = r"None of the 3 samples .*unless the constraint is impossible"
    with pytest.warns(InfeasibleWarning, match=words):
        result = sampled(on(PPR(steps=4), gaussian, nowhere), 3, (2,))
    assert not result.feasible.any()
    assert result.samples.isfinite().all()


def test_partly_infeasible_ensemble(gaussian):
    """Some members are on the wrong side, and a method without a projection leaves them there."""
    half = Inequality(lambda x: x[:, :1], tolerance=1e-6)
    short = on(PostHoc(minimize=SGD(steps=1, lr=1e-3)), gaussian, half)
    with pytest.warns(InfeasibleWarning, match=r"[1-9] of 16 samples .*stops too early"):
        result = sampled(short, 16, (2,))
    assert 0 < result.feasible.sum() < 16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steered = sampled(on(DPS(steps=4, zeta=0.0, output="projected"), gaussian, half), 16, (2,))
    assert 0 < steered.feasible.sum() < 16, "no news of a method that does not land"


@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps(steps):
    with pytest.raises(
        ValueError, match=r"PPR\(steps=\.\.\.\) takes a whole number of at least 1"
    ):
        PPR(steps=steps)


def test_no_minimizer():
    for minimize in (None, "LBFGS", LBFGS):
        with pytest.raises(ValueError, match=r"PPR\(minimize=\.\.\.\) takes a minimizer"):
            PPR(minimize=minimize)
    assert PPR(last=None).last is None


def test_unknown_prior():
    with pytest.raises(ValueError, match=r"no prior 'chess'; choose one of .*checkerboard"):
        priors.load("chess")


def test_denoiser_that_fails_at_one_level(gaussian):
    def nan_below(x_0, t):
        return torch.where(t < 0.3, torch.nan, x_0)

    refused(SamplingError, r"step \d of 4.*sigma = 0", Wrapped(gaussian, nan_below), GOOD)


def test_corrupted_prior(tmp_path):
    path = tmp_path / "prior.safetensors"
    path.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00 not a prior at all")
    with pytest.raises(ValueError, match="damaged or was not written by feasibly"):
        priors.load(str(path))


def test_denoiser_without_schedule():
    with pytest.raises(DenoiserError, match="schedule"):
        on(PPR(), lambda x, t: x, GOOD)


@pytest.mark.parametrize("tolerance", [-1e-6, 0.0, float("nan")])
def test_tolerance_that_is_not_positive(tolerance):
    with pytest.raises(ValueError, match="must be positive"):
        Equality(lambda x: x, tolerance=tolerance)


@pytest.mark.parametrize(
    "options",
    [{"n": 0}, {"n": [-1]}, {"seed": -1}, {"batch_size": 0}],
    ids=str,
)
def test_impossible_requests(options, gaussian):
    arguments = {"n": 2, "shape": (2,)} | options
    with pytest.raises(ValueError, match="takes a whole number"):
        sampled(on(PPR(), gaussian, GOOD), **arguments)
