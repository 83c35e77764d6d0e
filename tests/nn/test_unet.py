import pytest
import torch

from feasibly.nn import UNet
from feasibly.nn.unet import ResidualBlock


@pytest.fixture(scope="module")
def unet():
    torch.manual_seed(0)
    net = UNet(channels=(16, 32), frequencies=8)
    torch.nn.init.normal_(net.project[-1].weight)
    return net.double()


def normal(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_output_has_the_shape_of_the_input(unet):
    x = normal(3, 16, 8)
    assert unet(x, normal(3)).shape == x.shape
    assert unet(x, torch.tensor(0.3, dtype=torch.float64)).shape == x.shape


def test_one_noise_label_stands_for_all_samples(unet):
    x, label = normal(3, 8, 8), torch.tensor(0.3, dtype=torch.float64)
    torch.testing.assert_close(unet(x, label), unet(x, label.expand(3)))


def test_the_network_commutes_with_shifts_in_space(unet):
    # by the network's stride, which two scales make two
    x, label = normal(2, 16, 16), normal(2, seed=1)
    torch.testing.assert_close(unet(x.roll(2, dims=2), label), unet(x, label).roll(2, dims=2))


def test_a_convolution_sees_across_the_seam_in_space_and_not_in_time():
    torch.manual_seed(0)
    block = ResidualBlock(16, 4).double()
    block.norm = torch.nn.Identity()  # which sees everything
    h, condition = normal(1, 16, 12, 12), normal(1, 4)
    changed = h.clone()
    changed[..., 0, 0] += 1
    moved = (block(changed, condition) - block(h, condition)).abs().sum(dim=1)[0] > 1e-12
    assert moved.any(dim=0).nonzero().flatten().tolist() == [0, 1, 2, 10, 11]
    assert moved.any(dim=1).nonzero().flatten().tolist() == [0, 1, 2]


def test_a_sample_alone_is_the_sample_in_a_batch(unet):
    x, label = normal(4, 16, 16), normal(4, seed=1)
    torch.testing.assert_close(unet(x, label)[2:3], unet(x[2:3], label[2:3]))


def test_the_noise_level_matters_and_every_weight_is_used():
    torch.manual_seed(1)
    net = UNet(channels=(16, 32), frequencies=8)
    torch.nn.init.normal_(net.project[-1].weight)
    x = torch.randn(2, 8, 8)
    low, high = net(x, torch.tensor(-1.0)), net(x, torch.tensor(1.0))
    assert not torch.allclose(low, high)
    low.square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_an_untrained_network_returns_zero():
    assert not UNet(channels=(16, 32))(torch.randn(1, 8, 8), torch.tensor(0.0)).any()
