import copy

import pytest
import torch

from feasibly.nn import SphereAutoencoder, SphereNet
from feasibly.nn.sphere import pad_sphere


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def autoencoder():
    torch.manual_seed(0)
    return SphereAutoencoder(fields=3, rows=16, latent=4, channels=(16, 32)).eval()


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = SphereNet(frames=3, latent=4, rows=4, channels=32, blocks=2).eval()
    torch.nn.init.normal_(net.project.weight)
    torch.nn.init.normal_(net.latitude)
    return net


def test_beyond_a_pole_is_the_other_side():
    rows, columns = 6, 8
    latitude = (torch.arange(rows) + 0.5) * torch.pi / rows - torch.pi / 2
    longitude = torch.arange(columns) * 2 * torch.pi / columns
    wide_lat = (torch.arange(-1, rows + 1) + 0.5) * torch.pi / rows - torch.pi / 2
    wide_lon = torch.arange(-1, columns + 1) * 2 * torch.pi / columns

    def field(lat, lon):  # smooth on the sphere: a polynomial of x, y, z
        x, y = lat.cos()[:, None] * lon.cos(), lat.cos()[:, None] * lon.sin()
        z = lat.sin()[:, None].expand_as(x)
        return x * z + 2 * y - x * y + z**3

    padded = pad_sphere(field(latitude, longitude)[None, None])[0, 0]
    torch.testing.assert_close(padded, field(wide_lat, wide_lon), atol=1e-6, rtol=0)


def test_networks_commute_with_rotations_about_the_axis(autoencoder, net):
    x = randn(2, 3, 16, 32)
    z = autoencoder.encode(x)
    torch.testing.assert_close(autoencoder.encode(x.roll(4, -1)), z.roll(1, -1))
    y = autoencoder.decode(z)
    torch.testing.assert_close(autoencoder.decode(z.roll(1, -1)), y.roll(4, -1))
    w, label = randn(2, 3, 4, 4, 8), torch.tensor([0.1, -1.0])
    torch.testing.assert_close(net(w.roll(1, -1), label), net(w, label).roll(1, -1))


def test_the_network_sees_the_latitude_and_the_frame(net):
    label = torch.tensor(0.0)
    same_everywhere = torch.ones(1, 3, 4, 4, 8)
    y = net(same_everywhere, label)
    assert (y[..., 0, :] - y[..., 2, :]).abs().max() > 1e-3
    w = randn(1, 3, 4, 4, 8)
    assert (net(w.flip(1), label) - net(w, label).flip(1)).abs().max() > 1e-3


def test_shapes_go_there_and_back_with_any_batch_shape(autoencoder):
    x = randn(2, 5, 3, 16, 32)
    z = autoencoder.encode(x)
    assert z.shape == (2, 5, 4, 4, 8)
    y = autoencoder.decode(z)
    assert y.shape == x.shape
    torch.testing.assert_close(y[1, 2], autoencoder.decode(z[1, 2][None])[0])


def test_units_of_fields_are_departures_from_the_climate_of_their_latitude(autoencoder):
    autoencoder = copy.deepcopy(autoencoder)
    latitude = (torch.arange(16) + 0.5) * torch.pi / 16
    jet = torch.stack([k * latitude.sin() for k in (1e4, 20.0, 0.0)])[:, :, None]
    scale = torch.tensor([2e3, 15.0, 10.0])[:, None, None]
    x = jet + scale * randn(256, 3, 16, 32)
    autoencoder.fit_fields(x)
    units = autoencoder.standardize(x)
    assert units.mean(dim=(0, 3)).abs().max() < 1e-3
    area = latitude.sin() / latitude.sin().mean()
    variance = (units.square() * area[:, None]).mean(dim=(0, 2, 3))
    torch.testing.assert_close(variance, torch.ones(3), atol=1e-4, rtol=0)
    z = autoencoder.encode(x[:2])
    inside = autoencoder.decoder(z.flatten(end_dim=-4))
    torch.testing.assert_close(
        autoencoder.standardize(autoencoder.decode(z)), inside, atol=1e-3, rtol=1e-3
    )


def test_latents_are_bounded_and_come_in_their_own_units(autoencoder):
    autoencoder = copy.deepcopy(autoencoder)
    x = 100 * randn(64, 3, 16, 32)
    raw = autoencoder.encode(x)
    assert raw.abs().max() < 5
    autoencoder.fit_latents(x)
    z = autoencoder.encode(x)
    std, mean = torch.std_mean(z, dim=(0, 2, 3))
    torch.testing.assert_close(std, torch.ones(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(mean, torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        autoencoder.decoder(raw), autoencoder.decode(z), atol=1e-4, rtol=1e-4
    )
    autoencoder.fit_latents(x)  # once more changes nothing
    torch.testing.assert_close(autoencoder.encode(x), z, atol=1e-4, rtol=1e-4)


def test_members_do_not_depend_on_their_batch(net):
    w, label = randn(5, 3, 4, 4, 8), torch.linspace(-2, 1, 5)
    torch.testing.assert_close(net(w, label)[3:4], net(w[3:4], label[3:4]))
    torch.testing.assert_close(net(w, torch.tensor(0.3)), net(w, torch.full((5,), 0.3)))
