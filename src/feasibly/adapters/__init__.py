"""Networks of other libraries, and of the user's own, as denoisers; one file a family."""

from .base import Adapter
from .latent import LatentDecoder
from .self_test import self_test
from .wrap import KINDS, wrap

__all__ = ["KINDS", "Adapter", "LatentDecoder", "self_test", "wrap"]
