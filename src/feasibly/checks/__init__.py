"""Tests of a model and of a constraint before use."""

from .diagnosis import Diagnosis, diagnose
from .inputs import check_constraint, check_denoiser
from .self_test import self_test

__all__ = ["Diagnosis", "check_constraint", "check_denoiser", "diagnose", "self_test"]
