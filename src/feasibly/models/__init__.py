"""Networks in the forms of other libraries, as denoisers."""

from ..denoisers import Adapter
from .latent import LatentDecoder
from .wrap import KINDS, wrap

__all__ = ["KINDS", "Adapter", "LatentDecoder", "wrap"]
