"""Modulated MLP, the backbone of the Data2D priors (paper, Appendix B, Architecture)."""

__all__ = ["ModulatedMLP"]

import torch
from torch import Tensor, nn

from .embedding import FiLM, SineEmbedding


class ModulatedMLP(nn.Module):
    r"""A residual MLP whose hidden layers are modulated by the noise level, the coordinates and
    their norm, each through its own sinusoidal embedding.

    Arguments:
        dim: The number :math:`D` of coordinates.
        width: The number of units a layer.
        layers: The number of hidden layers.
        frequencies: The number of frequencies of each embedding.
    """

    def __init__(
        self, dim: int = 2, width: int = 256, layers: int = 3, frequencies: int = 16
    ) -> None:
        super().__init__()
        self.embed_noise = SineEmbedding(frequencies, low=0.5, high=16.0)
        self.embed_x = SineEmbedding(frequencies, low=0.5, high=16.0)
        self.embed_norm = SineEmbedding(frequencies, low=0.5, high=16.0)

        self.input = nn.Linear(dim, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.film = nn.ModuleList(FiLM(2 * frequencies * (dim + 2), width) for _ in range(layers))
        self.output = nn.Linear(width, dim)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        r"""Maps `x`, with shape :math:`(B, D)`, and the noise label `noise`, with shape
        :math:`()` or :math:`(B)`, to an output with shape :math:`(B, D)`."""
        # the small constant keeps the gradient of the norm finite at the origin
        norm = torch.sqrt(x.square().sum(dim=-1) + 1e-12)
        condition = torch.cat(
            (
                self.embed_noise(noise.expand(norm.shape)),
                self.embed_x(x).flatten(start_dim=1),
                self.embed_norm(norm),
            ),
            dim=-1,
        )

        h = self.input(x)
        for hidden, film in zip(self.hidden, self.film, strict=True):
            h = h + nn.functional.silu(film(hidden(h), condition))
        return self.output(h)
