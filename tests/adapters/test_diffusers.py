"""Pipelines of diffusers that sample under constraints."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import feasibly
from feasibly.errors import DenoiserError

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")

from feasibly.adapters.diffusers import ConstrainedPipeline, Guided  # noqa: E402
from tests.models.test_diffusers_models import dit  # noqa: E402

SIZE, N = 3, 512
Z = 5.0  # of some 20 z-scores in a test one is larger with a probability below 2e-5


def gaussian():
    """The covariance of correlated pixels, and the means of two classes and of no class."""
    places = torch.arange(SIZE**2, dtype=torch.float64)
    cov = 0.2 * torch.exp(-(places[:, None] - places).abs() / 2)
    return cov, torch.stack([0.3 * torch.cos(places + k) for k in range(3)])


class Exact(nn.Module):
    """The noise that a perfectly trained network of DDPM's schedule predicts for a Gaussian of
    each class."""

    def __init__(self):
        super().__init__()
        bar = diffusers.DDPMScheduler().alphas_cumprod.double()
        self.log_nsr = (torch.log1p(-bar) - bar.log()).numpy()
        self.config = SimpleNamespace(sample_size=SIZE, in_channels=1, out_channels=1)

    def forward(self, x, timestep, class_labels=None, return_dict=True):
        cov, means = gaussian()
        nsr = np.interp(timestep.double().numpy(), np.arange(1000), self.log_nsr)
        alpha, sigma = (torch.sigmoid(torch.tensor(s * nsr)).sqrt()[:, None] for s in (-1, 1))
        mean = means[2 if class_labels is None else class_labels]
        z = x.flatten(1).double() - alpha * mean
        inverse = torch.linalg.inv(
            alpha[..., None] ** 2 * cov + sigma[..., None] ** 2 * torch.eye(SIZE**2)
        )
        # E[noise | x] = sigma (alpha^2 C + sigma^2)^{-1} (x - alpha m)
        noise = sigma * torch.einsum("bij,bj->bi", inverse, z)
        return (noise.reshape(x.shape).to(x),)


def check(images, mean, cov, matrix, y):
    """Compares images in [0, 1] with the Gaussian of data in [-1, 1], given `matrix` u = y."""
    mean, cov = mean / 2 + 0.5, cov / 4
    gain = cov @ matrix.T @ torch.linalg.inv(matrix @ cov @ matrix.T)
    mean, cov = mean + gain @ (y - matrix @ mean), cov - gain @ matrix @ cov
    u, free = images.flatten(1).double(), matrix.sum(dim=0) == 0
    std = cov.diagonal()[free].sqrt()
    assert (((u.mean(dim=0) - mean)[free] / std).abs() * N**0.5).max() < Z
    assert ((u.std(dim=0)[free] / std - 1).abs() * (2 * N) ** 0.5).max() < Z
    torch.testing.assert_close(u @ matrix.T, y.expand(N, -1), atol=2e-3, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_images_are_of_the_exact_conditional_with_and_without_guidance(scale):
    cov, means = gaussian()
    matrix, y = torch.eye(SIZE**2, dtype=torch.float64)[[0, 5]], torch.tensor([0.7, 0.2]).double()
    pipeline = ConstrainedPipeline(diffusers.DDPMScheduler(), Exact())
    found = pipeline(
        feasibly.Linear(matrix, y, atol=1e-3),
        N,
        conditions={"class_labels": torch.tensor([1])},
        unconditional={"class_labels": torch.tensor([2])},
        guidance_scale=scale,
        output_type="pt",
    )
    assert found.result.feasible.all()
    # of Gaussians of one covariance the guided denoiser is that of a Gaussian too
    check(found.images, means[2] + scale * (means[1] - means[2]), cov, matrix, y)


def unet(channels=1, sample_size=8):
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=sample_size,
        in_channels=channels,
        out_channels=channels,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
    ).eval()


FAST = {"method": feasibly.PPR(steps=8), "monitor": False}


def corner(image):
    return image[:, 0, :2, :2].flatten(1)


DARK = feasibly.Observation(corner, torch.zeros(4), atol=1e-2)


@pytest.mark.slow
def test_a_pipeline_of_diffusers_is_taken_over_saved_and_loaded(tmp_path):
    own = diffusers.DDPMPipeline(unet(), diffusers.DDPMScheduler())
    pipeline = ConstrainedPipeline(**own.components)
    images = pipeline(DARK, 2, output_type="pt", seed=3, **FAST).images
    assert images.shape == (2, 1, 8, 8)
    assert corner(images).abs().max() <= 1e-2
    for saved in (own, pipeline):
        saved.save_pretrained(tmp_path)
        loaded = ConstrainedPipeline.from_pretrained(tmp_path)
        again = loaded(DARK, 2, output_type="pt", seed=3, **FAST).images
        torch.testing.assert_close(again, images)
    array = loaded(DARK, 2, output_type="np", seed=3, **FAST).images
    np.testing.assert_allclose(array, images.movedim(1, -1))
    (first, _) = loaded(DARK, 2, seed=3, **FAST).images
    assert (first.size, first.mode) == ((8, 8), "L")
    shown = images[0, 0].clamp(0, 1) * 255
    np.testing.assert_allclose(np.asarray(first, dtype=float), shown, atol=0.51)


def test_pickles_are_not_loaded(tmp_path):
    ConstrainedPipeline(diffusers.DDPMScheduler(), unet()).save_pretrained(
        tmp_path, safe_serialization=False
    )
    with pytest.raises(OSError, match="safetensors"):
        ConstrainedPipeline.from_pretrained(tmp_path)


@pytest.mark.slow
def test_a_constraint_on_latents_is_one_on_the_decoded_images(tmp_path):
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        latent_channels=2,
        norm_num_groups=4,
        sample_size=16,
        scaling_factor=0.5,
    )
    pipeline = ConstrainedPipeline(diffusers.DDPMScheduler(), unet(2), vae=vae)
    pipeline.save_pretrained(tmp_path)
    pipeline = ConstrainedPipeline.from_pretrained(tmp_path)
    bright = feasibly.Observation(lambda u: u.mean(dim=(1, 2, 3))[:, None], [0.55], atol=1e-3)
    found = pipeline(bright, 2, output_type="pt", **FAST)
    assert found.result.samples.shape == (2, 2, 8, 8)
    decoded = pipeline.vae.decode(found.result.samples / 0.5).sample / 2 + 0.5
    torch.testing.assert_close(found.images, decoded.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        decoded.mean(dim=(1, 2, 3)), torch.full((2,), 0.55), atol=1.1e-3, rtol=0
    )


@pytest.mark.slow
@torch.no_grad()
def test_guidance_by_text_is_that_of_two_evaluations():
    torch.manual_seed(0)
    net = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 8),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=6,
        attention_head_dim=2,
    ).eval()
    text, nothing = torch.randn(2, 5, 6), torch.randn(1, 5, 6)
    told = {
        "conditions": {"encoder_hidden_states": text},
        "unconditional": {"encoder_hidden_states": nothing},
    }
    pipeline = ConstrainedPipeline(diffusers.DDPMScheduler(), net)
    x, time = torch.randn(2, 4, 8, 8), torch.tensor([100.0, 700.0])
    guided = Guided(net, told["unconditional"], 2.5)(x, time, **told["conditions"])
    one = net(x, time, text).sample
    other = net(x, time, nothing.expand(2, -1, -1)).sample
    torch.testing.assert_close(guided, other + 2.5 * (one - other), atol=1e-5, rtol=1e-4)
    found = pipeline(None, 2, guidance_scale=2.5, output_type="pt", **told, method="ancestral")
    assert found.images.isfinite().all()


@pytest.mark.slow
@torch.no_grad()
def test_a_transformer_with_classes_and_a_learned_variance_is_guided():
    net = dit(out_channels=4).eval()
    pipeline = ConstrainedPipeline(diffusers.DDPMScheduler(), transformer=net)
    labels = {"class_labels": torch.tensor([3, 4])}
    told = {"unconditional": {"class_labels": torch.tensor([10])}, "guidance_scale": 4.0}
    options = {"output_type": "pt", **told, **FAST}
    both = pipeline(DARK, 2, conditions=labels, **options).images
    assert corner(both).abs().max() <= 1e-2
    one = pipeline(DARK, 1, conditions={"class_labels": torch.tensor([3])}, **options).images
    torch.testing.assert_close(one, both[:1], atol=1e-3, rtol=1e-3)


def test_mistakes_are_explained():
    pipeline = ConstrainedPipeline(diffusers.DDPMScheduler(), unet())
    with pytest.raises(ValueError, match="output_type must be one of"):
        pipeline(output_type="latent")
    label = {"class_labels": torch.tensor([1])}
    with pytest.raises(DenoiserError, match="give both the same arguments"):
        pipeline(unconditional=label, guidance_scale=2.0)
    for unconditional in (None, {"class_labels": torch.tensor([1, 2])}):
        with pytest.raises(ValueError, match=r"with one row each.*guidance needs it"):
            pipeline(conditions=label, unconditional=unconditional, guidance_scale=2.0)
    pipeline = ConstrainedPipeline(diffusers.DDPMScheduler(), unet(sample_size=None))
    with pytest.raises(ValueError, match="no sample_size"):
        pipeline()
    assert pipeline(shape=(1, 4, 8), output_type="np").images.shape == (1, 4, 8, 1)
