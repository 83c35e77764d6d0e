"""Algorithm 1."""

import pytest
import torch

from feasibly import Ancestral, PredictorCorrector


@pytest.mark.parametrize("delta", [0.01, 0.1, 0.5])
def test_correction_has_its_closed_form_stationary_variance(delta, gaussian):
    """On N(0, 1), x' = a x + sqrt(delta) sigma z with a = rho + sqrt(1 - delta) (1 - rho), so
    the variance is delta sigma^2 / (1 - a^2), which tends to 1 + sigma^2 with delta to zero."""
    sampler = PredictorCorrector(gaussian, delta=delta)
    direction = torch.tensor([[1.0, 1.0]], dtype=torch.float64) / 2**0.5  # of variance 1.6
    t = torch.tensor(0.55, dtype=torch.float64)
    sigma = gaussian.schedule(t)[1]
    rho = 1.6 / (1.6 + sigma**2)
    a = rho + (1 - delta) ** 0.5 * (1 - rho)

    moved = sampler.correct(direction, gaussian(direction, t).mean, t, torch.zeros_like)
    torch.testing.assert_close(moved, a * direction)
    noisy = sampler.correct(direction, gaussian(direction, t).mean, t, torch.ones_like)
    torch.testing.assert_close(noisy - moved, torch.full_like(direction, 1.0) * sigma * delta**0.5)
    stationary = delta * sigma**2 / (1 - a**2)
    assert stationary.item() == pytest.approx((1.6 + sigma**2).item(), rel=delta)


def test_evaluations_and_reduction(gaussian):
    """T (1 + N) evaluations; without corrections it is the predictor."""
    two = PredictorCorrector(gaussian, steps=6, corrections=2, output="state").sample(2, (2,))
    assert two.evaluations.forward == 18
    none = PredictorCorrector(gaussian, steps=6, corrections=0).sample(4, (2,), seed=3)
    ddpm = Ancestral(gaussian, steps=6, order=1, spacing="time").sample(4, (2,), seed=3)
    assert torch.equal(none.samples, ddpm.samples)


@pytest.mark.parametrize("options", [{"corrections": -1}, {"delta": 0.0}, {"delta": 2.0}], ids=str)
def test_bad_options_are_refused(options, gaussian):
    with pytest.raises(ValueError, match="PredictorCorrector"):
        PredictorCorrector(gaussian, **options)
