"""Network backbones of the shipped priors."""

from .embedding import FiLM, SineEmbedding
from .mlp import ModulatedMLP
from .unet import UNet

__all__ = ["FiLM", "ModulatedMLP", "SineEmbedding", "UNet"]
