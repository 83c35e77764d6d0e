"""Posteriors of sbi, on normal parameters with a normal likelihood, whose posterior is known."""

import math
import warnings

import pytest
import torch

import feasibly
from feasibly.errors import DenoiserError
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit

pytest.importorskip("sbi", reason="sbi is not installed")

from sbi.diagnostics import check_tarp, run_sbc, run_tarp
from sbi.diagnostics.sbc import check_uniformity_frequentist
from sbi.inference import FMPE
from sbi.neural_nets.estimators import FlowMatchingEstimator
from sbi.neural_nets.estimators.score_estimator import (
    SubVPScoreEstimator,
    VEScoreEstimator,
    VPScoreEstimator,
)
from sbi.neural_nets.factory import posterior_flow_nn
from sbi.utils import BoxUniform

from feasibly.adapters.sbi import Posterior, denoiser

MEAN = torch.tensor([1.0, -2.0], dtype=torch.float64)
COV = torch.tensor([[1.0, 0.6], [0.6, 1.5]], dtype=torch.float64)
NOISE = 0.5  # of the data x = theta + noise
X = torch.tensor([0.5, -1.0])


def posterior(x, mean=MEAN, cov=COV):
    """The mean and the covariance of the parameters, given data."""
    gain = cov @ (cov + NOISE**2 * torch.eye(2)).inverse()
    return mean + gain @ (x.double() - mean), cov - gain @ cov


def on_sum(total, mean, cov):
    """The same, given also the sum of the parameters."""
    a = torch.ones(1, 2, dtype=torch.float64)
    gain = cov @ a.T / (a @ cov @ a.T)
    return mean + gain[:, 0] * (total - mean.sum()), cov - gain @ a @ cov


def exact(kind, standardized=False, **options):
    """An estimator of sbi whose network is replaced by the exact score or velocity."""

    class Exact(kind):
        def forward(self, input, condition, time):
            time = time.double()
            mean, cov = posterior(condition.reshape(2))
            if standardized:
                mean, scale = self.to_z(mean)[0], self._theta_scale[0]
                cov = cov / (scale[:, None] * scale)
            if kind is FlowMatchingEstimator:
                alpha, sigma = (1 - time)[:, None], (time + self.noise_scale)[:, None]
            else:
                alpha, sigma = self.mean_t_fn(time), self.std_fn(time)
            all_ = alpha[..., None] ** 2 * cov + sigma[..., None] ** 2 * torch.eye(2)
            score = -torch.linalg.solve(all_, (input - alpha * mean).double())
            if kind is FlowMatchingEstimator:
                x_0 = (input + sigma**2 * score) / alpha
                return -sigma * score - x_0
            return score

    size = torch.Size([2])
    made = Exact(torch.nn.Identity(), size, size, **options)
    if standardized:
        made._theta_shift.copy_(MEAN)
        made._theta_scale.copy_(torch.tensor([0.5, 3.0]))
        made._compose_standardization.fill_(True)
    return made


@pytest.mark.parametrize("standardized", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (VPScoreEstimator, {"t_min": 0.01, "t_max": 0.9}),
        (SubVPScoreEstimator, {}),
        (VEScoreEstimator, {}),
        (FlowMatchingEstimator, {"noise_scale": 0.1}),
    ],
)
def test_the_denoiser_is_the_posterior_mean_at_its_own_scales(kind, options, standardized):
    estimator = exact(kind, standardized, **options)
    made = denoiser(estimator, X)
    mean, cov = posterior(X)
    if standardized:
        mean, scale = estimator.to_z(mean)[0].double(), estimator._theta_scale[0].double()
        cov = cov / (scale[:, None] * scale)
    x_t = 2 * torch.randn(5, 2, dtype=torch.float64)
    for t in torch.tensor([0.0, 0.1, 0.5, 0.95, 1.0], dtype=torch.float64):
        alpha, sigma = made.schedule(t)
        gain = alpha * cov @ (alpha**2 * cov + sigma**2 * torch.eye(2)).inverse()
        expected = mean + (x_t - alpha * mean) @ gain.T
        # sbi's own scales are in single precision
        torch.testing.assert_close(made(x_t, t).mean, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("standardized", [False, True])
@pytest.mark.parametrize("kind", [VPScoreEstimator, FlowMatchingEstimator])
def test_samples_follow_the_posterior_given_a_constraint_in_the_parameters_units(
    kind, standardized
):
    """False-alarm rate of the five-sigma limits: below 1e-5."""
    total = -0.5
    conserved = feasibly.Linear(torch.ones(1, 2), [total], atol=1e-4)
    made = Posterior.of(exact(kind, standardized), conserved).set_default_x(X)
    torch.manual_seed(0)
    theta = made.sample((40, 10))
    assert theta.shape == (40, 10, 2)
    assert (theta.sum(dim=-1) - total).abs().max() < 2e-4
    mean, cov = on_sum(total, *posterior(X))
    std, n = cov[0, 0].sqrt(), theta[..., 0].numel()
    assert (theta[..., 0].mean() - mean[0]).abs() < 5 * std / math.sqrt(n)
    assert (theta[..., 0].std() / std - 1).abs() < 5 / math.sqrt(2 * n)


def test_calls_are_new_samples_of_the_seed_and_keep_the_order_of_observations():
    made = Posterior.of(exact(VPScoreEstimator), method=feasibly.Ancestral(steps=16))
    xs = torch.tensor([[0.0, 0.0], [9.0, 9.0], [-9.0, -9.0]])
    torch.manual_seed(1)
    first = made.sample_batched((20,), xs)
    assert not torch.equal(made.sample_batched((20,), xs), first)
    torch.manual_seed(1)
    torch.testing.assert_close(made.sample_batched((20,), xs), first, rtol=0, atol=0)
    assert first.shape == (20, 3, 2)
    expected = torch.stack([posterior(x)[0] for x in xs]).float()
    assert (first.mean(dim=0) - expected).abs().max() < 1  # they are 5 apart
    assert made.sample((), x=xs[0]).shape == (2,)


def test_sbis_own_diagnostics_pass_given_a_conserved_sum():
    """Parameters are of the prior given their sum. Each of the p-values is below 1e-4 by chance
    in one of 10,000 seeds."""
    torch.manual_seed(0)
    total, n = -0.5, 20
    mean, cov = on_sum(total, MEAN, COV)
    first = mean[0] + cov[0, 0].sqrt() * torch.randn(n, dtype=torch.float64)
    theta = torch.stack([first, total - first], dim=1).float()
    x = theta + NOISE * torch.randn(n, 2)
    conserved = feasibly.Linear(torch.ones(1, 2), [total], atol=1e-4)
    fast = {"method": feasibly.CalibratedPPR(steps=8, products=2), "monitor": False}
    made = Posterior.of(exact(VPScoreEstimator), conserved, **fast)
    with pytest.warns(UserWarning, match="on the order of 100s"):
        ranks, dap = run_sbc(theta, x, made, num_posterior_samples=50, show_progress_bar=False)
    assert (dap.sum(dim=1) - total).abs().max() < 2e-4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (check_uniformity_frequentist(ranks, 50) > 1e-4).all()  # as check_sbc does
        few = {"num_posterior_samples": 20, "num_bins": 10, "show_progress_bar": False}
        ecp, alpha = run_tarp(theta[:5], x[:5], made, **few)
    assert check_tarp(ecp, alpha)[1] > 1e-4
    with pytest.raises(NotImplementedError, match="no density"):
        run_sbc(theta[:1], x[:1], made, 2, reduce_fns=made.log_prob, show_progress_bar=False)


def test_samples_of_a_trained_estimator_agree_with_sbis_and_keep_to_the_bounds_of_the_prior(
    tmp_path, monkeypatch
):
    """sbi solves the reverse diffusion of the same estimator, and rejects what is outside. The
    limits are five standard errors of 500 samples and more."""
    monkeypatch.chdir(tmp_path)  # where sbi writes its logs
    torch.manual_seed(0)
    low, high = torch.tensor([-1.0, 100.0]), torch.tensor([1.0, 300.0])
    prior = BoxUniform(low, high)
    theta = prior.sample((2000,))
    x = (theta - prior.mean) / prior.stddev + 0.5 * torch.randn(2000, 2)
    net = posterior_flow_nn(hidden_features=32, num_layers=2, compose_standardization=True)
    inference = FMPE(prior, vf_estimator=net, show_progress_bars=False)
    estimator = inference.append_simulations(theta, x).train(200, 2e-3, max_num_epochs=15)
    x_o = torch.tensor([1.2, 1.2])
    theirs = inference.build_posterior(estimator, sample_with="sde").set_default_x(x_o)
    theirs = theirs.sample((500,), show_progress_bars=False)
    made = Posterior.of(estimator, feasibly.Bounds(low, high, atol=1e-6)).set_default_x(x_o)
    ours = made.sample((500,))
    assert ((ours >= low - 1e-4) & (ours <= high + 1e-4)).all()
    std = theirs.std(dim=0)
    assert ((ours.mean(dim=0) - theirs.mean(dim=0)) / std).abs().max() < 0.3
    assert (ours.std(dim=0) / std - 1).abs().max() < 0.25


def test_the_posterior_of_a_joint_denoiser_with_the_data_as_a_constraint():
    """False-alarm rate of the five-sigma limits: below 1e-5."""
    mean, std = MEAN.repeat(2), torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64)
    cov = COV.repeat(2, 2)
    cov[2:, 2:] += NOISE**2 * torch.eye(2)
    joint = Gaussian(torch.zeros(4), cov / (std[:, None] * std), LogLogit())

    def problem(x):
        return joint, feasibly.Linear(torch.eye(4)[2:], (x.reshape(2) - mean[2:]) / std[2:], 1e-6)

    made = Posterior(problem, (4,), lambda z: mean[:2] + std[:2] * z[:, :2])
    torch.manual_seed(0)
    theta = made.sample((400,), x=X)
    expected, cov = posterior(X)
    errors = (theta.mean(dim=0) - expected).abs() / (cov.diagonal() / 400).sqrt()
    assert errors.max() < 5
    assert (theta.std(dim=0) / cov.diagonal().sqrt() - 1).abs().max() < 5 / math.sqrt(800)


def test_mistakes_are_explained():
    estimator = exact(VPScoreEstimator)
    with pytest.raises(ValueError, match="takes one observation, got 2"):
        Posterior.of(estimator).sample((3,), x=torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match="expected shape"):
        denoiser(estimator, torch.zeros(3))
    with pytest.raises(DenoiserError, match="NPSE or FMPE"):
        denoiser(torch.nn.Linear(2, 2), X)
    with pytest.raises(DenoiserError, match="NPSE or FMPE"):
        Posterior.of(torch.nn.Linear(2, 2))
    made = Posterior.of(estimator).set_default_x(X)
    for call in (made.log_prob, made.potential):
        with pytest.raises(NotImplementedError, match="no density"):
            call(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="manual_seed"):
        Posterior.of(estimator, seed=1)
