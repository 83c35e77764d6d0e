"""Posterior samples of a learned denoiser, beside the exact posterior of its data."""

import pytest
import torch

from experiments.tasks.learned import Field, known
from feasibly import CalibratedPPR, Linear
from feasibly.problem import Problem
from feasibly.run import run


def test_posterior_samples_of_a_learned_field_have_its_mean_and_spread():
    """The covariance of a learned denoiser is neither symmetric nor positive at high noise. With
    the symmetric part alone, samples were thrown hundreds of standard deviations off.

    With 128 members a mean of 16 standard deviations is off by 0.1 in fewer than one in 10^4 runs.
    """
    field = Field()
    A = torch.eye(32).double()[::2]
    (x,) = field.sample(1, torch.Generator().manual_seed(5))
    gain = field.cov @ A.T @ torch.linalg.inv(A @ field.cov @ A.T)
    left = (field.cov - gain @ A @ field.cov).diagonal()[1::2].sqrt()
    problem = Problem(known("field"), Linear(A, A @ x, 1e-5), (32,))
    result = run([CalibratedPPR(steps=36, spacing="noise").bind(problem)], 128)
    between = result.samples.double()[:, 1::2]  # the elements that are not observed
    assert (between.std(dim=0) / left).mean().item() == pytest.approx(1, abs=0.1)
    assert ((between.mean(dim=0) - (gain @ A @ x)[1::2]) / left).abs().mean() < 0.3
