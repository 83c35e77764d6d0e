import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    def __init__(self, in_channels, out_channels, factor):
        super().__init__()
        last = nn.Conv2d(in_channels, out_channels, factor, stride=factor)
        self.descent = nn.ModuleList([nn.ModuleList([last])])

    def forward(self, x):
        return self.descent[0][0](x)


class Decoder(nn.Module):
    def __init__(self, in_channels, out_channels, factor):
        super().__init__()
        self.up = nn.Conv2d(in_channels, 4 * in_channels, 3, padding=1)
        self.out = nn.Conv2d(4 * in_channels, out_channels, 3, padding=1)
        self.factor = factor

    def forward(self, z):
        fine = F.interpolate(self.up(z), scale_factor=self.factor, mode="bilinear")
        return self.out(fine + 0.3 * torch.sin(fine))


class ConvAE(nn.Module):
    def __init__(self, encoder, decoder, shape=(721, 1440), resize=32, noise=0.0):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.shape, self.resize, self.noise = shape, resize, noise

    @property
    def latent_shape(self):
        (rows, columns), f = self.shape, self.resize
        return -(-rows // f), -(-columns // f) + 2, self.encoder.descent[-1][-1].out_channels

    def decode(self, z, t, c=None):
        height, width, _ = self.latent_shape
        if self.noise > 0:
            z = z + self.noise * torch.randn_like(z)
        fields = self.decoder(z.mT.unflatten(-1, (height, width)))
        (rows, columns), f = self.shape, self.resize
        return fields[..., :rows, f : f + columns].flatten(start_dim=-2).mT


def conv_ae(
    in_channels,
    lat_channels,
    spatial=2,
    shape=(721, 1440),
    resize=32,
    saturation="softclip2",
    saturation_bound=5.0,
    noise_level=0.0,
    latent_shape=None,
    name=None,
    context_channels=None,
    *,
    hid_channels=(64, 128, 256),
    checkpointing=False,
):
    encoder = Encoder(in_channels, lat_channels, resize)
    decoder = Decoder(lat_channels, in_channels, resize)
    return ConvAE(encoder, decoder, shape, resize, noise_level)
