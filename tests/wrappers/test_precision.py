import pytest
import torch

from feasibly import PPR, Equality
from feasibly.denoisers import Karras
from feasibly.minimizers import GaussNewton
from feasibly.nn import ModulatedMLP
from feasibly.schedules import LogLogit
from feasibly.wrappers import MixedPrecision
from tests.helpers import on, sampled


@pytest.fixture
def half():
    torch.manual_seed(0)
    net = ModulatedMLP(width=32)
    torch.nn.init.normal_(net.output.weight, std=0.1)
    denoiser = Karras(net, LogLogit()).requires_grad_(False)
    return denoiser, MixedPrecision(denoiser, sigma_min=0.1)


def at(schedule, sigma):
    t = torch.linspace(0, 1, 10_001)
    return t[(schedule(t)[1] - sigma).abs().argmin()]


@pytest.mark.parametrize("sigma", [0.01, 0.09, 0.11, 3.0])
def test_half_precision_is_used_above_a_noise_level_alone(half, sigma):
    plain, mixed = half
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(1))
    t = at(plain.schedule, sigma)
    expected, found = plain(x, t).mean, mixed(x, t).mean
    assert found.dtype == torch.float32
    assert torch.equal(found, expected) == (sigma < 0.1)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_a_mixed_batch_of_noise_levels_is_run_in_full_precision(half):
    plain, mixed = half
    x = torch.randn(2, 2, generator=torch.Generator().manual_seed(1))
    t = torch.stack([at(plain.schedule, sigma) for sigma in (0.01, 3.0)])
    assert torch.equal(mixed(x, t).mean, plain(x, t).mean)


def test_a_sampler_projects_through_half_precision_and_lands(half):
    _, mixed = half
    line = Equality(lambda x: x[:, :1] - 0.2, tolerance=1e-8)
    result = sampled(on(PPR(steps=8, minimize=GaussNewton()), mixed, line), 8, (2,), seed=0)
    assert result.feasible.all()
    assert result.samples.dtype == torch.float32
