"""Ten kinds of bad input: each is refused with one sentence that says what, where, what to do."""

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

GOOD = LevelSet(GaussianRandomField(0))


def refused(error, words, denoiser, constraint, **options):
    with pytest.raises(error, match=words) as caught:
        PPR(denoiser, constraint, steps=4).sample(2, (2,), **options)
    message = str(caught.value)
    assert "\n" not in message
    assert 40 < len(message) < 400


class Wrapped(torch.nn.Module):
    def __init__(self, denoiser, change):
        super().__init__()
        self.denoiser, self.change, self.schedule = denoiser, change, denoiser.schedule

    def forward(self, x_t, t):
        return self.change(self.denoiser(x_t, t).mean, t)


# 1. wrong shape


@pytest.mark.parametrize(
    "residual",
    [lambda x: x.sum(dim=0)[None], lambda x: x[:, 0], lambda x: x[:, None], lambda x: 1.0],
    ids=["reduced batch", "no axis", "three axes", "number"],
)
def test_residual_of_wrong_shape(residual, gaussian):
    class Wrong(feasibly.Constraint):
        def residual(self, x):
            return residual(x)

    refused(ConstraintError, "must have shape|reduce over", gaussian, Wrong(1e-6))


def test_observation_of_wrong_shape(gaussian):
    wrong = Observation(lambda x: x[:, :1], torch.zeros(2, 1), tolerance=1e-6)
    refused(ConstraintError, "without a batch axis", gaussian, wrong)


def test_residual_that_mixes_samples(gaussian):
    mixed = Equality(lambda x: x - x.mean(dim=0), tolerance=1e-6)
    refused(ConstraintError, "other samples in its batch", gaussian, mixed)


def test_denoiser_of_wrong_shape(gaussian):
    refused(DenoiserError, "shape of x_t", Wrapped(gaussian, lambda x, t: x.sum(dim=1)), GOOD)


def test_sample_of_wrong_shape(gaussian):
    with pytest.raises(DenoiserError, match="Check `shape`"):
        PPR(gaussian, GOOD).sample(2, (3,))


# 2. residual that is not finite, or not differentiable


def test_residual_that_is_not_a_number(gaussian):
    bad = Equality(lambda x: (-1 - x.square()).log(), tolerance=1e-6)
    refused(ConstraintError, "not finite", gaussian, bad)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.detach(),
        lambda x: torch.from_numpy(np.sin(x.detach().numpy())),
        lambda x: (x > 0).to(x),
    ],
    ids=["detach", "numpy", "comparison"],
)
def test_residual_without_gradient(function, gaussian):
    refused(
        ConstraintError,
        "not depend differentiably",
        gaussian,
        Equality(function, tolerance=1e-6),
    )


def test_residual_with_infinite_gradient(gaussian):
    root = Equality(lambda x: (x - x.detach()).square().sum(dim=1).sqrt() + 1, tolerance=1e-6)
    refused(ConstraintError, "square root", gaussian, root)


# 3. wrong device or dtype


def test_constraint_of_another_dtype(gaussian):
    double = Observation(lambda x: x.double(), torch.zeros(2).double(), tolerance=1e-6)
    refused(ConstraintError, "float64 .*float32", gaussian, double)
    matrix = torch.ones(2, 1, dtype=torch.float64)
    refused(ConstraintError, "dtype", gaussian, Equality(lambda x: x @ matrix, tolerance=1e-6))


def test_constraint_on_another_device(gaussian):
    elsewhere = torch.zeros(2, device="meta")
    refused(ConstraintError, "meta", gaussian, Equality(lambda x: x - elsewhere, tolerance=1e-6))


# 4. infeasible constraint


def test_infeasible_constraint(gaussian):
    nowhere = Equality(lambda x: x.square().sum(dim=1) + 1, tolerance=1e-6)
    with pytest.warns(InfeasibleWarning, match=r"None of the 3 members .*constraint may be"):
        result = PPR(gaussian, nowhere, steps=4).sample(3, (2,))
    assert not result.feasible.any()
    assert result.samples.isfinite().all()


def test_partly_infeasible_ensemble(gaussian):
    """Some members are on the wrong side, and a method without a projection leaves them there."""
    half = Inequality(lambda x: x[:, :1], tolerance=1e-6)
    short = PostHoc(gaussian, half, minimize=SGD(steps=1, lr=1e-3))
    with pytest.warns(InfeasibleWarning, match=r"[1-9] of 16 members .*stops too early"):
        result = short.sample(16, (2,))
    assert 0 < result.feasible.sum() < 16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steered = DPS(gaussian, half, steps=4, zeta=0.0, output="projected").sample(16, (2,))
    assert 0 < steered.feasible.sum() < 16, "no news of a method that does not land"


# 5. steps = 0


@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps(steps, gaussian):
    with pytest.raises(
        ValueError, match=r"PPR\(steps=\.\.\.\) takes a whole number of at least 1, got"
    ):
        PPR(gaussian, GOOD, steps=steps)


def test_no_minimizer(gaussian):
    for minimize in (None, "LBFGS", LBFGS):
        with pytest.raises(ValueError, match=r"PPR\(minimize=\.\.\.\) takes a minimizer"):
            PPR(gaussian, GOOD, minimize=minimize)
    assert PPR(gaussian, GOOD, last=None).last is None


# 6. unknown prior


def test_unknown_prior():
    with pytest.raises(ValueError, match=r"no prior 'chess'; choose one of .*checkerboard"):
        priors.load("chess")


# 7. a denoiser that is not finite at one noise level


def test_denoiser_that_fails_at_one_level(gaussian):
    def nan_below(x_0, t):
        return torch.where(t < 0.3, torch.nan, x_0)

    refused(SamplingError, r"step \d of 4.*sigma = 0", Wrapped(gaussian, nan_below), GOOD)


# 8. corrupted checkpoint


def test_corrupted_prior(tmp_path):
    path = tmp_path / "prior.safetensors"
    path.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00 not a prior at all")
    with pytest.raises(ValueError, match="damaged or was not written by feasibly"):
        priors.load(str(path))


# 9. output that is no tensor


def test_denoiser_without_tensor(gaussian):
    refused(DenoiserError, "as a tensor", Wrapped(gaussian, lambda x, t: x.tolist()), GOOD)


def test_denoiser_without_schedule():
    with pytest.raises(DenoiserError, match="schedule"):
        PPR(lambda x, t: x, GOOD)


def test_denoiser_that_raises(gaussian):
    def broken(x, t):
        raise IndexError("index 1000 is out of bounds")

    refused(DenoiserError, "index 1000.*Check `shape`", Wrapped(gaussian, broken), GOOD)


# 10. negative tolerance


@pytest.mark.parametrize("tolerance", [-1e-6, 0.0, float("nan")])
def test_tolerance_that_is_not_positive(tolerance):
    with pytest.raises(ValueError, match="must be positive"):
        Equality(lambda x: x, tolerance=tolerance)


# and what sample() is asked for


@pytest.mark.parametrize(
    "options",
    [{"members": 0}, {"members": [-1]}, {"seed": -1}, {"chunk": 0}],
    ids=str,
)
def test_impossible_requests(options, gaussian):
    arguments = {"members": 2, "shape": (2,)} | options
    with pytest.raises(ValueError, match="takes a whole number"):
        PPR(gaussian, GOOD).sample(**arguments)
