import pytest
import torch
from torch import nn

import feasibly
from feasibly import LatentDecoder
from feasibly.errors import ConstraintError
from feasibly.oracles import Gaussian
from feasibly.schedules import LogLogit


class VAE(nn.Module):
    """A VAE in the form of diffusers', with a linear decoder."""

    def __init__(self, **config):
        super().__init__()
        self.config = type("Config", (), config)()
        self.layer = nn.Linear(2, 5)
        self.calls = []

    def decode(self, z):
        self.calls.append(len(z))
        return type("Out", (), {"sample": self.layer(z)})()

    def encode(self, x):
        mean = torch.linalg.lstsq(self.layer.weight, (x - self.layer.bias).T).solution.T
        distribution = type("Distribution", (), {"mode": lambda self: mean})()
        return type("Out", (), {"latent_dist": distribution})()


SETTINGS = {
    "none": ({}, 1.0, 0.0),
    "scaling": ({"scaling_factor": 0.18215}, 1 / 0.18215, 0.0),
    "shift": ({"scaling_factor": 0.3611, "shift_factor": 0.1159}, 1 / 0.3611, 0.1159),
    "no shift": ({"scaling_factor": 0.18215, "shift_factor": None}, 1 / 0.18215, 0.0),
    "moments": (
        {"latents_mean": [1.0, -2.0], "latents_std": [0.5, 2.0], "scaling_factor": 0.5},
        torch.tensor([1.0, 4.0]),
        torch.tensor([1.0, -2.0]),
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_latents_are_scaled_as_the_vae_says(setting):
    config, factor, offset = SETTINGS[setting]
    vae = VAE(**config)
    decode = LatentDecoder(vae)
    z = torch.randn(3, 2)
    expected = vae.layer(z * factor + offset)
    torch.testing.assert_close(decode(z), expected)
    torch.testing.assert_close(decode.encode(expected), z, rtol=1e-4, atol=1e-4)


def test_members_are_decoded_in_chunks_and_again_for_a_gradient():
    vae = VAE()
    z = torch.randn(5, 2, requires_grad=True)
    decoded = LatentDecoder(vae.eval().requires_grad_(False), chunk=2)(z)
    assert vae.calls == [2, 2, 1]
    (gradient,) = torch.autograd.grad(decoded.square().sum(), z)
    assert sorted(vae.calls) == [1, 1, 2, 2, 2, 2]
    (expected,) = torch.autograd.grad(vae.layer(z).square().sum(), z)
    torch.testing.assert_close(gradient, expected)
    vae.calls.clear()
    LatentDecoder(vae, recompute=False)(z).sum().backward()
    assert vae.calls == [5]


def test_the_decoder_is_frozen_and_runs_in_its_own_dtype():
    vae = VAE().to(torch.bfloat16).train()
    decode = LatentDecoder(vae)
    assert not decode.decoder.training
    assert not any(p.requires_grad for p in decode.decoder.parameters())
    assert vae.training
    assert all(p.requires_grad for p in vae.parameters())
    assert decode(torch.randn(3, 2)).dtype == torch.float32


def test_a_constraint_behind_a_decoder():
    torch.manual_seed(0)
    decode = LatentDecoder(VAE(scaling_factor=0.5), chunk=4)
    constraint = feasibly.Decoded(
        feasibly.Equality(lambda x: x.mean(dim=1, keepdim=True) - 0.2, tolerance=1e-8),
        decode,
        decode.encode,
    )
    prior = Gaussian(torch.zeros(2), torch.eye(2), LogLogit())
    result = feasibly.sample(prior, constraint, 8, (2,))
    assert result.feasible.all()
    assert (decode(result.samples).mean(dim=1) - 0.2).abs().max() < 1e-3


def test_any_function_is_a_decoder():
    z = torch.randn(3, 2)
    torch.testing.assert_close(LatentDecoder(torch.tanh)(z), z.tanh())


def test_mistakes_are_explained():
    with pytest.raises(ConstraintError, match="neither"):
        LatentDecoder(3)
    with pytest.raises(ValueError, match="chunk"):
        LatentDecoder(torch.tanh, chunk=0)
    with pytest.raises(ValueError, match="chunk"):
        LatentDecoder(torch.tanh, chunk="8")
    with pytest.raises(ConstraintError, match="is the class VAE"):
        LatentDecoder(VAE)
    pipeline = type("Pipeline", (), {"vae": VAE(), "__call__": lambda self: None})()
    with pytest.raises(ConstraintError, match=r"LatentDecoder\(pipeline\.vae\)"):
        LatentDecoder(pipeline)
    with pytest.raises(ConstraintError, match=r"has no encode\(\)"):
        LatentDecoder(torch.tanh).encode(torch.zeros(2, 3))
    with pytest.raises(ConstraintError, match="returned dict"):
        LatentDecoder(lambda z: {"x": z})(torch.zeros(2, 3))


def test_a_real_autoencoder(tmp_path):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8,), norm_num_groups=4, latent_channels=2, sample_size=8
    ).eval()
    vae.save_pretrained(tmp_path)
    vae = diffusers.AutoencoderKL.from_pretrained(tmp_path)
    decode = LatentDecoder(vae, chunk=2)
    z = torch.randn(3, 2, 8, 8, requires_grad=True)
    expected = vae.decode(z / 0.18215).sample
    torch.testing.assert_close(decode(z), expected, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(decode(z).square().sum(), z)
    assert gradient.isfinite().all()
    x = torch.randn(3, 3, 8, 8)
    mean = vae.encode(x).latent_dist.mode()
    torch.testing.assert_close(decode.encode(x), mean * 0.18215, rtol=1e-4, atol=1e-5)
