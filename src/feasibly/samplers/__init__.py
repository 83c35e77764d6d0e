"""Samplers, one file a method."""

from .ancestral import Ancestral
from .base import Sampler
from .post_hoc import PostHoc
from .ppr import PPR
from .predictor_corrector import PredictorCorrector

__all__ = ["PPR", "Ancestral", "PostHoc", "PredictorCorrector", "Sampler"]
