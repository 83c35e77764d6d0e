"""Network backbones of the shipped priors."""

from .embedding import FiLM, SineEmbedding
from .mlp import ModulatedMLP

__all__ = ["FiLM", "ModulatedMLP", "SineEmbedding"]
