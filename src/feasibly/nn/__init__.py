"""Network backbones of the shipped priors."""

from .covariance import ZonalCovariance
from .embedding import FiLM, SineEmbedding
from .mlp import ModulatedMLP
from .recompute import recompute
from .sphere import SphereAutoencoder, SphereNet
from .unet import UNet

__all__ = [
    "FiLM",
    "ModulatedMLP",
    "SineEmbedding",
    "SphereAutoencoder",
    "SphereNet",
    "UNet",
    "ZonalCovariance",
    "recompute",
]
