"""Denoisers, physics and reconstructors of deepinv."""

import pytest
import torch

import feasibly
from feasibly.constraints import Observation
from feasibly.errors import ConstraintError, DenoiserError
from feasibly.oracles import Gaussian
from feasibly.schedules import VP

deepinv = pytest.importorskip("deepinv", reason="deepinv is not installed")

from feasibly.adapters.deepinv import Reconstructor, constraint, denoiser  # noqa: E402

physics = deepinv.physics
SIZE, N = 4, 256
SHAPE = (1, SIZE, SIZE)
Z = 5.0  # of 64 z-scores in a test one is larger with a probability below 4e-5


def gaussian():
    """The mean and the covariance of correlated pixels in [0, 1]."""
    axis = torch.arange(SIZE, dtype=torch.float64)
    places = torch.cartesian_prod(axis, axis)
    return 0.5 + 0.1 * torch.cos(places[:, 0]), 0.04 * torch.exp(-torch.cdist(places, places) / 2)


class Exact(deepinv.models.Denoiser):
    """The exact denoiser of these pixels, in deepinv's form."""

    def forward(self, x, sigma, **_):
        mean, cov = gaussian()
        sigma = self._handle_sigma(sigma, batch_size=len(x), ndim=3, dtype=torch.float64)
        gain = cov @ torch.linalg.inv(cov + sigma**2 * torch.eye(SIZE**2))
        z = x.flatten(1).double() - mean
        return (mean + torch.einsum("bij,bj->bi", gain, z)).reshape(x.shape).to(x)


def images(n):
    mean, cov = gaussian()
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(n, SIZE**2, generator=generator, dtype=torch.float64)
    return (mean + z @ torch.linalg.cholesky(cov).T).reshape(n, *SHAPE).float()


def exact(operator, y, std):
    """The mean and the covariance of pixels, given a row of measurements."""
    mean, cov = gaussian()
    A = operator.A(torch.eye(SIZE**2).reshape(-1, *SHAPE)).flatten(1).T.double()
    noise = std**2 * torch.eye(len(A))
    gain = cov @ A.T @ torch.linalg.pinv(A @ cov @ A.T + noise)
    return mean + gain @ (y.flatten() - A @ mean), cov - gain @ A @ cov


MASK = (torch.arange(SIZE**2) % 3 > 0).float().reshape(SHAPE)
CASES = {
    "inpainting with noise": (
        lambda noise: physics.Inpainting(SHAPE, MASK, noise_model=noise),
        0.1,
    ),
    "inpainting": (lambda noise: physics.Inpainting(SHAPE, MASK, noise_model=noise), 0.0),
    "single precision with noise": (
        lambda noise: physics.CompressedSensing(5, SHAPE, noise_model=noise),
        0.05,
    ),
    "single precision": (
        lambda noise: physics.Downsampling(SHAPE, "bilinear", 2, noise_model=noise),
        0.0,
    ),
}


def compare(found, mean, cov):
    found = found.flatten(1).double()
    free = cov.diagonal() > 1e-9
    std = cov.diagonal()[free].sqrt()
    assert ((found.mean(dim=0) - mean)[free] / std).abs().max() * N**0.5 < Z
    assert (found.std(dim=0)[free] / std - 1).abs().max() * (2 * N) ** 0.5 < Z
    torch.testing.assert_close(found.mean(dim=0)[~free], mean[~free], atol=2e-3, rtol=0)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_samples_are_of_the_exact_posterior_of_each_row(name, rows):
    make, std = CASES[name]
    torch.manual_seed(0)
    operator = make(physics.GaussianNoise(std) if std else physics.ZeroNoise())
    y = operator(images(rows))
    reconstructor = Reconstructor(denoiser(Exact(), (1e-3, 40.0)), n=N, seed=0)
    result = reconstructor.sample(y, operator, N)
    assert result.feasible.all()
    for row, one in enumerate(y):
        compare(result.samples[row * N :][:N], *exact(operator, one, std))
    mean = reconstructor(y, operator)
    torch.testing.assert_close(mean, result.samples.reshape(rows, N, *SHAPE).mean(dim=1))


def test_data_of_other_units_are_converted():
    mean, cov = gaussian()
    centred = Gaussian(2 * mean - 1, 4 * cov, VP())
    reshaped = feasibly.wrap(
        lambda x, t: centred(x.flatten(1), t).mean.reshape(x.shape), "x0", VP(), time=lambda t: t
    )
    operator = physics.Inpainting(SHAPE, MASK, noise_model=physics.GaussianNoise(0.1))
    y = operator(images(1))
    reconstructor = Reconstructor(reshaped, mean=0.5, std=0.5, seed=1)
    found = reconstructor.sample(y, operator, N).samples / 2 + 0.5
    compare(found, *exact(operator, y[0], 0.1))
    torch.testing.assert_close(reconstructor(y, operator, n=N)[0], found.mean(dim=0))


def test_deepinv_s_own_evaluation_runs_it():
    operator = physics.Inpainting(SHAPE, MASK, noise_model=physics.GaussianNoise(0.05))
    torch.manual_seed(0)
    x = images(8)
    pairs = torch.utils.data.TensorDataset(x, operator(x))
    told = {"metrics": deepinv.metric.MSE(), "verbose": False, "show_progress_bar": False}

    def error(n):
        model = Reconstructor(denoiser(Exact(), (1e-3, 40.0)), n=n)
        loader = torch.utils.data.DataLoader(pairs, batch_size=4)
        return deepinv.test(model, loader, operator, **told)

    one, many = error(1), error(64)
    expected = exact(operator, pairs[0][1], 0.05)[1].trace().item() / SIZE**2
    # the error of the posterior mean is the posterior's variance, and that of a sample twice that:
    # a mean square over 8 images of 5 free pixels each is within a factor 2 by 4 standard errors
    assert expected / 2.2 < many["MSE"] < 2.2 * expected
    assert many["MSE"] < one["MSE"] < one["MSE no learning"]


def test_stacked_physics_are_stated_together():
    parts = [
        physics.Inpainting(SHAPE, MASK, noise_model=physics.GaussianNoise(0.1)),
        physics.Downsampling(SHAPE, "bilinear", 2),
    ]
    stacked = parts[0].stack(parts[1])
    y = stacked(images(2))
    result = Reconstructor(denoiser(Exact(), (1e-3, 40.0))).sample(y, stacked, 2)
    low = parts[1].A(result.samples)
    torch.testing.assert_close(low, y[1].repeat_interleave(2, dim=0), atol=1.1e-3, rtol=0)
    assert result.feasible.all()
    assert len(result.chi_square) == 1


def test_complex_measurements_have_half_the_variance_in_each_part():
    class Fourier(physics.LinearPhysics):
        def A(self, x, **_):
            return torch.fft.rfft2(x, norm="ortho")

        def A_adjoint(self, y, **_):
            return torch.fft.irfft2(y, s=(SIZE, SIZE), norm="ortho")

    operator = Fourier(noise_model=physics.GaussianNoise(0.1))
    x = torch.zeros(4000, *SHAPE)
    stated = constraint(operator(x)[:1], operator)
    errors = operator(x).flatten(1)[:, 1:2]
    assert isinstance(stated, Observation)
    std = 1 / stated.noise.weights[2]
    # 8000 numbers: a relative error of 0.04 is 5 standard errors
    assert torch.view_as_real(errors).std() == pytest.approx(std.item(), rel=0.04)


def test_nonlinear_physics_need_a_shape():
    operator = physics.Physics(A=lambda x: x.square().mean(dim=(2, 3)))
    y = operator(images(1))
    model = denoiser(Exact(), (1e-3, 40.0))
    with pytest.raises(ValueError, match=r"Physics does not say an image's shape"):
        Reconstructor(model)(y, operator)
    x = Reconstructor(model, SHAPE, method=feasibly.PPR(steps=16), monitor=False)(y, operator)
    torch.testing.assert_close(operator.A(x), y, atol=1.1e-3, rtol=0)


def test_what_cannot_be_stated_is_refused():
    y = torch.zeros(2, *SHAPE)
    for make, words in (
        (lambda: physics.Denoising(physics.PoissonNoise(0.1)), "PoissonNoise cannot be stated"),
        (
            lambda: physics.Denoising(physics.GaussianNoise(torch.tensor([0.1, 0.2]))),
            "noise level",
        ),
        (lambda: physics.Inpainting(SHAPE, torch.stack([MASK, 1 - MASK])), "an operator for each"),
        (
            lambda: physics.LinearPhysics(
                A=lambda x: x, A_adjoint=lambda y: y, sensor_model=lambda y: y.clamp(0, 1)
            ),
            "a sensor that changes values",
        ),
    ):
        with pytest.raises(ConstraintError, match=words):
            constraint(y, make())
    with pytest.raises(ConstraintError, match="measures nothing"):
        constraint(y + 0.5, physics.Inpainting(SHAPE, MASK))


def test_denoisers_that_cannot_be_sampled_are_refused():
    with pytest.raises(DenoiserError, match=r"is no deepinv\.models\.Denoiser"):
        denoiser(deepinv.models.wrapper.MinusOneOneDenoiserWrapper(Exact()), (1e-3, 40.0))
    with pytest.raises(DenoiserError, match=r"trained up to sigma=0.2"):
        denoiser(Exact(), (0.0, 0.2))
    score = deepinv.models.ScoreModelWrapper(
        torch.nn.Identity(), sigma_t=lambda t: 10 * t, variance_exploding=True
    )
    with pytest.raises(DenoiserError, match="clips its estimates"):
        denoiser(score, (1e-3, 10.0))
