import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from appa.date import encode

from .attention import SelfAttention, xfa

SPARSE = xfa._has_cpp_library


class ViDiT(nn.Module):
    def __init__(
        self,
        in_channels,
        blanket_size,
        shape,
        cond_channels=0,
        mod_features=0,
        hid_channels=1024,
        hid_blocks=3,
        spatial=3,
        patch_size=1,
        window_size=None,
        name="",
        arch="",
        checkpointing=False,
    ):
        super().__init__()
        self.blanket_size, self.shape = blanket_size, shape
        self.checkpointing = checkpointing
        self.mod = nn.Linear(mod_features, hid_channels)
        self.inward = nn.Linear(in_channels + 4 * blanket_size, hid_channels)
        self.blocks = nn.ModuleList(SelfAttention(hid_channels) for _ in range(hid_blocks))
        self.outward = nn.Linear(hid_channels, in_channels)
        self.register_buffer("freqs", torch.linspace(0.01, 0.3, mod_features))

    def forward(self, x, t, date):
        tokens = x.unflatten(1, (self.blanket_size * self.shape[0] * self.shape[1], -1))
        when = encode(date).flatten(start_dim=1)[:, None].expand(-1, tokens.shape[1], -1)
        mod = self.mod(torch.sin(t[:, None] * self.freqs))[:, None]
        hidden = self.inward(torch.cat((tokens, when.to(tokens)), dim=-1)) + mod
        for block in self.blocks:
            step = (
                checkpoint(block, hidden, use_reentrant=False)
                if self.checkpointing
                else block(hidden)
            )
            hidden = hidden + torch.tanh(step)
        return self.outward(hidden).flatten(start_dim=1)
